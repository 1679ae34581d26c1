"""Shared by the kernel tests: float64 references and source mutants."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor


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


@pytest.fixture
def mutant() -> Iterator[Callable[[ModuleType, str, str], ModuleType]]:
    """Load a copy of a module with one piece of its source replaced; the piece must occur exactly once."""
    loaded: list[str] = []

    def make(module: ModuleType, old: str, new: str) -> ModuleType:
        path = Path(module.__file__ or "")
        source = path.read_text()
        assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {path.name}"
        name = f"{module.__package__}._mutant_{path.stem}_{len(loaded)}"
        spec = importlib.util.spec_from_loader(name, loader=None)
        assert spec is not None
        copy = importlib.util.module_from_spec(spec)
        copy.__package__ = module.__package__
        copy.__file__ = str(path)
        sys.modules[name] = copy
        loaded.append(name)
        exec(compile(source.replace(old, new), str(path), "exec"), copy.__dict__)
        return copy

    yield make
    for name in loaded:
        sys.modules.pop(name, None)
