"""The two ops of two-stage (cascade) decode attention: contracts, CPU reference, Meta implementations.

Importing the package defines ``torch.ops.npu.fa_fp32_stage1`` and ``torch.ops.npu.lse_merge``, unless a kernel wheel
has defined them already, and registers them for the CPU and Meta dispatch keys::

    import torch, split_batch_kernels

    query = torch.randn(4, 8, 64)                                # 4 tokens, 8 query heads, head size 64
    key, value = torch.randn(2, 3, 16, 2, 64)                    # 3 pages of 16 tokens, 2 key-value heads
    prefix, prefix_lse = torch.ops.npu.fa_fp32_stage1(
        query, key, value, torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([4]), torch.tensor([32]), 4)
    out = torch.ops.npu.lse_merge(prefix, prefix, prefix_lse, prefix_lse)    # merging a partial with itself: itself

The reference takes bfloat16, float16 and float32, any head size and any page size that are multiples of 16. What the
device build takes is narrower: :data:`DEVICE_LIMITS`, :func:`limit_violations`, :func:`check_device_limits`.
"""

from __future__ import annotations

from .cascade import PREFIX_BLOCK_ROWS, cascade_prefix, cascade_suffix, prefix_splits
from .definitions import FOREIGN_DEFINITIONS
from .errors import DeviceLimitError, OpContractError, OpDefinitionError, TritonUnavailableError
from .limits import DEVICE_LIMITS, DeviceLimits, check_device_limits, limit_violations
from .merge import lse_merge, merge_partials
from .partial_merge import attention_merge, attention_merge_stack
from .registration import definition, is_ours, register, registered
from .schemas import (
    ATTENTION_MERGE,
    ATTENTION_MERGE_STACK,
    CASCADE_PREFIX,
    CASCADE_SUFFIX,
    LSE_REPLICAS,
    MERGE,
    OWN_SCHEMAS,
    SCHEMAS,
    STAGE1,
)
from .stage1 import fa_fp32_stage1

__version__ = "0.3.0"

__all__ = [
    "ATTENTION_MERGE",
    "ATTENTION_MERGE_STACK",
    "CASCADE_PREFIX",
    "CASCADE_SUFFIX",
    "DEVICE_LIMITS",
    "FOREIGN_DEFINITIONS",
    "LSE_REPLICAS",
    "MERGE",
    "OWN_SCHEMAS",
    "PREFIX_BLOCK_ROWS",
    "SCHEMAS",
    "STAGE1",
    "DeviceLimitError",
    "DeviceLimits",
    "OpContractError",
    "OpDefinitionError",
    "TritonUnavailableError",
    "attention_merge",
    "attention_merge_stack",
    "cascade_prefix",
    "cascade_suffix",
    "check_device_limits",
    "definition",
    "fa_fp32_stage1",
    "is_ours",
    "limit_violations",
    "lse_merge",
    "merge_partials",
    "prefix_splits",
    "register",
    "registered",
]
