"""Attention of query rows to a run of one sequence's paged keys, in float32: what all reference ops are made of."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Score elements (key-value heads x rows x keys) held at once. 2**20 float32 are 4 MiB: the scores of one chunk, and
#: the exponentials made of them in place, stay near the cores' caches while the GEMMs are large enough to be efficient.
CHUNK_ELEMENTS = 1 << 20


def attend(
    query: Tensor, key: Tensor, value: Tensor, ids: Tensor, skip: int, keys: int, scale: float, out: Tensor, lse: Tensor
) -> None:
    """Write ``out`` (rows, H, D) and ``lse`` (rows, H) of ``query`` (rows, H, D) over keys ``skip`` to ``skip + keys``.

    The keys are counted from the first slot of page ``ids[0]``; ``ids`` (pages,) int64 lists the pages that hold them.
    Without keys: zeros and ``-inf``. ``scale`` multiplies the scores.

    The rows of one key-value head's whole query group form one matrix, so each chunk of keys is read once per
    key-value head and takes part in two GEMMs.
    """
    rows, heads, head_size = query.shape
    if keys == 0:
        out.zero_()
        lse.fill_(-math.inf)
        return
    page, kv_heads = key.shape[1], key.shape[2]
    group = heads // kv_heads
    # (rows, K * G, D) -> (K, rows * G, D)
    q = query.view(rows, kv_heads, group, head_size).permute(1, 0, 2, 3).reshape(kv_heads, rows * group, head_size)
    q = q.to(torch.float32) * scale

    pages_per_chunk = max(1, CHUNK_ELEMENTS // (kv_heads * rows * group * page))
    running_max = q.new_full((kv_heads, rows * group, 1), -math.inf)
    total = q.new_zeros((kv_heads, rows * group, 1))
    accumulated = q.new_zeros((kv_heads, rows * group, head_size))
    for first in range(0, ids.shape[0], pages_per_chunk):
        chunk = ids[first : first + pages_per_chunk]
        begin = max(skip - first * page, 0)
        end = min(chunk.shape[0] * page, skip + keys - first * page)
        k, v = (_widened(cache, chunk, begin, end) for cache in (key, value))
        scores = torch.bmm(q, k.transpose(1, 2))
        new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))
        # A row whose scores are all -inf so far keeps total 0: subtracting 0 instead of -inf avoids inf - inf.
        shift = torch.where(torch.isneginf(new_max), torch.zeros_like(new_max), new_max)
        rescale = torch.exp(running_max - shift)
        weights = scores.sub_(shift).exp_()
        total = total.mul_(rescale).add_(weights.sum(dim=-1, keepdim=True))
        accumulated = accumulated.mul_(rescale).baddbmm_(weights, v)
        running_max = new_max
    normalised = accumulated.div_(total)
    out.copy_(normalised.view(kv_heads, rows, group, head_size).permute(1, 0, 2, 3).reshape(rows, heads, head_size))
    row_lse = running_max + torch.log(total)
    lse.copy_(row_lse.view(kv_heads, rows, group).permute(1, 0, 2).reshape(rows, heads))


def _widened(cache: Tensor, pages: Tensor, begin: int, end: int) -> Tensor:
    """(pages, page, K, D) -> (K, keys, D) in float32; the gather is the only copy in the cache's own dtype."""
    rows = cache.index_select(0, pages).view(-1, *cache.shape[2:])[begin:end]
    return rows.to(torch.float32).permute(1, 0, 2)
