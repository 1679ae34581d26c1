"""A log of attention calls, one JSON object per line, for tests that want to know what a model run really called.

``NPU_EMU_OPLOG`` names a file, or a folder, where each process writes ``<pid>.jsonl``. Lines are written about once a
second and when the process ends.
"""

from __future__ import annotations

import json
import os
import pathlib
import threading
from typing import Any

from torch_npu.emulator import background, settings

_lock = threading.Lock()
_waiting: list[dict[str, Any]] = []


def active() -> bool:
    return settings.OPLOG_PATH is not None


def write(entry: dict[str, Any]) -> None:
    """Adds one call."""
    with _lock:
        _waiting.append(entry)


def flush() -> None:
    """Writes what is waiting."""
    if settings.OPLOG_PATH is None:
        return
    with _lock:
        lines = "".join(json.dumps(entry) + "\n" for entry in _waiting)
        _waiting.clear()
    path = pathlib.Path(settings.OPLOG_PATH)
    if path.is_dir():
        path = path / f"{os.getpid()}.jsonl"
    if lines:
        with open(path, "a", encoding="utf-8") as file:
            file.write(lines)


def start() -> None:
    if settings.OPLOG_PATH is None:
        return
    path = pathlib.Path(settings.OPLOG_PATH)
    # A name without a suffix that is no file yet is meant as a folder.
    if not path.exists() and not path.suffix:
        path.mkdir(parents=True, exist_ok=True)
    background.every_second(flush, after_fork=_forget)


def _forget() -> None:
    """What waits in a forked child is its parent's."""
    with _lock:
        _waiting.clear()
