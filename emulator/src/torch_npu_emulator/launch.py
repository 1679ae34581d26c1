"""Becomes a command in the emulated NPU's environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import NoReturn


class CommandNotFound(RuntimeError):
    """The command is no executable on the PATH."""


def launch(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replaces this process by ``command``: signals and the exit status are the command's own.

    Raises `CommandNotFound`.
    """
    path = shutil.which(command[0], path=env.get("PATH", os.defpath))
    if path is None:
        raise CommandNotFound(f"command not found: {command[0]}")
    try:
        os.execve(path, list(command), dict(env))
    except OSError as error:
        raise CommandNotFound(f"{command[0]} cannot be run: {error.strerror}") from error
