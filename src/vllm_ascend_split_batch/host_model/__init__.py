"""Models of what the host (vllm + vllm-ascend) does on the CPU between two steps, exact enough to plan with."""
