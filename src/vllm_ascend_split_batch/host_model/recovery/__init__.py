"""What becomes of running requests that lose their blocks."""

from vllm_ascend_split_batch.host_model.recovery.recompute import RECOMPUTED, Recovery, recovery_of

__all__ = ["RECOMPUTED", "Recovery", "recovery_of"]
