"""Becomes a command in the emulated NPU's environment."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn


class CommandNotFound(RuntimeError):
    """The command is no executable on the PATH."""


def launch(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replaces this process by ``command``: signals and the exit status are the command's own.

    A command without a folder is looked for beside this interpreter first, so that the environment need not be
    activated. Raises `CommandNotFound`.
    """
    own = os.path.dirname(sys.executable)
    path = shutil.which(command[0], path=os.pathsep.join((own, env.get("PATH", os.defpath))))
    if path is None:
        raise CommandNotFound(f"command not found: {command[0]}")
    try:
        # By its path, not its name: Python, for one, looks its name up again to learn where it is installed.
        os.execve(path, [path, *command[1:]], dict(env))
    except OSError as error:
        raise CommandNotFound(f"{command[0]} cannot be run: {error.strerror}") from error
