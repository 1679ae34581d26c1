"""What the device builds of the two kernels accept, as data.

Source: the kernel project's documentation of release 2026.9.26. A call outside these limits fails or reads out of
bounds on the device, so the question is settled from the model's shapes before a step is admitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """What a model's attention looks like to the kernels.

    Attributes:
        dtype: element type of the queries and of the KV cache, "bfloat16", "float16" or "float32".
        head_size, block_size: elements and tokens.
        query_heads, kv_heads: per rank.
        scale: factor on the logits.
    """

    dtype: str
    head_size: int
    block_size: int
    query_heads: int
    kv_heads: int
    scale: float


#: `npu::fa_fp32_stage1`: the tile sizes are compiled in, and so is the scale 1/sqrt(head size).
STAGE1_DTYPE, STAGE1_HEAD_SIZE, STAGE1_BLOCK_SIZE = "bfloat16", 128, 128
STAGE1_SCALE_TOLERANCE = 1e-9
#: `npu::lse_merge`: a tile of 32 rows has to fit into a vector core's buffer, which nothing checks on the device.
MERGE_DTYPE, MERGE_HEAD_MULTIPLE, MERGE_MAX_HEAD_SIZE = "bfloat16", 16, 384
#: `npu_attention_update`, the merge of the tier without the wheel.
UPDATE_HEAD_MULTIPLE, UPDATE_MAX_HEAD_SIZE = 8, 512
FUSED_DTYPES = ("bfloat16", "float16")
#: Fused attention over paged KV with more than one query row per sequence, the form of the prefix stage.
FUSED_BLOCK_MULTIPLE, FUSED_MAX_BLOCK_SIZE, FUSED_MAX_GROUP = 128, 512, 64


def beyond_limits(shape: ModelShape, *, fp32_prefix: bool, wheel: bool = True) -> str | None:
    """What of `shape` the device builds do not accept, as one phrase, or None.

    Args:
        fp32_prefix: the prefix stage runs `fa_fp32_stage1` instead of the host's fused attention.
        wheel: the stages are merged by the wheel's `lse_merge`; otherwise by the host's own operators.
    """
    if shape.kv_heads <= 0 or shape.query_heads % shape.kv_heads:
        return f"{shape.query_heads} query heads are no multiple of {shape.kv_heads} KV heads"
    if not wheel:
        return _beyond_host_limits(shape)
    if shape.dtype != MERGE_DTYPE:
        return f"lse_merge takes {MERGE_DTYPE} suffix outputs, the model computes in {shape.dtype}"
    if shape.head_size % MERGE_HEAD_MULTIPLE or shape.head_size > MERGE_MAX_HEAD_SIZE:
        return (
            f"lse_merge takes head sizes that are multiples of {MERGE_HEAD_MULTIPLE} up to {MERGE_MAX_HEAD_SIZE}, "
            f"not {shape.head_size}"
        )
    if fp32_prefix:
        if shape.head_size != STAGE1_HEAD_SIZE:
            return f"fa_fp32_stage1 takes head size {STAGE1_HEAD_SIZE}, not {shape.head_size}"
        if shape.block_size != STAGE1_BLOCK_SIZE:
            return f"fa_fp32_stage1 takes pages of {STAGE1_BLOCK_SIZE} tokens, not {shape.block_size}"
        return None
    return _beyond_fused_limits(shape)


def _beyond_host_limits(shape: ModelShape) -> str | None:
    if shape.dtype not in FUSED_DTYPES:
        return f"fused attention takes {' and '.join(FUSED_DTYPES)}, the model computes in {shape.dtype}"
    if shape.head_size % UPDATE_HEAD_MULTIPLE or shape.head_size > UPDATE_MAX_HEAD_SIZE:
        return (
            f"npu_attention_update takes head sizes that are multiples of {UPDATE_HEAD_MULTIPLE} up to "
            f"{UPDATE_MAX_HEAD_SIZE}, not {shape.head_size}"
        )
    return _beyond_fused_limits(shape)


def _beyond_fused_limits(shape: ModelShape) -> str | None:
    if shape.block_size % FUSED_BLOCK_MULTIPLE or shape.block_size > FUSED_MAX_BLOCK_SIZE:
        return (
            f"fused attention over a shared prefix takes pages of {FUSED_BLOCK_MULTIPLE} to {FUSED_MAX_BLOCK_SIZE} "
            f"tokens in steps of {FUSED_BLOCK_MULTIPLE}, not {shape.block_size}"
        )
    if shape.query_heads // shape.kv_heads > FUSED_MAX_GROUP:
        return f"fused attention takes at most {FUSED_MAX_GROUP} query heads per KV head"
    return None


def scale_is_builtin(shape: ModelShape) -> bool:
    """Whether the model's scale is the one `fa_fp32_stage1` applies by itself, 1/sqrt(head size)."""
    return abs(shape.scale * math.sqrt(shape.head_size) - 1.0) <= STAGE1_SCALE_TOLERANCE
