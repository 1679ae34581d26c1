"""GeGLU with the exact error function: the contract of ``split_batch::geglu``, on the CPU in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .errors import violation

GEGLU = "split_batch::geglu"
SCHEMAS = {GEGLU: "geglu(Tensor gate_up) -> Tensor"}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check(gate_up: Tensor) -> None:
    """Raise :class:`OpContractError` for the first rule that the argument's metadata break."""
    if gate_up.dtype not in DTYPES:
        raise violation(GEGLU, "dtype of gate_up", gate_up.dtype, "torch.bfloat16, torch.float16 or torch.float32")
    if gate_up.dim() < 1 or gate_up.shape[-1] % 2 or gate_up.shape[-1] == 0:
        raise violation(GEGLU, "shape of gate_up", tuple(gate_up.shape), "(..., 2 * width) with a width of at least 1")


def geglu(gate_up: Tensor) -> Tensor:
    """``gelu(gate) * up`` with ``gelu(g) = g * Phi(g) = 0.5 g erfc(-g / sqrt 2)``, rounded once.

    Hendrycks & Gimpel, "Gaussian error linear units", 2016; Shazeer, "GLU variants improve transformer", 2020.

    Args:
        gate_up: ``(..., 2 * width)`` bfloat16, float16 or float32: the gates, then what they gate.

    Returns:
        ``(..., width)``, contiguous, in the dtype of ``gate_up``. NaN where the gate is -inf, as ``F.gelu`` has it.

    Raises:
        OpContractError: another dtype, or a last dimension that is odd or empty.
    """
    check(gate_up)
    gate, up = gate_up.double().chunk(2, -1)
    return (0.5 * gate * torch.special.erfc(gate * -math.sqrt(0.5)) * up).to(gate_up.dtype).contiguous()


def geglu_meta(gate_up: Tensor) -> Tensor:
    """Shape and dtype of :func:`geglu`'s result."""
    check(gate_up)
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))
