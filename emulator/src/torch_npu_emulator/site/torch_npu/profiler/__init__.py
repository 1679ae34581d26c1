"""The profiler's names. Profiling itself is not modelled: making a profiler raises."""

from __future__ import annotations

import enum


class ProfilerActivity(enum.Enum):
    CPU = 0
    NPU = 1


def _not_modelled(what: str) -> NotImplementedError:
    return NotImplementedError(f"torch_npu.profiler.{what}: profiling is not modelled by the emulated NPU")


class profile:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise _not_modelled("profile")


class _ExperimentalConfig:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise _not_modelled("_ExperimentalConfig")


def tensorboard_trace_handler(*args: object, **kwargs: object) -> None:
    raise _not_modelled("tensorboard_trace_handler")


def __getattr__(name: str) -> object:
    raise AttributeError(f"torch_npu.profiler.{name}: profiling is not modelled by the emulated NPU")
