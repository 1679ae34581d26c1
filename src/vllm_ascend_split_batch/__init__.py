"""Default-off capabilities for stock vLLM + vllm-ascend on Ascend NPUs."""

__version__ = "0.3.0"
