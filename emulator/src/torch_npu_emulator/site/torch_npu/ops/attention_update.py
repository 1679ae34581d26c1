"""The merge of partial attention results by their log-sum-exp."""

from __future__ import annotations

import torch

from torch_npu.emulator import oplog
from torch_npu.ops.registry import emulates


def _meta(
    lse: list[torch.Tensor], local_out: list[torch.Tensor], update_type: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return torch.empty_like(local_out[0]), torch.empty_like(lse[0]) if update_type == 1 else None


@emulates("npu_attention_update", meta=_meta)
def npu_attention_update(
    lse: list[torch.Tensor], local_out: list[torch.Tensor], update_type: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Merges 1 to 16 partial results: ``lse_i [rows]`` float32, natural logarithm; ``out_i [rows, D]``.

    ``m = max lse_i``, ``L = m + log(sum exp(lse_i - m))``, ``out = sum out_i exp(lse_i - L)``, as the operator's
    document gives it: a row whose lse_i are all -inf, or one of which is +inf, becomes NaN. ``L`` is returned for
    ``update_type`` 1; for 0 there is no second result.
    """
    op = "npu_attention_update"
    if not 1 <= len(lse) <= 16 or len(lse) != len(local_out):
        raise RuntimeError(f"{op}: takes 1 to 16 pairs of lse and local_out, got {len(lse)} and {len(local_out)}")
    if update_type not in (0, 1):
        raise RuntimeError(f"{op}: update_type={update_type}: accepted are 0 and 1")
    first = local_out[0]
    if first.dim() != 2 or not 8 <= first.shape[1] <= 512 or first.shape[1] % 8:
        raise RuntimeError(f"{op}: local_out {tuple(first.shape)} must be [rows, D], D a multiple of 8 up to 512")
    if first.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise RuntimeError(f"{op}: local_out of {first.dtype}: accepted are float32, float16, bfloat16")
    for one_lse, one_out in zip(lse, local_out, strict=True):
        if one_out.shape != first.shape or one_out.dtype != first.dtype:
            raise RuntimeError(f"{op}: the tensors of local_out must be alike")
        if one_lse.shape != first.shape[:1] or one_lse.dtype != torch.float32:
            raise RuntimeError(
                f"{op}: lse {tuple(one_lse.shape)} of {one_lse.dtype} must be [{first.shape[0]}] of float32"
            )
        if not (one_lse.is_contiguous() and one_out.is_contiguous()):
            raise RuntimeError(f"{op}: lse and local_out must be contiguous")
    stacked = torch.stack(lse)
    maximum = stacked.amax(0)
    total = maximum + torch.exp(stacked - maximum).sum(0).log_()
    weights = torch.exp(stacked - total).unsqueeze(-1)
    if oplog.active():
        oplog.write(f"npu::{op}", layout="rows", query_rows=first.shape[0], lse=update_type == 1)
    out = (torch.stack(local_out).float() * weights).sum(0).to(first.dtype)
    return out, (total if update_type == 1 else None)
