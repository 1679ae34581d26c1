"""Torch's AOTAutograd cache as it is by default: the emulator's launcher turns it off, this turns it on again."""

from __future__ import annotations

import os


def plant(name: str) -> None:
    """Before torch is imported; engine processes inherit it."""
    if name != "on":
        raise KeyError(name)
    os.environ.pop("TORCHINDUCTOR_AUTOGRAD_CACHE", None)
