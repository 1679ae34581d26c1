"""`make demo`: a chat model on the real vllm + vllm-ascend, on the emulated NPU, with cascade decode off and on."""
