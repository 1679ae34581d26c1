"""A fused attention and a merge in plain torch, for tests of what surrounds them: paged KV, TND, no padding."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch


def fused(query: Any, key: Any, value: Any, **options: Any) -> tuple[Any, Any]:
    """out [T, H, D] of the query's type and lse float32 [T, H, 1]; the arguments are those the cascade passes."""
    heads, kv_heads, page = options["num_heads"], options["num_key_value_heads"], options["block_size"]
    size = query.shape[-1]
    out = torch.zeros_like(query)
    lse = torch.full((*query.shape[:2], 1), math.inf, dtype=torch.float32)
    begin = 0
    for sequence, end in enumerate(options["actual_seq_lengths"]):
        length = options["actual_seq_lengths_kv"][sequence]
        pages = options["block_table"][sequence, : -(-length // page)].long()
        k, v = (
            cache[pages].reshape(-1, kv_heads, size)[:length].double().repeat_interleave(heads // kv_heads, 1)
            for cache in (key, value)
        )
        rows = query[begin:end].double()
        logits = torch.einsum("thd,nhd->thn", rows, k) * options["scale"]
        if options["sparse_mode"] == 3:
            last = torch.arange(length) - (length - (end - begin))
            logits = logits.masked_fill(last[None, None, :] > torch.arange(end - begin)[:, None, None], -math.inf)
        out[begin:end] = torch.einsum("thn,nhd->thd", logits.softmax(-1), v).to(query.dtype)
        lse[begin:end] = logits.logsumexp(-1, keepdim=True).float()
        begin = end
    return out, lse


def merge(first: Any, second: Any, first_lse: Any, second_lse: Any) -> Any:
    """The definition, in float64: [T, H, D] of the first's type."""
    shape = (*first.shape[:-1], 1)
    lses = torch.stack([first_lse.double().reshape(shape), second_lse.double().reshape(shape)])
    weights = (lses - lses.logsumexp(0)).exp()
    return (weights[0] * first.double() + weights[1] * second.double()).to(first.dtype)


def ops(attention: Any = fused) -> Any:
    """An op namespace with this attention."""
    return SimpleNamespace(npu_fused_infer_attention_score=attention)
