"""From a launch plan to a running command, by exec: the command keeps the manager's process id, so signals and exit
codes are its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from vllm_hust_ext.environment import Environment
from vllm_hust_ext.errors import BrokenState, Refused, UsageFault


@dataclass(frozen=True)
class Program:
    """The program that a command means.

    ``interpreter`` is the Python that runs it, None for a program that is not Python's.
    """

    path: Path
    interpreter: Path | None
    from_environment: bool


def resolve(command: Sequence[str], environment: Environment, variables: Mapping[str, str]) -> Program:
    """Find the program of ``command``: the inspected environment's own commands first, then PATH.

    Raises:
        UsageFault: there is no such program.
        Refused: it is a Python program of another environment than the one that was inspected.
    """
    name = command[0]
    if not name:
        raise UsageFault(
            "the command is an empty word", where="run", hint="for example: vllm-hust-ext run -- vllm serve MODEL"
        )
    if os.sep in name:
        path = Path(os.path.abspath(name))
        if not os.path.exists(path):
            raise UsageFault(f"{name} does not exist", name="command-not-found", where="run", hint="check the path")
        if not os.path.isfile(path) or not os.access(path, os.X_OK):
            raise UsageFault(
                f"{name} is not an executable file", name="command-not-executable", where="run", hint="check the path"
            )
    else:
        own = shutil.which(name, path=str(environment.scripts))
        if (
            own is None
            and re.fullmatch(r"python[0-9.]*", name)
            and name in ("python", "python3", environment.executable.name)
        ):
            own = str(environment.executable)
        found = own or shutil.which(name, path=variables.get("PATH", os.defpath))
        if found is None:
            raise UsageFault(
                f"{name} is neither a command of {environment.scripts} nor on PATH",
                name="command-not-found",
                where="run",
                hint=f"install what provides it into {environment.prefix}, or name another environment with --python",
            )
        path = Path(os.path.abspath(found))
    interpreter = interpreter_of(path, variables)
    if interpreter is not None and not os.path.exists(interpreter):
        raise BrokenState(
            f"{path} names {interpreter} as its interpreter, which does not exist",
            name="exec-failed",
            where="run",
            hint="reinstall what provides the command; its environment was moved or removed",
        )
    if interpreter is not None and not belongs(interpreter, environment):
        raise Refused(
            f"{path} runs on {interpreter}, not in the environment that was inspected"
            f" ({environment.prefix}): what was said about"
            " hosts and extensions would not hold for it",
            name="other-interpreter",
            where="run",
            hint=(
                f"install the command into {environment.prefix}, or inspect and launch the other"
                f" environment with --python {interpreter}"
            ),
        )
    inside = path.parent == environment.scripts or interpreter is not None
    return Program(path, interpreter, inside)


def interpreter_of(path: Path, variables: Mapping[str, str]) -> Path | None:
    """The Python interpreter that runs the program at ``path``: itself, or the one that its first lines name."""
    if re.fullmatch(r"python[0-9.]*", path.name) and not _is_script(path):
        return path
    try:
        with open(path, "rb") as stream:
            head = stream.read(4096).decode("utf-8", "replace")
    except OSError:
        return None
    lines = head.splitlines()
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if not words:
        return None
    if Path(words[0]).name == "env":
        named = next((w for w in words[1:] if not w.startswith("-") and "=" not in w), "")
        if not re.fullmatch(r"python[0-9.]*", named):
            return None
        found = shutil.which(named, path=variables.get("PATH", os.defpath))
        return Path(found) if found else None
    if Path(words[0]).name in ("sh", "bash", "dash") and len(lines) > 1:
        # Long or blank-holding interpreter paths: a shell line that re-executes the file with Python.
        match = re.match(r"""'''exec' ["']?(.+?)["']? ["']\$0["']""", lines[1])
        return Path(match.group(1)) if match else None
    if re.fullmatch(r"python[0-9.]*", Path(words[0]).name):
        return Path(words[0])
    return None


def _is_script(path: Path) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return False


def belongs(interpreter: Path, environment: Environment) -> bool:
    """Whether ``interpreter`` is the one of ``environment``.

    In virtual environments all interpreters are links to one file, so it is the folder that they are called from that
    counts.
    """
    here = Path(os.path.abspath(interpreter))
    if here == Path(os.path.abspath(environment.executable)):
        return True
    folders = {os.path.realpath(environment.scripts), os.path.realpath(environment.executable.parent)}
    if os.path.realpath(here.parent) in folders:
        return True
    if environment.prefix != environment.base_prefix or os.path.exists(here.parent.parent / "pyvenv.cfg"):
        return False
    return os.path.realpath(here) == os.path.realpath(environment.executable)


def execute(program: Program, command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    # Python ignores SIGPIPE and SIGXFSZ for itself; an ignored signal would stay ignored in the command.
    for name in ("SIGPIPE", "SIGXFSZ"):
        number = getattr(signal, name, None)
        if number is not None:
            signal.signal(number, signal.SIG_DFL)
    argv = [command[0], *command[1:]]
    if re.fullmatch(r"python[0-9.]*", program.path.name):
        argv[0] = str(program.path)  # Python finds its virtual environment by the path that it is called with
    try:
        os.execve(program.path, argv, dict(variables))
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            hint = "its first line must name an interpreter ('#!...')"
        elif error.errno == errno.E2BIG:
            hint = "command and environment are too large for the system"
        else:
            hint = "check the file and the interpreter that its first line names"
        raise BrokenState(
            f"{program.path} could not be started: {error.strerror}", name="exec-failed", where="run", hint=hint
        ) from None
