"""Quantising operators that the host traces when it compiles a 16-bit model's graph."""

from __future__ import annotations

import torch

from torch_npu.ops.norm import add_rms_norm
from torch_npu.ops.registry import emulates

INT8_MAX = 127.0


def _refuse(op: str, **arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{op}: {name} is not modelled")


def _dynamic_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Per token: ``scale = max|x| / 127``, ``y = round(x / scale)``; int8 and float32."""
    wide = x.float()
    scale = wide.abs().amax(-1) / INT8_MAX
    return torch.round(wide / scale.unsqueeze(-1)).nan_to_num_(0.0).to(torch.int8), scale


def _static_quant(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, div_mode: bool
) -> torch.Tensor:
    scaled = x.float() / scale.float() if div_mode else x.float() * scale.float()
    if zero_point is not None:
        scaled = scaled + zero_point.float()
    return torch.round(scaled).clamp_(-128, 127).to(torch.int8)


def _meta_dynamic_quant(input: torch.Tensor, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(input, dtype=torch.int8), input.new_empty(input.shape[:-1], dtype=torch.float32)


@emulates("npu_dynamic_quant", meta=_meta_dynamic_quant)
def npu_dynamic_quant(
    input: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    op = "npu_dynamic_quant"
    _refuse(op, group_index=group_index, dst_type=dst_type)
    if quant_mode != "pertoken":
        raise NotImplementedError(f"{op}: quant_mode={quant_mode!r} is not modelled")
    if dst_type_max != 0.0:
        raise NotImplementedError(f"{op}: dst_type_max={dst_type_max} is not modelled")
    x = input.float() if smooth_scales is None else input.float() * smooth_scales.float()
    return _dynamic_quant(x)


@emulates("npu_add_rms_norm_dynamic_quant")
def npu_add_rms_norm_dynamic_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    *,
    smooth_scale1: torch.Tensor | None = None,
    smooth_scale2: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: list[bool] | None = None,
    y_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The dynamically quantised norm of x1 + x2: (y1, y2, x1 + x2, scale1, scale2).

    y2 and scale2 belong to smooth_scale2; without it they are one-element tensors without meaning.
    """
    op = "npu_add_rms_norm_dynamic_quant"
    _refuse(op, smooth_scale2=smooth_scale2, y_dtype=y_dtype)
    if output_mask:
        raise NotImplementedError(f"{op}: output_mask={output_mask} is not modelled")
    y, _, x = add_rms_norm(x1, x2, gamma, epsilon)
    wide = y.float() if beta is None else y.float() + beta.float()
    quantised, scale = _dynamic_quant(wide if smooth_scale1 is None else wide * smooth_scale1.float())
    return quantised, quantised.new_zeros(1), x, scale, scale.new_zeros(1)


@emulates("npu_add_rms_norm_quant")
def npu_add_rms_norm_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    scales1: torch.Tensor,
    zero_points1: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    scales2: torch.Tensor | None = None,
    zero_points2: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The statically quantised norm of x1 + x2: (y1, y2, x1 + x2). y2 belongs to scales2."""
    op = "npu_add_rms_norm_quant"
    _refuse(op, scales2=scales2, zero_points2=zero_points2, dst_type=dst_type)
    if axis != -1:
        raise NotImplementedError(f"{op}: axis={axis} is not modelled")
    y, _, x = add_rms_norm(x1, x2, gamma, epsilon)
    wide = y if beta is None else y.float() + beta.float()
    quantised = _static_quant(wide, scales1, zero_points1, div_mode)
    return quantised, torch.zeros_like(quantised), x


@emulates("npu_quantize")
def npu_quantize(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    """``round(x / scales + zero_points)`` (or ``x * scales`` where div_mode is off) as int8."""
    # The published package passes dtypes as ScalarType numbers: 1 is int8; torch's own numbering is the same there.
    if dtype != 1:
        raise NotImplementedError(f"npu_quantize: dtype={dtype} is not modelled, 1 (int8) is")
    if axis not in (-1, input.dim() - 1) and scales.numel() > 1:
        raise NotImplementedError(f"npu_quantize: axis={axis} of {tuple(input.shape)} is not modelled, the last one is")
    return _static_quant(input, scales, zero_points, div_mode)
