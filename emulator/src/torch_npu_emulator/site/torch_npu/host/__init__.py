"""What the host (vllm-ascend) needs beside torch_npu: absent packages, its extension module, its Triton kernels."""
