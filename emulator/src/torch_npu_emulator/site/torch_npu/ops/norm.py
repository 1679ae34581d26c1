"""RMS norms. Computed in float32, cast to the input's dtype at the end."""

from __future__ import annotations

import torch

from torch_npu.ops.registry import emulates

#: Types that the compiled forms of row operators take.
COMPILED = (torch.float32, torch.bfloat16, torch.float16)


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """``y = x / rms(x) * gamma`` over the dimensions of ``gamma``, and ``rstd = 1 / rms(x)`` in float32.

    ``rms(x) = sqrt(mean(x^2) + epsilon)``. x ``[..., *gamma.shape]``; y has the dtype of x; rstd keeps the normalised
    dimensions with size 1.
    """
    dims = gamma.dim()
    if dims == 0 or x.shape[x.dim() - dims :] != gamma.shape:
        raise RuntimeError(f"rms_norm: gamma {tuple(gamma.shape)} must be the last dimensions of x {tuple(x.shape)}")
    if _compiled_takes(x, gamma):
        y, rstd, _ = _compiled(x, None, gamma, epsilon)
        return y, rstd
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(tuple(range(-dims, 0)), keepdim=True).add_(epsilon))
    return (wide * rstd).mul_(gamma.float()).to(x.dtype), rstd


def _compiled_takes(x: torch.Tensor, gamma: torch.Tensor) -> bool:
    """Whether the compiled form takes the tensors; torch's own operators take all."""
    return bool(x.is_contiguous() and gamma.is_contiguous() and x.dtype == gamma.dtype) and x.dtype in COMPILED


def _compiled(
    x: torch.Tensor, added: torch.Tensor | None, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The norm of ``x + added``, its rstd, and that sum (x itself where nothing is added)."""
    y, total = torch.empty_like(x), x if added is None else torch.empty_like(x)
    rstd = _meta_rms_norm(x, gamma)[1]
    torch.ops.npu_emulator.rms_norm(x, added, gamma, epsilon, y, rstd, None if added is None else total)
    return y, rstd, total


def _meta_rms_norm(
    input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    kept = input.shape[: input.dim() - gamma.dim()]
    return torch.empty_like(input), input.new_empty([*kept, *[1] * gamma.dim()], dtype=torch.float32)


@emulates("npu_rms_norm", meta=_meta_rms_norm)
def npu_rms_norm(input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    return rms_norm(input, gamma, epsilon)


def _meta_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, rstd = _meta_rms_norm(x1, gamma)
    return y, rstd, torch.empty_like(x1)


def add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The norm of ``x = x1 + x2``, its rstd, and x. The sum is rounded to the input's dtype before it is normalised."""
    if x1.shape != x2.shape or x1.dtype != x2.dtype:
        raise RuntimeError(
            f"add_rms_norm: x1 {tuple(x1.shape)} {x1.dtype} and x2 {tuple(x2.shape)} {x2.dtype} must be alike"
        )
    if x1.shape[x1.dim() - gamma.dim() :] == gamma.shape and x2.is_contiguous() and _compiled_takes(x1, gamma):
        return _compiled(x1, x2, gamma, epsilon)
    x = x1 + x2
    y, rstd = rms_norm(x, gamma, epsilon)
    return y, rstd, x


@emulates("npu_add_rms_norm", meta=_meta_add_rms_norm)
def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return add_rms_norm(x1, x2, gamma, epsilon)
