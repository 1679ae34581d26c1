"""Files whose names and contents a user gives: read without waiting, without end, and shown in few characters.

Everything that can be wrong with one is an `OSError`, so that each reader says it once in its own words.
Pure standard library.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path

LARGEST = 1 << 20
_SHOWN = 60


def expanded(name: str | Path) -> Path:
    """The path, a leading `~` or `~user` replaced.

    Raises:
        OSError: there is no such user.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "no user of that name has a home folder", str(name)) from None


def read_regular(path: Path) -> bytes:
    """The content of a regular file of at most `LARGEST` bytes. A pipe or a device might never end.

    Raises:
        OSError: it cannot be read, is no regular file or is larger.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with path.open("rb") as handle:
        data = handle.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise OSError(errno.EFBIG, f"larger than {LARGEST} bytes", str(path))
    return data


def shown(text: str) -> str:
    """A text as a message shows it, cut after some characters."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
