"""Dense attention in float64, written from the definition, one query row at a time where it matters."""

from __future__ import annotations

import math

import torch


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    visible: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence: query [Tq, N, D], key [Tk, K, D], value [Tk, K, Dv], visible bool [Tq, Tk].

    Returns out [Tq, N, Dv] and lse [Tq, N]. A row that sees nothing: out 0, lse +inf.
    """
    group = query.shape[1] // key.shape[1]
    wide_key = key.double().repeat_interleave(group, 1)
    wide_value = value.double().repeat_interleave(group, 1)
    logits = torch.einsum("qnd,knd->nqk", query.double(), wide_key) * scale
    if visible is not None:
        logits = logits.masked_fill(~visible, -math.inf)
    lse = torch.logsumexp(logits, -1) if logits.shape[-1] else torch.full(logits.shape[:2], -math.inf).double()
    total = lse
    if sink is not None:
        total = torch.logaddexp(lse, sink.double().unsqueeze(1))
    weights = torch.exp(logits - torch.where(total.isinf(), torch.zeros_like(total), total).unsqueeze(-1))
    out = torch.einsum("nqk,knd->qnd", weights, wide_value)
    return out, torch.where(lse.isinf(), torch.full_like(lse, math.inf), lse).t()


def band(queries: int, keys: int, *, at_end: bool, before: float = math.inf, after: float = math.inf) -> torch.Tensor:
    """Which keys a query sees: from i + offset - before to i + offset + after."""
    offset = keys - queries if at_end else 0
    i = torch.arange(queries).view(-1, 1) + offset
    j = torch.arange(keys).view(1, -1)
    return (j <= i + after) & (j >= i - before)


def gather(cache: torch.Tensor, blocks: list[int], length: int) -> torch.Tensor:
    """The first ``length`` tokens of a sequence; cache [blocks, block_size, K, D]."""
    return torch.cat([cache[b] for b in blocks])[:length] if blocks else cache.new_empty(0, *cache.shape[2:])
