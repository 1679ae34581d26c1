"""Stage 1: unmasked attention over a paged cache, float32 output and log-sum-exp (``npu::fa_fp32_stage1``)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .attend import attend
from .cascade_checks import page_ids
from .checks import check_stage1
from .errors import violation
from .schemas import LSE_REPLICAS, STAGE1


def fa_fp32_stage1(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_table: Tensor,
    actual_q_seqlens: Tensor,
    actual_kv_seqlens: Tensor,
    q_seqlen_value: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attend every query row of a sequence to all of the sequence's paged keys, without a mask.

    With the scores ``s_j = (q . k_j) / sqrt(D)`` of one row and query head ``h`` (key-value head ``h // (H // K)``):
    ``lse = ln(sum_j exp(s_j))`` and ``out = sum_j exp(s_j - lse) v_j``.

    Args:
        query: ``(T, H, D)``, bfloat16, float16 or float32, contiguous; the sequences' rows one after another.
        key: ``(blocks, page, K, D)``, same dtype, contiguous: the paged cache as the host keeps it.
        value: same shape and dtype as ``key``.
        block_table: ``(B, columns)`` int32, contiguous; row ``b`` lists the pages of sequence ``b``. Columns past the
            last page that a sequence needs are not read.
        actual_q_seqlens: ``(B,)`` int64, query rows of each sequence (not cumulative).
        actual_kv_seqlens: ``(B,)`` int64, keys of each sequence (not cumulative), at least 1.
        q_seqlen_value: 0: the query lengths are read from ``actual_q_seqlens`` and may differ. Above 0: every
            sequence has this many query rows, which lets a device build run without reading lengths on the host.

    Returns:
        ``out``: ``(T, H, D)`` float32. ``lse``: ``(T * H * 8,)`` float32, natural logarithm, each row's value written
        8 times (row ``t * H + h`` starts at element ``8 * (t * H + h)``). Both are empty when ``T`` is 0.

    Raises:
        OpContractError: a rule above is broken, a block id lies outside the cache, or a table is too narrow.

    The softmax runs online over chunks of keys with float32 accumulation, so that memory does not grow with the number
    of keys (Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018).
    """
    check_stage1(query, key, value, block_table, actual_q_seqlens, actual_kv_seqlens, q_seqlen_value)
    tokens, heads, head_size = query.shape
    out = query.new_empty((tokens, heads, head_size), dtype=torch.float32)
    lse = query.new_empty((tokens, heads), dtype=torch.float32)
    scale = 1.0 / math.sqrt(head_size)
    if tokens:
        q_lengths = query_lengths(actual_q_seqlens, q_seqlen_value, tokens)
        kv_lengths = [int(n) for n in actual_kv_seqlens.tolist()]
        pages = stage1_pages(block_table, kv_lengths, blocks=key.shape[0], page=key.shape[1])
        first = 0
        for rows, keys, ids in zip(q_lengths, kv_lengths, pages, strict=True):
            last = first + rows
            attend(query[first:last], key, value, ids, 0, keys, scale, out[first:last], lse[first:last])
            first = last
    return out, lse.view(-1, 1).expand(-1, LSE_REPLICAS).reshape(-1)


def fa_fp32_stage1_meta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_table: Tensor,
    actual_q_seqlens: Tensor,
    actual_kv_seqlens: Tensor,
    q_seqlen_value: int = 0,
) -> tuple[Tensor, Tensor]:
    """Shapes and dtypes of :func:`fa_fp32_stage1`, with every check that needs no tensor element."""
    check_stage1(query, key, value, block_table, actual_q_seqlens, actual_kv_seqlens, q_seqlen_value)
    tokens, heads, head_size = query.shape
    out = query.new_empty((tokens, heads, head_size), dtype=torch.float32)
    return out, query.new_empty((tokens * heads * LSE_REPLICAS,), dtype=torch.float32)


def query_lengths(actual_q_seqlens: Tensor, q_seqlen_value: int, tokens: int) -> list[int]:
    lengths = [int(n) for n in actual_q_seqlens.tolist()]
    for row, length in enumerate(lengths):
        if q_seqlen_value and length != q_seqlen_value:
            raise violation(STAGE1, f"actual_q_seqlens[{row}]", length, f"{q_seqlen_value}, the q_seqlen_value")
        if length < 1:
            raise violation(STAGE1, f"actual_q_seqlens[{row}]", length, "at least 1")
    if sum(lengths) != tokens:
        raise violation(STAGE1, "number of query rows", tokens, f"{sum(lengths)}, the sum of actual_q_seqlens")
    return lengths


def stage1_pages(block_table: Tensor, kv_lengths: list[int], *, blocks: int, page: int) -> list[Tensor]:
    """The page ids that each sequence reads, as int64 index tensors on the table's device."""
    result = []
    for row, keys in enumerate(kv_lengths):
        if keys < 1:
            raise violation(STAGE1, f"actual_kv_seqlens[{row}]", keys, "at least 1")
        result.append(page_ids(STAGE1, row, block_table[row], 0, keys, blocks=blocks, page=page))
    return result
