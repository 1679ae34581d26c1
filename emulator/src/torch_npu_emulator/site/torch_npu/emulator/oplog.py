"""A log of attention calls, one JSON object per line, for tests that want to know what a model run really called.

``NPU_EMU_OPLOG`` names a file, or a folder, where each process writes ``<pid>.jsonl``. Lines are written twice a
second and when the process ends.
"""

from __future__ import annotations

import json
import os
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

from torch_npu.emulator import background, settings

_lock = threading.Lock()
_waiting: list[dict[str, Any]] = []


def active() -> bool:
    return settings.OPLOG_PATH is not None


def write(
    op: str,
    *,
    layout: str,
    query_rows: int,
    query_lengths: Sequence[int] = (),
    kv_lengths: Sequence[int] = (),
    masked: bool = False,
    sparse_mode: int = 0,
    paged: bool = False,
    kv_bytes: tuple[int, int] = (0, 0),
    lse: bool = False,
) -> None:
    """Adds one call of an operator. ``kv_bytes`` by token and by whole page; layout 'rows' for merges of partials.

    The entry says in ``replay`` whether a replayed graph made the call; what is captured is no call.
    """
    from torch_npu import _backend  # late: the backend is loaded after this module

    entry = {
        "op": op,
        "layout": layout,
        "query_rows": query_rows,
        "sequences": len(query_lengths),
        "query_lengths": list(query_lengths),
        "kv_lengths": list(kv_lengths),
        "masked": masked,
        "sparse_mode": sparse_mode,
        "paged": paged,
        "kv_bytes_token": kv_bytes[0],
        "kv_bytes_page": kv_bytes[1],
        "lse": lse,
        "replay": bool(_backend.replaying()),
    }
    with _lock:
        _waiting.append(entry)


def flush() -> None:
    """Writes what is waiting."""
    if settings.OPLOG_PATH is None:
        return
    path = pathlib.Path(settings.OPLOG_PATH)
    if path.is_dir():
        path = path / f"{os.getpid()}.jsonl"
    # Written under the lock: the last lines of a process must not pass those its thread is writing.
    with _lock:
        if not _waiting:
            return
        lines = "".join(json.dumps(entry) + "\n" for entry in _waiting)
        _waiting.clear()
        with open(path, "a", encoding="utf-8") as file:
            file.write(lines)


def start() -> None:
    if settings.OPLOG_PATH is None:
        return
    path = pathlib.Path(settings.OPLOG_PATH)
    # A name without a suffix that is no file yet is meant as a folder.
    if not path.exists() and not path.suffix:
        path.mkdir(parents=True, exist_ok=True)
    background.Repeated(flush, _forget)


def _forget() -> None:
    """In a forked child: what waits is its parent's, and so may be the lock."""
    global _lock
    _lock = threading.Lock()
    _waiting.clear()
