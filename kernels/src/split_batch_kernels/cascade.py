"""Reference of two-stage decode attention in two calls: ``split_batch::cascade_prefix`` and ``cascade_suffix``.

All requests of a decode step share the first P keys. The prefix call attends every row to those, once; the suffix call
attends each request's row to the rest of its own keys and merges. Both lengths lie on the device: a captured pair of
calls serves later steps as they are, and a prefix length of 0 makes the suffix call ordinary decode attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attend import attend
from .cascade_checks import (
    check_cascade_prefix,
    check_cascade_suffix,
    check_prefix_results,
    check_suffix_result,
    page_ids,
)
from .errors import violation
from .partial_merge import merge_stack
from .schemas import CASCADE_PREFIX, CASCADE_SUFFIX

#: Query rows per task of the device's prefix kernel.
PREFIX_BLOCK_ROWS = 64
#: Keys that one step of a device kernel takes at a time, the unit in which splitting pays or does not.
_KEYS_PER_STEP = 128
#: What one more part costs beside its keys, in steps: its results are written and read again.
_STEPS_PER_PART = 2
_SPLITS = (1, 2, 3, 4, 6, 8)


def prefix_splits(tokens: int, heads: int, kv_heads: int, prefix_bound: int, *, cores: int, block_rows: int) -> int:
    """Into how many parts the prefix stage should split its keys so that all cores have work.

    The smallest of 1, 2, 3, 4, 6, 8 with the least ``rounds x (keys per part + the cost of a part)``, where rounds is
    the number of (row block, key-value head, part) tasks over the cores, rounded up. It depends on shapes alone: call
    it once per capture size, with the largest prefix that the size will serve.

    Args:
        tokens: rows of a step. prefix_bound: keys of the longest prefix. cores: of the device that run such tasks
            (910B2: 24). block_rows: query rows per task (``split_batch_kernels.PREFIX_BLOCK_ROWS``).
    """
    blocks = -(-tokens * (heads // kv_heads) // block_rows)

    def cost(splits: int) -> int:
        rounds = -(-blocks * kv_heads * splits // cores)
        steps = -(-prefix_bound // (_KEYS_PER_STEP * splits))
        return rounds * (steps + (_STEPS_PER_PART if splits > 1 else 0))

    return min(_SPLITS, key=cost)


def cascade_prefix(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    prefix_length: Tensor,
    scale: float,
    splits: int = 1,
) -> tuple[Tensor, Tensor]:
    """Attend the rows of all requests to the keys that they share, without a mask.

    Args:
        query: ``(T, H, D)``, bfloat16, float16 or float32, contiguous.
        key_cache: ``(blocks, page, K, D)``, same dtype, contiguous: the paged cache as the host keeps it.
        value_cache: same shape and dtype.
        block_table: ``(sequences, columns)`` int32; its first row lists the pages of the prefix, as every row does.
        prefix_length: ``(1,)`` int32 on the device, 0 or more keys.
        scale: factor on the scores.
        splits: 1 to 16 parts of the keys: part s covers the s-th of `splits` equal runs of pages
            (:func:`prefix_splits` chooses).

    Returns:
        ``outs`` ``(splits, K, T * G, D)`` and ``lses`` ``(splits, K, T * G)``, float32, natural logarithm, with
        ``G = H // K``: row ``t * G + g`` of key-value head k is query head ``k * G + g`` of token t. A part without
        keys is zeros and ``-inf``. ``cascade_suffix`` takes both as they are.

    Raises:
        OpContractError: a rule above is broken. A block id outside the cache is noticed where tensors lie on the host;
        on a device nothing is read back to check.
    """
    arguments = query, key_cache, value_cache, block_table, prefix_length, scale, splits
    outs, lses = cascade_prefix_meta(*arguments)
    _prefix_stage(*arguments, outs=outs, lses=lses)
    return outs, lses


def cascade_prefix_out(*arguments: Any, outs: Tensor, lses: Tensor) -> None:
    """:func:`cascade_prefix` into ``outs`` and ``lses`` of the shapes and types that it returns."""
    cascade_prefix_out_meta(*arguments, outs=outs, lses=lses)
    _prefix_stage(*arguments, outs=outs, lses=lses)


def cascade_prefix_meta(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Memory for the results of :func:`cascade_prefix`, after every check that needs no tensor element."""
    shape = check_cascade_prefix(*arguments)
    query: Tensor = arguments[0]
    return query.new_empty(shape, dtype=torch.float32), query.new_empty(shape[:-1], dtype=torch.float32)


