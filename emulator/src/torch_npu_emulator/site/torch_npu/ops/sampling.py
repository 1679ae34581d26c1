"""Top-k and top-p filtering of logits."""

from __future__ import annotations

import torch

from torch_npu.ops.registry import emulates


@emulates("npu_top_k_top_p", meta=lambda logits, *args, **kwargs: torch.empty_like(logits))
def npu_top_k_top_p(logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None) -> torch.Tensor:
    """``logits [B, V]`` with -inf for what top-k and then top-p leave out; ``p [B]``, ``k [B]``.

    In ascending order: values below the k-th largest go; then the smallest values whose cumulated probability (of the
    softmax after top-k) does not exceed ``1 - p`` go; the largest stays always. Values equal to the k-th largest stay.
    """
    if logits.dim() != 2:
        raise RuntimeError(f"npu_top_k_top_p: logits must be [B, V], got {tuple(logits.shape)}")
    batch, size = logits.shape
    if p is not None and (p.dtype != logits.dtype or p.shape != (batch,)):
        raise RuntimeError(f"npu_top_k_top_p: p {tuple(p.shape)} of {p.dtype} must be [{batch}] of {logits.dtype}")
    if k is not None and (k.dtype != torch.int32 or k.shape != (batch,)):
        raise RuntimeError(f"npu_top_k_top_p: k {tuple(k.shape)} of {k.dtype} must be [{batch}] of int32")
    if k is not None and batch and not 1 <= int(k.min()) <= int(k.max()) <= size:
        raise RuntimeError(f"npu_top_k_top_p: k {k.tolist()} must be from 1 to the size of a row, {size}")
    values, order = logits.sort(dim=-1, stable=True)
    if k is not None:
        last = values.gather(1, (size - k.long()).unsqueeze(1))
        values = values.masked_fill(values < last, float("-inf"))
    if p is not None:
        cumulated = values.float().softmax(-1).cumsum(-1)
        left_out = cumulated <= 1 - p.float().unsqueeze(1)
        left_out[:, -1] = False
        values = values.masked_fill(left_out, float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, values)
