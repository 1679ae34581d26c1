"""Random numbers: the emulated devices draw from torch's CPU generator.

Seeds are reproducible, but give other numbers than an NPU does.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_npu.npu.devices import index_of


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


manual_seed_all = manual_seed


def initial_seed() -> int:
    return int(torch.default_generator.initial_seed())


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    index_of(device)
    return torch.default_generator.get_state()


def set_rng_state(state: torch.Tensor, device: Any = "npu") -> None:
    index_of(device)
    torch.default_generator.set_state(state)
