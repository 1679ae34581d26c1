"""The check's own virtual environment, `.venv-kernels`: Triton for Ascend replaces Triton, so it cannot share one."""

from __future__ import annotations

import platform
import shutil
import sys
import time
from pathlib import Path

from tools.setup_environment import (
    PYTHON_VERSION,
    ROOT,
    Environment,
    SetupError,
    Step,
    create_environment,
    heartbeat,
    only_one,
    requirement_step,
    say,
)

FOLDER = ROOT / ".venv-kernels"
NEEDED_DISK_BYTES = 1 << 30


def prepare() -> Environment:
    """The environment, made or brought up to date first where needed; an interrupted set-up goes on where it was.

    Raises:
        SetupError: it cannot be made here; the text says what to do.
    """
    _check()
    environment = Environment(FOLDER, ROOT / ".venv-kernels.log")
    steps = [
        Step(
            "venv",
            "virtual environment (.venv-kernels), a few seconds",
            (str(ROOT), sys.version),
            lambda: create_environment(environment),
        ),
        requirement_step(
            environment, "kernels-check", "Triton for Ascend and its compiler (4 packages, 215 MB, about 30 s)"
        ),
    ]
    with only_one():
        redo = False
        for step in steps:
            redo = redo or not environment.done(step)
            if not redo:
                continue
            begin = time.monotonic()
            say(f"set-up: {step.what}")
            with heartbeat("set-up"):
                step.run()
            environment.mark(step, time.monotonic() - begin)
    return environment


def _check() -> None:
    wanted = ".".join(map(str, PYTHON_VERSION))
    if sys.version_info[:2] != PYTHON_VERSION:
        found = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(f"the kernel check runs on Python {wanted}, this is {found}: make PYTHON=python{wanted} ...")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError(
            f"the kernel check's compiler is published for Linux on x86_64, this is {sys.platform} on "
            f"{platform.machine()}"
        )
    if not FOLDER.exists() and shutil.disk_usage(ROOT).free < NEEDED_DISK_BYTES:
        raise SetupError(f"about {NEEDED_DISK_BYTES >> 30} GB of free disk space are needed in {ROOT}")


def compiler(environment: Environment) -> Path:
    """The compiler's program in the environment.

    Raises:
        SetupError: it is not there.
    """
    found = sorted(environment.path.glob("lib/python*/site-packages/ascendnpuir/bin/bishengir-compile"))
    if not found:
        raise SetupError(f"bishengir-compile is not in {environment.path}: remove that folder and run this again")
    return found[0]
