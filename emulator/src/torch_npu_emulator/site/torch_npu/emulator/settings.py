"""The emulator's own switches, read once when the emulated NPU is loaded.

A value that is not understood stops the process's import of torch with a message: a test that asks for a fault or a
limit must not silently run without it.
"""

from __future__ import annotations

import os

from torch_npu.emulator.setting_values import FAULTS, SettingError, read

__all__ = [
    "ACTIVE_FAULTS",
    "COUNTERS_FOLDER",
    "DEVICES",
    "DEVICE_BYTES",
    "DEVICE_LIMITS",
    "FAULTS",
    "FLOAT32_ATTENTION",
    "OPLOG_PATH",
    "TRACE_POISON",
    "TRITON",
    "SettingError",
    "fault",
]

_values = read(os.environ)

DEVICES = _values.devices
DEVICE_BYTES = _values.device_bytes
FLOAT32_ATTENTION = _values.float32_attention
DEVICE_LIMITS = _values.device_limits
TRITON = _values.triton
COUNTERS_FOLDER = _values.counters_folder
OPLOG_PATH = _values.oplog_path
TRACE_POISON = _values.trace_poison
ACTIVE_FAULTS = _values.faults


def fault(name: str) -> bool:
    """Whether the named fault was asked for by ``NPU_EMU_FAULT``."""
    if name not in FAULTS:
        raise KeyError(name)
    return name in ACTIVE_FAULTS
