"""The emulator's own switches, read once when the emulated NPU is loaded.

A value that is not understood stops the process's import of torch with a message: a test that asks for a fault or a
limit must not silently run without it.
"""

from __future__ import annotations

import os

FAULTS = frozenset({"fia_uniform_average", "lse_shift", "lse_base2", "kv_length_plus_one"})


class SettingError(ImportError):
    """An environment variable of the emulator holds a value that is not accepted."""


def _choice(name: str, default: str, accepted: tuple[str, ...]) -> str:
    value = os.environ.get(name) or default
    if value not in accepted:
        raise SettingError(f"{name}={value!r}: accepted are {', '.join(accepted)}")
    return value


def _number(name: str, default: float, low: float, high: float) -> float:
    raw = os.environ.get(name)
    if not raw:
        return default
    try:
        value = float(raw)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise SettingError(f"{name}={raw!r}: accepted is a number from {low:g} to {high:g}")
    return value


def _faults() -> frozenset[str]:
    names = frozenset(name.strip() for name in os.environ.get("NPU_EMU_FAULT", "").split(",") if name.strip())
    unknown = names - FAULTS
    if unknown:
        raise SettingError(f"NPU_EMU_FAULT: unknown fault {sorted(unknown)}; known are {', '.join(sorted(FAULTS))}")
    return names


DEVICES = int(_number("NPU_EMU_DEVICES", 8, 1, 16))
DEVICE_BYTES = int(_number("NPU_EMU_TOTAL_GIB", 2, 0.01, 1024) * (1 << 30))
FLOAT32_ATTENTION = _choice("NPU_EMU_FLOAT32_ATTENTION", "0", ("0", "1")) == "1"
DEVICE_LIMITS = _choice("NPU_EMU_DEVICE_LIMITS", "0", ("0", "1")) == "1"
TRITON = _choice("NPU_EMU_TRITON", "standin", ("standin", "interpreter"))
COUNTERS_FOLDER = os.environ.get("NPU_EMU_COUNTERS") or None
OPLOG_PATH = os.environ.get("NPU_EMU_OPLOG") or None
ACTIVE_FAULTS = _faults()


def fault(name: str) -> bool:
    """Whether the named fault was asked for by ``NPU_EMU_FAULT``."""
    if name not in FAULTS:
        raise KeyError(name)
    return name in ACTIVE_FAULTS
