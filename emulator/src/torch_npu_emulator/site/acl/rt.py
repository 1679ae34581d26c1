"""Runtime calls of the host's sleep mode."""

from __future__ import annotations

from typing import NoReturn


def memcpy(destination: int, destination_size: int, source: int, count: int, kind: int) -> NoReturn:
    raise NotImplementedError("acl.rt.memcpy (sleep mode) is not modelled by the emulated NPU")
