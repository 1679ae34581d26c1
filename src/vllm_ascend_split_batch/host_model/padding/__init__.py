"""How the host pads a step: capture sizes, graph dispatch, agreement of data-parallel ranks, query boundary.

Every rule is the observable behaviour of the host's own functions, per release, and is held equal to them by tests that
run both. Where the host behaves oddly the model does too.
"""

from vllm_ascend_split_batch.host_model.padding.capture_sizes import capture_sizes
from vllm_ascend_split_batch.host_model.padding.data_parallel import (
    Agreement,
    RankChoice,
    agree,
    skips_agreement,
)
from vllm_ascend_split_batch.host_model.padding.dispatch import Descriptor, GraphDispatch
from vllm_ascend_split_batch.host_model.padding.modes import GraphMode, RuntimeMode
from vllm_ascend_split_batch.host_model.padding.query_boundary import (
    AttentionRows,
    attention_rows,
    pad_query_ends,
)
from vllm_ascend_split_batch.host_model.padding.releases import HostFailure, HostRelease
from vllm_ascend_split_batch.host_model.padding.settings import HostSettings
from vllm_ascend_split_batch.host_model.padding.step import Batch, Disagreement, Execution, StepPadding

__all__ = [
    "Agreement",
    "AttentionRows",
    "Batch",
    "Descriptor",
    "Disagreement",
    "Execution",
    "GraphDispatch",
    "GraphMode",
    "HostFailure",
    "HostRelease",
    "HostSettings",
    "RankChoice",
    "RuntimeMode",
    "StepPadding",
    "agree",
    "attention_rows",
    "capture_sizes",
    "pad_query_ends",
    "skips_agreement",
]
