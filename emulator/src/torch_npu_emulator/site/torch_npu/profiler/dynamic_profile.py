"""Dynamic profiling: the host calls `step` in every worker step, which without `init` does nothing."""

from __future__ import annotations

from typing import NoReturn


def init(*args: object, **kwargs: object) -> NoReturn:
    raise NotImplementedError("torch_npu.profiler.dynamic_profile.init: profiling is not modelled by the emulated NPU")


def step() -> None:
    """No dynamic profile can have been started."""
