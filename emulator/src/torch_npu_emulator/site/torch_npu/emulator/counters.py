"""What this process did with the emulated device.

``snapshot()`` is one dictionary::

    {"schema": "torch-npu-emulator.counters/1", "pid": 123,
     "launches": {"npu::npu_rms_norm": 61, "aten::mm.out": 30, ...},
     "kv_bytes": {"token": 0, "page": 0},
     "copies": {"device_to_host": 0, "device_to_host_bytes": 0, "host_to_device": 0, "host_to_device_bytes": 0,
                "device_to_device": 0, "device_to_device_bytes": 0},
     "synchronizes": 0, "implicit_synchronizes": 0,
     "graphs": {"captures": 0, "replays": 0, "task_updates": 0},
     "memory": {"allocated": 0, "peak": 0}}

* launches: operators that reach the device, by name with overload. Views, allocations and copies are none.
* kv_bytes: keys and values that attention reads, each sequence its own once per call; by token, and by whole page.
* copies: by direction. Reading one number (``item()``, ``_local_scalar_dense``) is a copy to the host.
* synchronizes: calls of ``synchronize`` on device, stream or event. implicit_synchronizes: operators that wait for
  device data without being asked to (nonzero, boolean indexing, ...).
* graphs: captures of graphs, their replays, and tasks whose arguments were replaced. What is captured is not run and
  counts nowhere else; a replay counts its launches, copies and bytes like calls.
* memory: bytes, of all devices of the process. The other numbers start again at zero with ``reset()``; these do not.

With ``NPU_EMU_COUNTERS=FOLDER`` the process writes ``FOLDER/<pid>.json`` twice a second, when something changed,
and when it ends; a forked child only once it has done something with the device.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

from torch_npu.emulator import background, settings

SCHEMA = "torch-npu-emulator.counters/1"


def add_kv_bytes(token: int, page: int) -> None:
    """Counts keys and values read by one attention call, in bytes."""
    from torch_npu import _backend  # late: the backend is loaded after this module

    _backend.add_kv_bytes(token, page)


def snapshot() -> dict[str, Any]:
    from torch_npu import _backend

    backend = _backend.counters()
    return {
        "schema": SCHEMA,
        "pid": os.getpid(),
        "launches": backend["launches"],
        "kv_bytes": backend["kv_bytes"],
        "copies": backend["copies"],
        "synchronizes": backend["synchronizes"],
        "implicit_synchronizes": backend["implicit_synchronizes"],
        "graphs": backend["graphs"],
        "memory": backend["memory"],
    }


def reset() -> None:
    """Sets every count to zero; memory stays what it is."""
    from torch_npu import _backend

    _backend.reset_counters()


@contextlib.contextmanager
def window() -> Iterator[dict[str, Any]]:
    """Counts inside a ``with`` block: the dictionary it gives is filled when the block ends."""
    counted: dict[str, Any] = {}
    before = snapshot()
    yield counted
    after = snapshot()
    for key in ("kv_bytes", "copies", "graphs"):
        counted[key] = {name: after[key][name] - before[key][name] for name in after[key]}
    launches = {name: count - before["launches"].get(name, 0) for name, count in after["launches"].items()}
    counted["launches"] = {name: count for name, count in launches.items() if count}
    for key in ("synchronizes", "implicit_synchronizes"):
        counted[key] = after[key] - before[key]
    counted["memory"] = after["memory"]


_written: dict[str, Any] | None = None


def _write(folder: pathlib.Path) -> None:
    global _written
    now = snapshot()
    if now == _written:
        return
    target = folder / f"{os.getpid()}.json"
    # The last write of a process may meet that of its thread: each writes a file of its own before it is renamed.
    temporary = folder / f".{os.getpid()}-{threading.get_ident()}.tmp"
    temporary.write_text(json.dumps(now) + "\n", encoding="utf-8")
    os.replace(temporary, target)
    _written = now


def start() -> None:
    """Starts writing, where ``NPU_EMU_COUNTERS`` asks for it."""
    if settings.COUNTERS_FOLDER is None:
        return
    folder = pathlib.Path(settings.COUNTERS_FOLDER)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise settings.SettingError(
            f"NPU_EMU_COUNTERS={folder}: the folder cannot be made ({error.strerror})"
        ) from error
    background.Repeated(lambda: _write(folder), _begin_anew)


def _begin_anew() -> None:
    """In a forked child: its counts start at zero, and it writes none before it does something with the device."""
    global _written
    reset()
    _written = snapshot()
