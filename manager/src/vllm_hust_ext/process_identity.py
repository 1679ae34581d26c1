"""Which process that was: a pid alone is reused, so start time, boot and pid namespace are compared too."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any


class Life(str, Enum):
    LIVE = "live"
    GONE = "gone"
    ELSEWHERE = "not seen from this node"


@dataclass(frozen=True)
class ProcessIdentity:
    """A process as it was when it wrote about itself. ``start_ticks`` is field 22 of ``/proc/<pid>/stat``."""

    pid: int
    start_ticks: int | None
    boot_id: str | None
    hostname: str
    pid_namespace: str | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProcessIdentity | None:
        """Read the ``process`` object of a report or launch file; None where it names no process."""
        pid, ticks = value.get("pid"), value.get("start_ticks")
        if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
            return None
        boot, host, space = value.get("boot_id"), value.get("hostname"), value.get("pid_namespace")
        return cls(
            pid,
            ticks if isinstance(ticks, int) and not isinstance(ticks, bool) else None,
            boot if isinstance(boot, str) else None,
            host if isinstance(host, str) else "",
            space if isinstance(space, str) else None,
        )

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def life(self) -> Life:
        """Whether that very process is alive, as far as this process can see."""
        mine = own_identity()
        if self.boot_id and mine.boot_id:
            same_machine = self.boot_id == mine.boot_id
            if not same_machine and self.hostname == mine.hostname:
                return Life.GONE  # this machine, before its last boot
        else:
            same_machine = self.hostname == mine.hostname
        if not same_machine:
            return Life.ELSEWHERE
        if self.pid_namespace and mine.pid_namespace and self.pid_namespace != mine.pid_namespace:
            return Life.ELSEWHERE
        ticks = start_ticks(self.pid)
        if ticks is None:
            return Life.LIVE if not os.path.isdir("/proc/self") and _exists(self.pid) else Life.GONE
        if self.start_ticks is not None and ticks != self.start_ticks:
            return Life.GONE
        return Life.LIVE


def _exists(pid: int) -> bool:
    """For systems without /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None where it does not exist, is a zombie, or there is no
    /proc.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            text = stream.read().decode("utf-8", "replace")
        fields = text.rsplit(")", 1)[1].split()  # the name before it may hold blanks and brackets
        if fields[0] in ("Z", "X"):
            return None
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read().strip() or None
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=1)
def own_identity() -> ProcessIdentity:
    try:
        namespace: str | None = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = None
    return ProcessIdentity(
        os.getpid(), start_ticks(os.getpid()), _read("/proc/sys/kernel/random/boot_id"), socket.gethostname(), namespace
    )
