"""Rotary tables in float64, from the published formulas."""

from __future__ import annotations

import math

import torch


def inverse_frequencies(size: int, base: float) -> torch.Tensor:
    """base^(-2i/size), float64 [size / 2]."""
    return base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)


def llama3(size: int, base: float, factor: float, low: float, high: float, original: int) -> torch.Tensor:
    """Frequencies of Llama 3.1: kept below one wavelength, divided by `factor` above another, blended between."""
    kept = inverse_frequencies(size, base)
    turns = original * kept / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * (blend + (1 - blend) / factor)


def yarn(size: int, base: float, factor: float, original: int, *, truncate: bool = True) -> torch.Tensor:
    """Frequencies of YaRN (Peng et al. 2023) with 32 and 1 rotations as bounds of its ramp."""

    def dimension(rotations: float) -> float:
        return size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(32), dimension(1)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = ((torch.arange(size // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    kept = inverse_frequencies(size, base)
    return kept * (1 - ramp) + kept / factor * ramp


def table(frequencies: torch.Tensor, positions: int, scale: float = 1.0) -> torch.Tensor:
    """Cosines, then sines, of position x frequency: float64 [positions, 2 * frequencies]."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    return torch.cat((angles.cos(), angles.sin()), -1) * scale


def yarn_scale(factor: float) -> float:
    """What YaRN multiplies cosines and sines by."""
    return 0.1 * math.log(factor) + 1


def rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [tokens, heads, size] by halves with cos_sin [tokens, size], in float64."""
    cos, sin = cos_sin.double().unsqueeze(1).chunk(2, -1)
    a, b = x.double().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
