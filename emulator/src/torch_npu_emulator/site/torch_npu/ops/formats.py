"""Memory formats, and the warm-up product of the ATB library. The emulated device holds ND tensors alone."""

from __future__ import annotations

import torch

from torch_npu.ops.registry import emulates

ND = 2


@emulates("npu_format_cast", meta=lambda input, *args, **kwargs: torch.empty_like(input))
def npu_format_cast(
    input: torch.Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """A copy of ``input`` in another memory format; ND is the one there is."""
    if acl_format != ND:
        raise NotImplementedError(f"npu_format_cast: memory format {acl_format} is not modelled, ND ({ND}) is")
    if customize_dtype is not None or input_dtype is not None:
        raise NotImplementedError("npu_format_cast: customize_dtype and input_dtype are not modelled")
    return input.clone()


@emulates("get_npu_format", meta=lambda input: ND)
def get_npu_format(input: torch.Tensor) -> int:
    return ND


@emulates("_npu_matmul_add_fp32", meta=lambda *args: None)
def _npu_matmul_add_fp32(x: torch.Tensor, weight: torch.Tensor, C: torch.Tensor) -> None:
    """``C += x^T weight`` in float32: the product of gradient accumulation, which the host uses to warm ATB up."""
    if C.dtype != torch.float32:
        raise RuntimeError(f"_npu_matmul_add_fp32: C must be float32, got {C.dtype}")
    C.add_(x.float().t() @ weight.float())
