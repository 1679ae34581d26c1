"""Default-off capabilities for stock vLLM + vllm-ascend on Ascend NPUs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_ascend_split_batch.planner import (
        DualPadPlan,
        SplitBatchConfig,
        SplitSlice,
        plan_dual_pad,
        precheck_reason,
    )

__version__ = "0.3.0"

__all__ = ["DualPadPlan", "SplitBatchConfig", "SplitSlice", "plan_dual_pad", "precheck_reason"]


def __getattr__(name: str) -> object:
    # The planner's published names, loaded on first use: every vLLM process imports this package for the front doors.
    if name in __all__:
        return getattr(import_module("vllm_ascend_split_batch.planner"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
