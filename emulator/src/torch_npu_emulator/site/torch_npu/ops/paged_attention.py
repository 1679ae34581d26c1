"""``_npu_paged_attention``: decode attention of the ATB library, one query token per sequence."""

from __future__ import annotations

import torch

from torch_npu.ops import attention_limits as limits
from torch_npu.ops.attention_core import Call, Sequence, run
from torch_npu.ops.registry import emulates

OP = "_npu_paged_attention"


def _meta(*args: object, **kwargs: object) -> None:
    return None


@emulates(OP, meta=_meta)
def _npu_paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,
) -> None:
    """query and out ``[B, N, D]``, caches ``[blocks, block_size, K, D]``, block_table ``[B, columns]`` int32.

    context_lens ``[B]`` int32 may be a host tensor: the library reads it on the host.
    """
    limits.check_dtypes(OP, query, key_cache, value_cache)
    if query.dim() != 3 or query.shape[1] != num_heads:
        raise RuntimeError(f"{OP}: query {tuple(query.shape)} must be [tokens, {num_heads}, D]")
    if key_cache.dim() != 4 or key_cache.shape[2] != num_kv_heads or key_cache.shape != value_cache.shape:
        raise RuntimeError(
            f"{OP}: caches {tuple(key_cache.shape)}, {tuple(value_cache.shape)} must be "
            f"[blocks, block_size, {num_kv_heads}, D]"
        )
    limits.check_heads(OP, "paged", num_heads, num_kv_heads, query.shape[2], value_cache.shape[3])
    if context_lens.dtype != torch.int32 or context_lens.shape != query.shape[:1]:
        raise RuntimeError(
            f"{OP}: context_lens {tuple(context_lens.shape)} of {context_lens.dtype} must be "
            f"[{query.shape[0]}] of int32"
        )
    if out.shape != query.shape or out.dtype != query.dtype or out.stride(-1) != 1:
        raise RuntimeError(f"{OP}: out {tuple(out.shape)} of {out.dtype} must be like the query {tuple(query.shape)}")
    lengths = context_lens.tolist()
    if any(length < 0 for length in lengths):
        raise RuntimeError(f"{OP}: context_lens {lengths} must not be negative")
    block_size = key_cache.shape[1]
    limits.check_block_table(OP, block_table, query.shape[0], block_size, block_size, lengths, 1)
    run(
        Call(
            OP,
            "paged",
            query.unsqueeze(0),
            key_cache,
            value_cache,
            out.unsqueeze(0),
            None,
            scale_value,
            [Sequence(0, i, 1, i, 0, length) for i, length in enumerate(lengths)],
            block_table,
            block_size,
        )
    )


def _workspace(query: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return query.new_empty(1, dtype=torch.uint8)  # the backend needs none


emulates(f"{OP}_get_workspace", meta=_workspace)(_workspace)
