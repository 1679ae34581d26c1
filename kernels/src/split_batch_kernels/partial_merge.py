"""Reference of the merges that also return the log-sum-exp: ``split_batch::attention_merge`` and its ``_stack``."""

from __future__ import annotations

import torch
from torch import Tensor

from .cascade_checks import check_attention_merge, check_attention_merge_stack, check_merge_result, merge_results
from .schemas import ATTENTION_MERGE, ATTENTION_MERGE_STACK


def merge_stack(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """The merge of N attention partials over disjoint keys, row by row, in float32.

    With ``w_i = exp(lse_i - max_j lse_j)``: ``out = sum_i w_i out_i / sum_i w_i`` and
    ``lse = max_j lse_j + ln(sum_i w_i)``, the softmax over the keys of all partials.

    The function is total. A partial whose log-sum-exp is not finite saw no key: its output is not used at all, whatever
    it holds; nor is one whose weight is zero in float32. All empty: zeros and ``-inf``. Where one partial alone has a
    weight the result is that partial, bit for bit; two partials commute bit for bit.

    Args:
        outs: ``(N, ..., D)`` of any float type, any strides. lses: ``(N, ...)``, natural logarithm.

    Returns:
        ``out`` ``(..., D)`` and ``lse`` ``(...)``, both float32.
    """
    empty = torch.full((), -torch.inf, dtype=torch.float32, device=lses.device)
    levels = torch.where(torch.isfinite(lses), lses.to(torch.float32), empty)
    peak = levels.amax(0)
    shift = torch.where(torch.isneginf(peak), torch.zeros_like(peak), peak)
    weights = torch.exp(levels - shift)
    total = weights.sum(0)
    # Select, not multiply: zero weight times NaN would be NaN, and -0.0 + 0.0 would lose the sign.
    single = torch.zeros(outs.shape[1:], dtype=torch.float32, device=outs.device)
    mixed = torch.zeros_like(single)
    for out, weight in zip(outs, weights, strict=True):
        used, values = (weight > 0).unsqueeze(-1), out.to(torch.float32)
        mixed = mixed + torch.where(used, values * weight.unsqueeze(-1), torch.zeros_like(values))
        single = torch.where(used, values, single)
    several = ((weights > 0).sum(0) > 1).unsqueeze(-1)
    merged = torch.where(several, mixed / total.unsqueeze(-1), single)
    return merged, torch.where(total > 0, shift + torch.log(total), empty)


def attention_merge_out(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor, *, out: Tensor, lse: Tensor) -> None:
    """:func:`attention_merge` into ``out`` (the shape of ``o1``, any float type) and ``lse`` float32, both contiguous.

    ``out`` may be ``o1`` or ``o2`` itself, ``lse`` likewise; an overlap of another kind is refused.
    """
    check_attention_merge(o1, lse1, o2, lse2)
    check_merge_result(ATTENTION_MERGE, out, lse, ("o1", o1), (o1, o2))
    _write_merge(*_stacked(o1, lse1, o2, lse2), out, lse)


def _stacked(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    return torch.stack((o1.to(torch.float32), o2.to(torch.float32))), torch.stack((lse1, lse2))


def _write_merge(outs: Tensor, lses: Tensor, out: Tensor, lse: Tensor) -> None:
    merged, merged_lse = merge_stack(outs, lses)
    out.copy_(merged)
    lse.copy_(merged_lse)


def attention_merge(
    o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor, *, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Merge two attention partials; the formula and what is empty: :func:`merge_stack`.

    Args:
        o1: ``(..., D)``, bfloat16, float16 or float32, ``D`` a multiple of 16, any strides.
        lse1: ``(...)`` float32, natural logarithm, any strides: eight copies of each value, as stage 1 writes them, are
            passed as the view ``lse.view(-1, 8)[:, 0].view(T, H)``.
        o2, lse2: likewise; o2 may have another type.
        out_dtype: of the result; that of ``o1`` by default.

    Returns:
        ``out`` ``(..., D)`` and ``lse`` ``(...)`` float32, contiguous.

    Raises:
        OpContractError: a rule above is broken.
    """
    out, lse = attention_merge_meta(o1, lse1, o2, lse2, out_dtype=out_dtype)
    _write_merge(*_stacked(o1, lse1, o2, lse2), out, lse)
    return out, lse


def attention_merge_stack_out(outs: Tensor, lses: Tensor, *, out: Tensor, lse: Tensor) -> None:
    """:func:`attention_merge_stack` into ``out`` and ``lse``, as :func:`attention_merge_out`; ``out`` may be a part."""
    check_attention_merge_stack(outs, lses)
    check_merge_result(ATTENTION_MERGE_STACK, out, lse, ("outs[0]", outs[0]), outs.unbind())
    _write_merge(outs, lses, out, lse)


def attention_merge_stack(
    outs: Tensor, lses: Tensor, *, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Merge N partials of one type; the formula and what is empty: :func:`merge_stack`.

    Args:
        outs: ``(N, ..., D)``, N at least 1. lses: ``(N, ...)`` float32. Otherwise as :func:`attention_merge`.

    Returns:
        ``out`` ``(..., D)`` of ``out_dtype`` (default: that of ``outs``) and ``lse`` ``(...)`` float32.
    """
    out, lse = attention_merge_stack_meta(outs, lses, out_dtype=out_dtype)
    _write_merge(outs, lses, out, lse)
    return out, lse


def attention_merge_meta(
    o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor, *, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Shapes and dtypes of :func:`attention_merge`, with its checks."""
    check_attention_merge(o1, lse1, o2, lse2)
    return merge_results(ATTENTION_MERGE, o1, out_dtype)


def attention_merge_out_meta(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor, *, out: Tensor, lse: Tensor) -> None:
    check_attention_merge(o1, lse1, o2, lse2)
    check_merge_result(ATTENTION_MERGE, out, lse, ("o1", o1), ())


def attention_merge_stack_meta(
    outs: Tensor, lses: Tensor, *, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Shapes and dtypes of :func:`attention_merge_stack`, with its checks."""
    check_attention_merge_stack(outs, lses)
    return merge_results(ATTENTION_MERGE_STACK, outs[0], out_dtype)


def attention_merge_stack_out_meta(outs: Tensor, lses: Tensor, *, out: Tensor, lse: Tensor) -> None:
    check_attention_merge_stack(outs, lses)
    check_merge_result(ATTENTION_MERGE_STACK, out, lse, ("outs[0]", outs[0]), ())
