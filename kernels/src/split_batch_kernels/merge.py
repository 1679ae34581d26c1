"""Merge of two partial attention results by their log-sum-exp (``npu::lse_merge``)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .checks import check_merge, merge_dtype


def merge_partials(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Combine two attention partials over disjoint keys, row by row, in float32.

    With ``w = softmax(lse_1, lse_2)``: ``out = w_1 o_1 + w_2 o_2`` and ``lse = ln(exp(lse_1) + exp(lse_2))``, which is
    attention over all keys of both partials.

    The function is total. A partial whose log-sum-exp is not finite (NaN or an infinity of either sign) saw no key:
    its output is not used at all, so that whatever an unwritten buffer holds cannot reach the result. Both empty:
    zeros and ``-inf``. Merging with an empty partial returns the other one bit for bit, and the two arguments commute
    bit for bit.

    Args:
        o1: ``(rows, D)`` of any float dtype. o2: the same shape.
        lse1: ``(rows,)``, natural logarithm. lse2: the same shape.

    Returns:
        ``out`` ``(rows, D)`` and ``lse`` ``(rows,)``, both float32.
    """
    levels = _levels(lse1, lse2)
    highest = levels.amax(0)
    lse = torch.where(torch.isneginf(levels.amin(0)), highest, torch.logsumexp(levels, 0))  # -0.0 keeps its sign, too
    return _merge(o1, o2, levels), lse


def _levels(lse1: Tensor, lse2: Tensor) -> Tensor:
    """Both log-sum-exps as ``(2, rows)``, float32, ``-inf`` wherever a partial is empty."""
    levels = torch.stack((lse1, lse2)).to(torch.float32)
    return torch.nan_to_num(levels, nan=-math.inf, posinf=-math.inf, neginf=-math.inf)


def _merge(o1: Tensor, o2: Tensor, levels: Tensor) -> Tensor:
    first, second = o1.to(torch.float32), o2.to(torch.float32)
    weights = torch.softmax(levels, 0).unsqueeze(-1)  # NaN where both are empty
    mixed = (first * weights[0]).add_(second * weights[1])
    used = weights > 0
    if bool(used.all()):
        return mixed
    # Select, not multiply: zero weight times NaN would be NaN, and -0.0 + 0.0 would lose the sign.
    single = torch.where(used[0], first, torch.where(used[1], second, torch.zeros_like(second)))
    return torch.where(used.all(0), mixed, single)


def lse_merge(o1: Tensor, o2: Tensor, lse1: Tensor, lse2: Tensor, out_code: int = 0) -> Tensor:
    """Merge two attention partials; see :func:`merge_partials` for the formula and for empty partials.

    Args:
        o1: ``(..., D)``, bfloat16, float16 or float32, contiguous, ``D`` a multiple of 16.
        o2: the same number of rows of ``D`` values, any of the three dtypes, contiguous.
        lse1: float32, contiguous, natural logarithm; one value per row, or 8 equal ones as stage 1 writes them, of
            which the first is read. The number of values decides. Its shape does not matter.
        lse2: likewise, on its own.
        out_code: dtype of the result: 0 that of ``o1``, 1 bfloat16, 2 float32.

    Returns:
        A new tensor of the shape of ``o1``.

    Raises:
        OpContractError: a rule above is broken.
    """
    stride1, stride2 = check_merge(o1, o2, lse1, lse2, out_code)
    head_size = o1.shape[-1]
    levels = _levels(lse1.view(-1, stride1)[:, 0], lse2.view(-1, stride2)[:, 0])
    merged = _merge(o1.view(-1, head_size), o2.view(-1, head_size), levels)
    return merged.view(o1.shape).to(merge_dtype(o1, out_code))


def lse_merge_meta(o1: Tensor, o2: Tensor, lse1: Tensor, lse2: Tensor, out_code: int = 0) -> Tensor:
    """Shape and dtype of :func:`lse_merge`, with all of its checks."""
    check_merge(o1, o2, lse1, lse2, out_code)
    return o1.new_empty(o1.shape, dtype=merge_dtype(o1, out_code))
