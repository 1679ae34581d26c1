"""The compiled backend: loads it, and names the C functions that Python steers it with."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable
from typing import Any

import torch

from torch_npu.emulator import settings


def _load() -> ctypes.CDLL:
    path = os.environ.get("NPU_EMU_BACKEND")
    if not path:
        raise ImportError(
            "the emulated NPU was found on the path but not its compiled backend: start the command with "
            "'python -m torch_npu_emulator -- COMMAND'"
        )
    built_for = os.path.basename(path).split("-")[1].removeprefix("torch")
    if built_for != torch.__version__.replace("+", "_"):
        raise ImportError(
            f"the emulated NPU's backend was built for torch {built_for}, this process has torch {torch.__version__}: "
            "start the command with the torch_npu_emulator of its own environment"
        )
    torch.ops.load_library(path)
    return ctypes.CDLL(path)


_library = _load()
_library.npu_emulator_init.argtypes = [ctypes.c_int, ctypes.c_int64]
_library.npu_emulator_bind.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
_library.npu_emulator_count_launch.argtypes = [ctypes.c_char_p]
_library.npu_emulator_count_kv_bytes.argtypes = [ctypes.c_int64, ctypes.c_int64]
_library.npu_emulator_use_direct_form.argtypes = [ctypes.c_char_p, ctypes.c_int]
_library.npu_emulator_allocated.restype = ctypes.c_int64
_library.npu_emulator_peak.restype = ctypes.c_int64
_library.npu_emulator_counters.restype = ctypes.c_char_p
_library.npu_emulator_set_stream.argtypes = [ctypes.c_int64, ctypes.c_int64]
_library.npu_emulator_init(settings.DEVICES, settings.DEVICE_BYTES)

current_device: Any = _library.npu_emulator_current_device
set_device: Any = _library.npu_emulator_set_device
allocated: Any = _library.npu_emulator_allocated
peak: Any = _library.npu_emulator_peak
reset_peak: Any = _library.npu_emulator_reset_peak
add_kv_bytes: Any = _library.npu_emulator_count_kv_bytes
count_synchronize: Any = _library.npu_emulator_count_synchronize
set_stream: Any = _library.npu_emulator_set_stream
replaying: Any = _library.npu_emulator_replaying
capturing: Any = _library.npu_emulator_capturing
forget_attention_plans: Any = _library.npu_emulator_forget_attention_plans
reset_counters: Any = _library.npu_emulator_reset_counters


# Faults of graphs by the backend's numbers (backend/faults.h).
_GRAPH_FAULTS = {"ignore_task_update": 1, "stale_event": 2, "no_poison": 4, "skip_replay": 8}


def set_graph_faults(names: Iterable[str]) -> None:
    """Switches the faults of graphs on that are named, and all others off; names of other faults are ignored."""
    _library.npu_emulator_set_faults(sum(_GRAPH_FAULTS.get(name, 0) for name in names))


trace_poison: Any = _library.npu_emulator_trace_poison
set_graph_faults(settings.ACTIVE_FAULTS)
trace_poison(settings.TRACE_POISON)


def bind(library: str, name: str) -> None:
    """Gives the operator ``library::name`` a kernel for npu tensors: the one registered under PrivateUse2."""
    _library.npu_emulator_bind(library.encode(), name.encode())


def use_direct_form(name: str, on: bool = True) -> None:
    """Switches a compiled form of an operator on or off that the backend has beside the emulation in Python."""
    if not _library.npu_emulator_use_direct_form(name.encode(), on):
        raise KeyError(f"{name} has no compiled form")


def count_launch(name: str) -> None:
    """Counts a launch of something that is no torch operator (a Triton kernel)."""
    _library.npu_emulator_count_launch(name.encode())


def counters() -> dict[str, Any]:
    """The backend's counters since the process started or the last reset."""
    counted: dict[str, Any] = json.loads(_library.npu_emulator_counters())
    return counted


def host_alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor that shares the memory of an npu tensor (for code that stands in for device code)."""
    return torch.ops.npu_emulator.host_alias(tensor)
