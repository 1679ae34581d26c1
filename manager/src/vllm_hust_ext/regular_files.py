"""Reading files that somebody else made: never a FIFO or a device, on which a reader would wait for ever."""

from __future__ import annotations

import os
import stat


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        return stream.read(limit)
