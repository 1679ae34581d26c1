"""Philox4x32-10 on integer tensors: counter-based random words, the same on every device and in every process.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUND = (0xD2511F53, 0xCD9E8D57)
_KEY = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def _product(a: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of the product of 32-bit numbers held in int64, which has no room for all 64 bits."""
    high, low = constant >> 16, constant & 0xFFFF
    return (a * high + (a * low >> 16)) >> 16, (a * constant) & _MASK


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random 32-bit words for each counter of four words and key of two; everything int64, of one shape."""
    c0, c1, c2, c3 = (word & _MASK for word in counter)
    k0, k1 = (word & _MASK for word in key)
    for _ in range(10):
        high0, low0 = _product(c0, _ROUND[0])
        high1, low1 = _product(c2, _ROUND[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY[0]) & _MASK, (k1 + _KEY[1]) & _MASK
    return c0, c1, c2, c3


def uniform_pair(key: tuple[Tensor, Tensor], step: Tensor, lane: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers in [0, 1), multiples of 2**-24, at the counter ``(step, lane, turn, 0)``: float64 of that shape."""
    first, second, _, _ = philox4x32((step, lane, turn, torch.zeros_like(turn)), key)
    return (first >> 8).double() / 2**24, (second >> 8).double() / 2**24
