"""What the emulator's own variables may hold. Standard library only: the launcher reads it without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FAULTS = frozenset(
    {
        "fia_uniform_average",
        "lse_shift",
        "lse_base2",
        "kv_length_plus_one",
        "ignore_task_update",
        "stale_event",
        "no_poison",
        "skip_replay",
    }
)


class SettingError(ImportError):
    """An environment variable of the emulator holds a value that is not accepted."""


class Values(NamedTuple):
    """The emulator's switches: devices and their memory in bytes, what is allowed, where counters and log go."""

    devices: int
    device_bytes: int
    float32_attention: bool
    device_limits: bool
    triton: str
    counters_folder: str | None
    oplog_path: str | None
    trace_poison: bool
    faults: frozenset[str]


def read(environ: Mapping[str, str]) -> Values:
    """The switches as `environ` sets them.

    Raises:
        SettingError: a value is not accepted; the message names variable, value and what is.
    """
    return Values(
        devices=int(_number(environ, "NPU_EMU_DEVICES", 8, 1, 16)),
        device_bytes=int(_number(environ, "NPU_EMU_TOTAL_GIB", 2, 0.01, 1024) * (1 << 30)),
        float32_attention=_choice(environ, "NPU_EMU_FLOAT32_ATTENTION", "0", ("0", "1")) == "1",
        device_limits=_choice(environ, "NPU_EMU_DEVICE_LIMITS", "0", ("0", "1")) == "1",
        triton=_choice(environ, "NPU_EMU_TRITON", "standin", ("standin", "interpreter")),
        counters_folder=environ.get("NPU_EMU_COUNTERS") or None,
        oplog_path=environ.get("NPU_EMU_OPLOG") or None,
        trace_poison=_choice(environ, "NPU_EMU_TRACE_POISON", "0", ("0", "1")) == "1",
        faults=_faults(environ),
    )


def _choice(environ: Mapping[str, str], name: str, default: str, accepted: tuple[str, ...]) -> str:
    value = environ.get(name) or default
    if value not in accepted:
        raise SettingError(f"{name}={value!r}: accepted are {', '.join(accepted)}")
    return value


def _number(environ: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    raw = environ.get(name)
    if not raw:
        return default
    try:
        value = float(raw)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise SettingError(f"{name}={raw!r}: accepted is a number from {low:g} to {high:g}")
    return value


def _faults(environ: Mapping[str, str]) -> frozenset[str]:
    names = frozenset(name.strip() for name in environ.get("NPU_EMU_FAULT", "").split(",") if name.strip())
    unknown = names - FAULTS
    if unknown:
        raise SettingError(f"NPU_EMU_FAULT: unknown fault {sorted(unknown)}; known are {', '.join(sorted(FAULTS))}")
    return names
