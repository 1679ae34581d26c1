"""The ops through the package's Triton kernels: same contracts as the reference, one launch each.

On CPU tensors the kernels are interpreted and everything is checked that the reference checks; on a device nothing is
read back. ``fa_fp32_stage1`` and ``lse_merge`` keep the kernel wheel's contract on top of the same kernels, at the
price of a launch more where a result has to be put into the wheel's layout.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import cascade as reference
from . import partial_merge as reference_merge
from .cascade import PREFIX_BLOCK_ROWS
from .cascade_checks import (
    check_attention_merge,
    check_attention_merge_stack,
    check_merge_result,
    page_ids,
)
from .checks import check_merge, check_stage1, merge_dtype
from .launch import kernel
from .schemas import ATTENTION_MERGE, ATTENTION_MERGE_STACK, CASCADE_PREFIX, CASCADE_SUFFIX, LSE_REPLICAS
from .stage1 import query_lengths, stage1_pages

#: Rows, or padded query heads, per program: as in the kernel sources, which need Triton to be read.
MERGE_BLOCK_ROWS = 32
LEAST_SUFFIX_ROWS = 16


def attention_merge_out(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor, *, out: Tensor, lse: Tensor) -> None:
    """:func:`split_batch_kernels.attention_merge` into given tensors."""
    check_attention_merge(o1, lse1, o2, lse2)
    check_merge_result(ATTENTION_MERGE, out, lse, ("o1", o1), (o1, o2))
    _merge(o1.unsqueeze(0), lse1.unsqueeze(0), out, lse, o2, lse2)


def attention_merge(
    o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor, *, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """See :func:`split_batch_kernels.attention_merge`."""
    out, lse = reference_merge.attention_merge_meta(o1, lse1, o2, lse2, out_dtype=out_dtype)
    _merge(o1.unsqueeze(0), lse1.unsqueeze(0), out, lse, o2, lse2)
    return out, lse


def attention_merge_stack_out(outs: Tensor, lses: Tensor, *, out: Tensor, lse: Tensor) -> None:
    """:func:`split_batch_kernels.attention_merge_stack` into given tensors."""
    check_attention_merge_stack(outs, lses)
    check_merge_result(ATTENTION_MERGE_STACK, out, lse, ("outs[0]", outs[0]), outs.unbind())
    _merge(outs, lses, out, lse)


def attention_merge_stack(
    outs: Tensor, lses: Tensor, *, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """See :func:`split_batch_kernels.attention_merge_stack`."""
    out, lse = reference_merge.attention_merge_stack_meta(outs, lses, out_dtype=out_dtype)
    _merge(outs, lses, out, lse)
    return out, lse


def _merge(
    outs: Tensor, lses: Tensor, out: Tensor, lse: Tensor, last: Tensor | None = None, last_lse: Tensor | None = None
) -> None:
    """Launch the merge of stacked partials and, where given, one more. Parts whose rows are no ramp are copied."""
    head_size = out.shape[-1]
    rows = out.numel() // head_size
    if not rows:
        return
    parts = outs.shape[0]
    outs = outs.contiguous() if not outs[0].is_contiguous() else outs
    lses, lse_step = _ramp(lses, rows, leading=1)
    one_more, one_more_lse, last_step = outs, lses, 1
    if last is not None and last_lse is not None:
        one_more = last.contiguous()
        one_more_lse, last_step = _ramp(last_lse, rows)
    kernel("merge_triton", "merge_kernel", out.device)[(-(-rows // MERGE_BLOCK_ROWS),)](
        outs,
        lses,
        one_more,
        one_more_lse,
        out,
        lse,
        rows,
        parts,
        outs.stride(0),
        lses.stride(0),
        lse_step,
        last_step,
        HEAD_SIZE=head_size,
        PADDED_SIZE=_padded(head_size),
        BLOCK_ROWS=MERGE_BLOCK_ROWS,
        HAS_LAST=last is not None,
        BY_HAND=out.device.type == "cpu",
    )


def _ramp(lse: Tensor, rows: int, leading: int = 0) -> tuple[Tensor, int]:
    """``lse`` with its rows at one distance, and that distance; a copy where they are not."""
    shape, strides = lse.shape[leading:], lse.stride()[leading:]
    expected = None
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if expected is None:
            step = expected = stride
        if stride != expected:
            return lse.contiguous(), 1
        expected = stride * size
    return (lse, 1) if expected is None else (lse, step)


def cascade_prefix(*arguments: Any) -> tuple[Tensor, Tensor]:
    """See :func:`split_batch_kernels.cascade_prefix`."""
    outs, lses = reference.cascade_prefix_meta(*arguments)
    _prefix_stage(*arguments, outs=outs, lses=lses)
    return outs, lses


def cascade_prefix_out(*arguments: Any, outs: Tensor, lses: Tensor) -> None:
    """:func:`split_batch_kernels.cascade_prefix` into given tensors."""
    reference.cascade_prefix_out_meta(*arguments, outs=outs, lses=lses)
    _prefix_stage(*arguments, outs=outs, lses=lses)


def _prefix_stage(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    prefix_length: Tensor,
    scale: float,
    splits: int = 1,
    *,
    outs: Tensor,
    lses: Tensor,
) -> None:
    if not query.shape[0]:
        return
    blocks, page = key_cache.shape[:2]
    if query.device.type == "cpu":
        length = reference.prefix_keys(block_table, prefix_length, page)
        if length:
            page_ids(CASCADE_PREFIX, 0, block_table[0], 0, length, blocks=blocks, page=page)
    _prefix(query, key_cache, value_cache, block_table, prefix_length, query.shape[0], scale, outs, lses)


def _prefix(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    lengths: Tensor,
    rows_per_sequence: int,
    scale: float,
    outs: Tensor,
    lses: Tensor,
) -> None:
    """Launch the prefix kernel for sequences of `rows_per_sequence` query rows each."""
    tokens, heads, _ = query.shape
    group = heads // key.shape[2]
    blocks = -(-rows_per_sequence * group // PREFIX_BLOCK_ROWS)
    grid = (blocks * key.shape[2], outs.shape[0], tokens // rows_per_sequence)
    kernel("prefix_triton", "prefix_kernel", query.device)[grid](
        query,
        key,
        value,
        table,
        lengths,
        outs,
        lses,
        scale,
        rows_per_sequence,
        table.stride(0),
        SPLITS=outs.shape[0],
        BLOCK_ROWS=PREFIX_BLOCK_ROWS,
        **_constants(query, key),
    )


def cascade_suffix(*arguments: Any) -> Tensor:
    """See :func:`split_batch_kernels.cascade_suffix`."""
    out = reference.cascade_suffix_meta(*arguments)
    _suffix_stage(*arguments, out=out)
    return out


def cascade_suffix_out(*arguments: Any, out: Tensor) -> None:
    """:func:`split_batch_kernels.cascade_suffix` into a given tensor."""
    reference.cascade_suffix_out_meta(*arguments, out=out)
    _suffix_stage(*arguments, out=out)


def _suffix_stage(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    sequence_lengths: Tensor,
    prefix_length: Tensor,
    prefix_outs: Tensor,
    prefix_lses: Tensor,
    scale: float,
    *,
    out: Tensor,
) -> None:
    tokens, heads, _ = query.shape
    if not tokens:
        return
    blocks, page, kv_heads, _ = key_cache.shape
    if query.device.type == "cpu":
        start = int(prefix_length)
        for row, length in enumerate(sequence_lengths.tolist()):
            if length > start:
                page_ids(CASCADE_SUFFIX, row, block_table[row], start, length, blocks=blocks, page=page)
    kernel("suffix_triton", "suffix_kernel", query.device)[(kv_heads, tokens)](
        query,
        key_cache,
        value_cache,
        block_table,
        sequence_lengths,
        prefix_length,
        prefix_outs,
        prefix_lses,
        out,
        scale,
        block_table.stride(0),
        prefix_outs.shape[0],
        BLOCK_ROWS=max(LEAST_SUFFIX_ROWS, _padded(heads // kv_heads)),
        BY_HAND=query.device.type == "cpu",
        **_constants(query, key_cache),
    )


def fa_fp32_stage1(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_table: Tensor,
    actual_q_seqlens: Tensor,
    actual_kv_seqlens: Tensor,
    q_seqlen_value: int = 0,
) -> tuple[Tensor, Tensor]:
    """The kernel wheel's stage 1; see :func:`split_batch_kernels.fa_fp32_stage1`.

    With ``q_seqlen_value`` 0 the query lengths are read on the host, as the wheel's build does, and each sequence is a
    launch of its own unless all have one length.
    """
    check_stage1(query, key, value, block_table, actual_q_seqlens, actual_kv_seqlens, q_seqlen_value)
    tokens, heads, head_size = query.shape
    kv_heads = key.shape[2]
    group = heads // kv_heads
    outs = query.new_empty((1, kv_heads, tokens * group, head_size), dtype=torch.float32)
    lses = query.new_empty((1, kv_heads, tokens * group), dtype=torch.float32)
    if tokens:
        on_host = query.device.type == "cpu"
        if on_host:
            stage1_pages(block_table, actual_kv_seqlens.tolist(), blocks=key.shape[0], page=key.shape[1])
        lengths = [q_seqlen_value] * block_table.shape[0]
        if on_host or not q_seqlen_value:
            lengths = query_lengths(actual_q_seqlens, q_seqlen_value, tokens)
        scale = 1.0 / math.sqrt(head_size)
        if len(set(lengths)) == 1:
            _prefix(query, key, value, block_table, actual_kv_seqlens, lengths[0], scale, outs, lses)
        else:
            _ragged(query, key, value, block_table, actual_kv_seqlens, lengths, scale, outs, lses)
    # (K, T * G, ...) -> (T, K * G, ...)
    out = outs.view(kv_heads, tokens, group, head_size).transpose(0, 1).reshape(tokens, heads, head_size)
    rows = lses.view(kv_heads, tokens, group).transpose(0, 1).reshape(-1, 1)
    return out, rows.expand(-1, LSE_REPLICAS).reshape(-1)


def _ragged(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    kv_lengths: Tensor,
    lengths: list[int],
    scale: float,
    outs: Tensor,
    lses: Tensor,
) -> None:
    _, kv_heads, rows, head_size = outs.shape
    group = rows // query.shape[0]
    first = 0
    for sequence, count in enumerate(lengths):
        last = first + count
        part_outs = outs.new_empty((1, kv_heads, count * group, head_size))
        part_lses = lses.new_empty((1, kv_heads, count * group))
        one = slice(sequence, sequence + 1)
        _prefix(query[first:last], key, value, table[one], kv_lengths[one], count, scale, part_outs, part_lses)
        outs[:, :, first * group : last * group] = part_outs
        lses[:, :, first * group : last * group] = part_lses
        first = last


def lse_merge(o1: Tensor, o2: Tensor, lse1: Tensor, lse2: Tensor, out_code: int = 0) -> Tensor:
    """The kernel wheel's merge; see :func:`split_batch_kernels.lse_merge`."""
    stride1, stride2 = check_merge(o1, o2, lse1, lse2, out_code)
    head_size = o1.shape[-1]
    out = o1.new_empty(o1.shape, dtype=merge_dtype(o1, out_code))
    rows = (-1, head_size)
    _merge(
        o1.view(rows).unsqueeze(0),
        lse1.reshape(-1, stride1)[:, 0].unsqueeze(0),
        out.view(rows),
        o1.new_empty(o1.numel() // head_size, dtype=torch.float32),
        o2.view(rows),
        lse2.reshape(-1, stride2)[:, 0],
    )
    return out


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _constants(query: Tensor, key: Tensor) -> dict[str, Any]:
    """The compile-time constants that both attention kernels take from their tensors."""
    import triton.language as tl

    from .prefix_triton import block_keys

    element = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[query.dtype]
    _, heads, head_size = query.shape
    _, page, kv_heads, _ = key.shape
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "HEAD_SIZE": head_size,
        "PADDED_SIZE": _padded(head_size),
        "PAGE": page,
        "BLOCK_KEYS": block_keys(page),
        # The interpreter keeps bfloat16 as bits and computes nonsense with them: there products are formed in float32.
        "COMPUTE": tl.float32 if query.device.type == "cpu" else element,
    }
