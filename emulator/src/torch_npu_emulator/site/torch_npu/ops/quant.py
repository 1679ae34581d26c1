"""Quantising operators that the host traces when it compiles a 16-bit model's graph."""

from __future__ import annotations

import torch

from torch_npu.ops.norm import add_rms_norm
from torch_npu.ops.registry import emulates

INT8_MAX = 127.0
# How torch numbers its dtypes where an operator takes one as an int.
INT8, QINT8 = 1, 12


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


def _check_16_bit(op: str, x: torch.Tensor) -> None:
    if x.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"{op}: input of {x.dtype}: accepted are float16 and bfloat16")


def _check_row(op: str, name: str, row: torch.Tensor, size: int) -> None:
    if row.shape != (size,):
        raise RuntimeError(f"{op}: {name} {tuple(row.shape)} must be [{size}]")


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
    _check_16_bit(op, input)
    if input.dim() < 2:
        raise RuntimeError(f"{op}: input {tuple(input.shape)} must have two dimensions or more")
    _refuse(op, group_index=group_index)
    if dst_type not in (None, INT8):
        raise NotImplementedError(f"{op}: dst_type={dst_type} is not modelled, {INT8} (int8) is")
    if quant_mode != "pertoken":
        raise NotImplementedError(f"{op}: quant_mode={quant_mode!r} is not modelled")
    if dst_type_max != 0.0:
        raise NotImplementedError(f"{op}: dst_type_max={dst_type_max} is not modelled")
    if smooth_scales is None:
        return _dynamic_quant(input)
    _check_row(op, "smooth_scales", smooth_scales, input.shape[-1])
    return _dynamic_quant(input.float() * smooth_scales.float())


def _meta_add_rms_norm_dynamic_quant(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, **kwargs: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    (y1, scale1), (y2, scale2) = _meta_dynamic_quant(x1), _meta_dynamic_quant(x1)
    return y1, y2, torch.empty_like(x1), scale1, scale2


@emulates("npu_add_rms_norm_dynamic_quant", meta=_meta_add_rms_norm_dynamic_quant)
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

    y2 and scale2 belong to smooth_scale2; without it they are documented as invalid: zeros here.
    """
    op = "npu_add_rms_norm_dynamic_quant"
    _check_16_bit(op, x1)
    _refuse(op, smooth_scale2=smooth_scale2, y_dtype=y_dtype)
    if output_mask:
        raise NotImplementedError(f"{op}: output_mask={output_mask} is not modelled")
    y, _, x = add_rms_norm(x1, x2, gamma, epsilon)
    wide = y.float() if beta is None else y.float() + beta.float()
    if smooth_scale1 is not None:
        _check_row(op, "smooth_scale1", smooth_scale1, x1.shape[-1])
        wide = wide * smooth_scale1.float()
    quantised, scale = _dynamic_quant(wide)
    return quantised, torch.zeros_like(quantised), x, scale, torch.zeros_like(scale)


def _meta_add_rms_norm_quant(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, *args: object, **kwargs: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(x1, dtype=torch.int8), torch.empty_like(x1, dtype=torch.int8), torch.empty_like(x1)


@emulates("npu_add_rms_norm_quant", meta=_meta_add_rms_norm_quant)
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
    """The statically quantised norm of x1 + x2: (y1, y2, x1 + x2). y2 belongs to scales2: zeros here."""
    op = "npu_add_rms_norm_quant"
    _check_16_bit(op, x1)
    _refuse(op, scales2=scales2, zero_points2=zero_points2)
    if dst_type not in (None, INT8):
        raise NotImplementedError(f"{op}: dst_type={dst_type} is not modelled, {INT8} (int8) is")
    if axis != -1:
        raise NotImplementedError(f"{op}: axis={axis} is not modelled, -1 is")
    for name, row in (("scales1", scales1), ("zero_points1", zero_points1)):
        if row is not None and row.shape != gamma.shape and row.numel() != 1:
            raise RuntimeError(f"{op}: {name} {tuple(row.shape)} must be like gamma {tuple(gamma.shape)}")
    y, _, x = add_rms_norm(x1, x2, gamma, epsilon)
    wide = y if beta is None else y.float() + beta.float()
    quantised = _static_quant(wide, scales1, zero_points1, div_mode)
    return quantised, torch.zeros_like(quantised), x


def _meta_quantize(input: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return torch.empty_like(input, dtype=torch.int8)


@emulates("npu_quantize", meta=_meta_quantize)
def npu_quantize(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    """``x / scales + zero_points`` (``x * scales + zero_points`` where div_mode is off), rounded, as int8.

    dtype is torch.qint8, or without div_mode torch.int8 too (as their numbers); either way the result is int8.
    """
    op = "npu_quantize"
    if dtype not in ((QINT8,) if div_mode else (QINT8, INT8)):
        raise NotImplementedError(f"{op}: dtype={dtype} with div_mode={div_mode} is not modelled")
    # Without div_mode every axis above -2 means the last one.
    last = axis > -2 if not div_mode else axis in (-1, input.dim() - 1)
    if not last and scales.numel() > 1:
        raise NotImplementedError(f"{op}: axis={axis} of {tuple(input.shape)} is not modelled, the last one is")
    for name, row in (("scales", scales), ("zero_points", zero_points)):
        if row is not None and row.numel() not in (1, input.shape[-1]):
            raise RuntimeError(f"{op}: {name} {tuple(row.shape)} does not fit the last axis of {tuple(input.shape)}")
    return _static_quant(input, scales, zero_points, div_mode)