def cascade_prefix_out_meta(*arguments: Any, outs: Tensor, lses: Tensor) -> None:
    """Every check of :func:`cascade_prefix_out` that needs no tensor element."""
    check_prefix_results(arguments[0], check_cascade_prefix(*arguments), outs, lses)


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
    """What checked arguments ask for."""
    tokens, heads, head_size = query.shape
    blocks, page, kv_heads, _ = key_cache.shape
    if not tokens:
        return
    length = prefix_keys(block_table, prefix_length, page)
    pages = -(-length // page)
    per_part = -(-pages // splits) * page
    part_out = query.new_empty((tokens, heads, head_size), dtype=torch.float32)
    part_lse = query.new_empty((tokens, heads), dtype=torch.float32)
    group = heads // kv_heads
    for part in range(splits):
        first, last = min(part * per_part, length), min((part + 1) * per_part, length)
        ids = block_table[0, :0].to(torch.int64)
        if last > first:
            ids = page_ids(CASCADE_PREFIX, 0, block_table[0], first, last, blocks=blocks, page=page)
        attend(query, key_cache, value_cache, ids, 0, last - first, scale, part_out, part_lse)
        # (T, K * G, D) -> (K, T * G, D)
        rows = part_out.view(tokens, kv_heads, group, head_size).transpose(0, 1)
        outs[part].view(kv_heads, tokens, group, head_size).copy_(rows)
        lses[part].view(kv_heads, tokens, group).copy_(part_lse.view(tokens, kv_heads, group).transpose(0, 1))


def cascade_suffix(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    sequence_lengths: Tensor,
    prefix_length: Tensor,
    prefix_outs: Tensor,
    prefix_lses: Tensor,
    scale: float,
) -> Tensor:
    """Attend each request's row to its own keys behind the prefix, and merge with the prefix stage.

    Args:
        query: ``(B, H, D)``, contiguous: one row per request.
        key_cache, value_cache: ``(blocks, page, K, D)``, as for :func:`cascade_prefix`.
        block_table: ``(B, columns)`` int32, each request's whole table, prefix included.
        sequence_lengths: ``(B,)`` int32 on the device: all keys of each request, prefix included. A request with no
            more keys than the prefix (a padding row) has no own part.
        prefix_length: ``(1,)`` int32 on the device, as for the prefix stage.
        prefix_outs, prefix_lses: what :func:`cascade_prefix` returned.
        scale: factor on the scores.

    Returns:
        ``(B, H, D)`` in the type of ``query``: attention over all keys; zeros for a request without any.

    Raises:
        OpContractError: as :func:`cascade_prefix`.
    """
    parts = prefix_outs, prefix_lses
    arguments = query, key_cache, value_cache, block_table, sequence_lengths, prefix_length, *parts, scale
    out = cascade_suffix_meta(*arguments)
    _suffix_stage(*arguments, out=out)
    return out


def cascade_suffix_out(*arguments: Any, out: Tensor) -> None:
    """:func:`cascade_suffix` into ``out``, of the shape of ``query``, contiguous, any float type."""
    cascade_suffix_out_meta(*arguments, out=out)
    _suffix_stage(*arguments, out=out)


def cascade_suffix_meta(*arguments: Any) -> Tensor:
    """Memory for the result of :func:`cascade_suffix`, after every check that needs no tensor element."""
    check_cascade_suffix(*arguments)
    return torch.empty_like(arguments[0])


def cascade_suffix_out_meta(*arguments: Any, out: Tensor) -> None:
    """Every check of :func:`cascade_suffix_out` that needs no tensor element."""
    check_cascade_suffix(*arguments)
    check_suffix_result(arguments[0], out)


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
    """What checked arguments ask for."""
    tokens, heads, head_size = query.shape
    blocks, page, kv_heads, _ = key_cache.shape
    group, parts = heads // kv_heads, prefix_outs.shape[0]
    if not tokens:
        return
    start = int(prefix_length)
    own_out = query.new_empty((tokens, heads, head_size), dtype=torch.float32)
    own_lse = query.new_empty((tokens, heads), dtype=torch.float32)
    for row, length in enumerate(sequence_lengths.tolist()):
        keys = max(0, length - start)
        ids = block_table[row, :0].to(torch.int64)
        if keys:
            ids = page_ids(CASCADE_SUFFIX, row, block_table[row], start, length, blocks=blocks, page=page)
        attend(
            query[row : row + 1], key_cache, value_cache, ids, start % page, keys, scale,
            own_out[row : row + 1], own_lse[row : row + 1],
        )
    # (parts, K, T * G, D) -> (parts, T, K * G, D)
    outs = prefix_outs.view(parts, kv_heads, tokens, group, head_size).transpose(1, 2)
    lses = prefix_lses.view(parts, kv_heads, tokens, group).transpose(1, 2)
    merged, _ = merge_stack(
        torch.cat((own_out.unsqueeze(0), outs.reshape(parts, tokens, heads, head_size))),
        torch.cat((own_lse.unsqueeze(0), lses.reshape(parts, tokens, heads))),
    )
    out.copy_(merged)


def prefix_keys(block_table: Tensor, prefix_length: Tensor, page: int) -> int:
    """The prefix length on the host, checked against the table."""
    length = int(prefix_length)
    if not 0 <= length <= block_table.shape[1] * page:
        raise violation(
            CASCADE_PREFIX, "prefix_length", length, f"0 to {block_table.shape[1] * page}, the columns of block_table"
        )
    return length
