"""What a row's draws must be distributed like, in float64: from a sorted row, and nothing of the drawing code.

The check of the ops, on the CPU. ``O(V log V)`` a row.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weights_of(scores: Tensor, logits: bool = True) -> Tensor:
    """The weights of one row ``(vocabulary,)`` in float64; what cannot be drawn has none."""
    values = scores.double()
    if not logits:
        return torch.where(values > 0, values, 0.0)
    values = torch.where(values.isnan(), float("-inf"), values).clamp(max=torch.finfo(torch.float32).max)
    top = values.max()
    return torch.zeros_like(values) if top.isneginf() else torch.exp(values - top)


def kept(weights: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Which tokens of one row belong to the kept set: bool ``(vocabulary,)``.

    Kept are tokens with fewer than ``top_k`` heavier ones and less than ``top_p`` of the row's mass in heavier ones,
    and the heaviest in any case. ``None``, a top_k below 1 and a top_p of at least 1 drop nothing.
    """
    ascending, order = weights.sort()
    # How many tokens are at most as heavy: equal weights get the same number.
    at_most = torch.searchsorted(ascending, ascending, right=True)
    heavier = len(weights) - at_most
    running = torch.cat([ascending.new_zeros(1), ascending.flip(0).cumsum(0)])
    mass_of_heavier = running[heavier]
    keep = torch.ones_like(heavier, dtype=torch.bool)
    if top_k is not None and top_k >= 1:
        keep &= heavier < top_k
    if top_p is not None and not top_p >= 1:
        keep &= mass_of_heavier < top_p * running[-1]
    keep |= heavier == 0
    return torch.empty_like(keep).scatter_(0, order, keep)


def probabilities(
    scores: Tensor, top_k: int | None = None, top_p: float | None = None, logits: bool = True
) -> Tensor:
    """The probability of each token of one row: float64 ``(vocabulary,)``; all zero where nothing can be drawn.

    ``top_p`` is rounded to float32 first, as the ops take it.
    """
    weights = weights_of(scores, logits)
    share = None if top_p is None else float(torch.tensor(top_p, dtype=torch.float32))
    weights = torch.where(kept(weights, top_k, share), weights, 0.0)
    total = weights.sum()
    return weights / total if total > 0 else weights
