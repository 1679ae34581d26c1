"""The split-batch planner's public names.

`SplitBatchConfig`, `precheck_reason` and `plan_dual_pad` behave as published. `plan_split` and `SplitTable` plan any
number of slices, optimal for a given cost. Nothing here imports anything outside the standard library.
"""

from vllm_ascend_split_batch.planning.cost import GraphCost
from vllm_ascend_split_batch.planning.dual_pad import (
    DualPadPlan,
    SplitBatchConfig,
    SplitSlice,
    plan_dual_pad,
    precheck_reason,
)
from vllm_ascend_split_batch.planning.reasons import Reason
from vllm_ascend_split_batch.planning.split import SplitDecision, SplitPlan, SplitTable, plan_split

__all__ = [
    "DualPadPlan",
    "GraphCost",
    "Reason",
    "SplitBatchConfig",
    "SplitDecision",
    "SplitPlan",
    "SplitSlice",
    "SplitTable",
    "plan_dual_pad",
    "plan_split",
    "precheck_reason",
]
