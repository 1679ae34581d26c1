"""Who this process is: what tells it from every other process, on this boot of this machine, in this namespace."""

from __future__ import annotations

import os
import sys
from typing import Any


def describe() -> dict[str, Any]:
    """The ``process`` part of the engine report. Facts that cannot be read are ``None``; never raises."""
    return {
        "pid": os.getpid(),
        "start_ticks": start_ticks(),
        "boot_id": _first_line("/proc/sys/kernel/random/boot_id"),
        "hostname": os.uname().nodename,
        "pid_namespace": _link("/proc/self/ns/pid"),
        "role": role(),
        "argv0": _argv()[0],
    }


def start_ticks() -> int | None:
    """Field 22 of ``/proc/self/stat``: when the process started, in clock ticks since boot."""
    line = _first_line("/proc/self/stat")
    if line is None:
        return None
    try:
        # The second field is the command in parentheses and may itself hold blanks and parentheses.
        return int(line.rpartition(")")[2].split()[19])
    except (IndexError, ValueError):
        return None


def role() -> str:
    """What the process does for vLLM, judged by the names vLLM gives to its processes."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    name = multiprocessing.current_process().name if multiprocessing is not None else "MainProcess"
    for beginning, answer in (("EngineCore", "engine-core"), ("VllmWorker", "worker"), ("ApiServer", "api-server")):
        if name.startswith(beginning):
            return answer
    argv = _argv()
    if name == "MainProcess" and (
        (os.path.basename(argv[0]) == "vllm" and "serve" in argv[1:2]) or "api_server" in os.path.basename(argv[0])
    ):
        return "api-server"
    return "other"


def _argv() -> list[str]:
    # Not there yet while the interpreter starts, and an embedding program may leave it empty.
    return [str(word) for word in getattr(sys, "argv", None) or [""]]


def _first_line(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip() or None
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
