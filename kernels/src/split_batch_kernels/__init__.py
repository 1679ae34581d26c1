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

from .errors import DeviceLimitError, OpContractError, OpDefinitionError
from .limits import DEVICE_LIMITS, DeviceLimits, check_device_limits, limit_violations
from .merge import lse_merge, merge_partials
from .registration import define, definition, is_ours, register
from .schemas import LSE_REPLICAS, MERGE, SCHEMAS, STAGE1
from .stage1 import fa_fp32_stage1

__version__ = "0.3.0"

__all__ = [
    "DEVICE_LIMITS",
    "LSE_REPLICAS",
    "MERGE",
    "SCHEMAS",
    "STAGE1",
    "DeviceLimitError",
    "DeviceLimits",
    "OpContractError",
    "OpDefinitionError",
    "check_device_limits",
    "definition",
    "fa_fp32_stage1",
    "is_ours",
    "limit_violations",
    "lse_merge",
    "merge_partials",
    "register",
]

#: Ops that were defined by somebody else when this package was imported, and where.
FOREIGN_DEFINITIONS = define()
