"""Activations. Computed in float32, cast to the input's dtype at the end."""

from __future__ import annotations

import torch

from torch_npu.ops.norm import COMPILED
from torch_npu.ops.registry import emulates


def _meta_swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    shape = list(input.shape)
    shape[dim] //= 2
    return input.new_empty(shape)


@emulates("npu_swiglu", meta=_meta_swiglu)
def npu_swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``silu(a) * b`` for the halves a, b of ``input`` along ``dim``."""
    if input.shape[dim] % 2:
        raise RuntimeError(f"npu_swiglu: dimension {dim} of {tuple(input.shape)} must be even")
    if dim in (-1, input.dim() - 1) and input.is_contiguous() and input.dtype in COMPILED:
        out = _meta_swiglu(input)
        torch.ops.npu_emulator.swiglu(input, out)
        return out
    gate, up = input.float().chunk(2, dim)
    return (torch.nn.functional.silu(gate) * up).to(input.dtype)


@emulates("npu_fast_gelu", meta=torch.empty_like)
def npu_fast_gelu(input: torch.Tensor) -> torch.Tensor:
    """``x / (1 + exp(-1.702 x))``, the formula of the Atlas A2."""
    x = input.float()
    return (x * torch.sigmoid(1.702 * x)).to(input.dtype)
