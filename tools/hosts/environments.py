"""A release's environment: a copy of the base by hard links, with that release's host in it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tools.setup_environment import Environment, SetupError, Step, install_vllm, install_vllm_ascend

from .releases import Release

NEEDED_DISK_BYTES = 1 << 30


def base_environment(path: Path, log: Path) -> Environment:
    """The environment everything is copied from."""
    if not (path / "bin" / "python").exists():
        raise SetupError(f"there is no environment in {path}: run `make hosts`, which sets it up first")
    return Environment(path, log)


def fingerprint(base: Environment) -> str:
    """What is installed in the base: a copy is renewed when it changes."""
    parts = []
    for metadata in sorted(base.path.glob("lib/python*/site-packages/*.dist-info")):
        parts.append(metadata.name)
        with contextlib.suppress(OSError):
            parts.append((metadata / "entry_points.txt").read_text())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder, files as hard links to the same data; as copies where the file system has no links.

    Programs that replace files (pip, Python's bytecode cache) leave the source as it is; nothing may be written into
    a file of the copy.
    """

    def link(old: str, new: str) -> str:
        try:
            os.link(old, new, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            shutil.copy2(old, new, follow_symlinks=False)
        return new

    shutil.copytree(source, target, symlinks=True, copy_function=link, ignore=shutil.ignore_patterns(".setup"))


def prepare(release: Release, base: Environment, folder: Path, log: Path, say: Callable[[str], None]) -> Environment:
    """The environment of a release, ready to run; steps that were done before are not done again."""
    environment = Environment(folder, log)
    for step in _plan(release, base, environment):
        if environment.done(step):
            continue
        started = time.monotonic()
        step.run()
        environment.mark(step, time.monotonic() - started)
        say(f"    {step.what}: {time.monotonic() - started:.0f} s")
    return environment


def discard(environment: Environment) -> None:
    """Remove an environment; the base keeps what they shared."""
    shutil.rmtree(environment.path, ignore_errors=True)


def _plan(release: Release, base: Environment, environment: Environment) -> list[Step]:
    # Each step's inputs hold those of the steps before: a step that is done again makes the later ones do so, too.
    copied = ("3", str(base.path), str(environment.path), fingerprint(base))
    steps = [
        Step("copy", "copy of the environment", copied, lambda: _copy(base, environment)),
        Step(
            "vllm",
            f"vLLM {release.vllm}",
            (*copied, release.vllm),
            lambda: install_vllm(environment, release.requirements),
        ),
        Step(
            "vllm-ascend",
            f"vllm-ascend {release.name}",
            (*copied, release.vllm, release.name),
            lambda: install_vllm_ascend(environment, release.requirements),
        ),
    ]
    if release.extra:
        inputs = (*copied, release.vllm, release.name, *release.extra)
        what = f"{len(release.extra)} further packages"
        steps.append(Step("extra", what, inputs, lambda: environment.pip("--no-deps", *release.extra)))
    return steps


def _copy(base: Environment, environment: Environment) -> None:
    if environment.path.exists():
        shutil.rmtree(environment.path)
    environment.path.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(environment.path.parent).free < NEEDED_DISK_BYTES:
        raise SetupError(
            f"about {NEEDED_DISK_BYTES >> 30} GB of free disk space are needed in {environment.path.parent}"
        )
    link_tree(base.path, environment.path)
    environment.run(str(environment.python), "-m", "pip", "uninstall", "--yes", "vllm", "vllm-ascend")
