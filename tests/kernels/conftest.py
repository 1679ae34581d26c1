"""Shared by the kernel tests: the float64 reference and source mutants."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.triton_mutants import triton_mutant as triton_mutant
from tests.mutants import mutant as mutant


def dense_attention(
    query: Tensor, key: Tensor, value: Tensor, block_table: Tensor, q_lengths: list[int], kv_lengths: list[int]
) -> tuple[Tensor, Tensor]:
    """Softmax attention written out in float64 for one (row, head) at a time: ``out`` (T, H, D), ``lse`` (T, H)."""
    tokens, heads, head_size = query.shape
    page, kv_heads = key.shape[1], key.shape[2]
    out = torch.zeros(tokens, heads, head_size, dtype=torch.float64)
    lse = torch.zeros(tokens, heads, dtype=torch.float64)
    row = 0
    for sequence, (rows, keys) in enumerate(zip(q_lengths, kv_lengths, strict=True)):
        slots = [(int(block_table[sequence, j // page]), j % page) for j in range(keys)]
        k = torch.stack([key[block, slot] for block, slot in slots]).double()
        v = torch.stack([value[block, slot] for block, slot in slots]).double()
        for _ in range(rows):
            for head in range(heads):
                group = head // (heads // kv_heads)
                scores = k[:, group] @ query[row, head].double() / math.sqrt(head_size)
                lse[row, head] = torch.logsumexp(scores, 0)
                out[row, head] = torch.softmax(scores, 0) @ v[:, group]
            row += 1
    return out, lse


@pytest.fixture(scope="session")
def dense() -> Callable[..., tuple[Tensor, Tensor]]:
    return dense_attention
