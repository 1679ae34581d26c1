"""The Python environment that is inspected and launched: its interpreter, commands and search path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from vllm_hust_ext.distributions import Distribution, scan
from vllm_hust_ext.errors import UsageFault

_PROBE = (
    "import sys, json, os, sysconfig; print(json.dumps({'executable': sys.executable, 'prefix': sys.prefix,"
    " 'base_prefix': sys.base_prefix, 'scripts': sysconfig.get_path('scripts'), 'path': [p for p in sys.path if p],"
    " 'version': list(sys.version_info[:3])}))"
)
_PROBE_TIMEOUT_S = 30


@dataclass(frozen=True)
class Environment:
    """One Python environment.

    Attributes:
        executable: its interpreter.
        prefix, base_prefix: they differ in a virtual environment.
        scripts: the folder of its console commands.
        path: import search path, as its own commands see it.
        version: Python version.
        own: whether it is the environment in which the manager itself runs.
    """

    executable: Path
    prefix: Path
    base_prefix: Path
    scripts: Path
    path: tuple[str, ...]
    version: tuple[int, int, int]
    own: bool = True
    variables: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_virtual(self) -> bool:
        """A virtual environment (venv, virtualenv) or a conda environment: its folder is its own."""
        return self.prefix != self.base_prefix or os.path.isdir(self.prefix / "conda-meta")

    @property
    def python_version(self) -> str:
        return ".".join(str(part) for part in self.version)

    @cached_property
    def distributions(self) -> list[Distribution]:
        return scan(self.path)

    @cached_property
    def active(self) -> dict[str, Distribution]:
        """The distribution that counts for each canonical name."""
        return {d.key: d for d in self.distributions if d.shadowed_by is None}


def _without_start_folder(path: list[str]) -> list[str]:
    """``sys.path`` without the entry that Python adds for ``-m`` (the working folder) or a script.

    The commands that will be launched do not get the manager's own start folder, so a stray ``*.egg-info`` in the
    working folder must not count. An entry that PYTHONPATH names too is kept.
    """
    if not path or getattr(sys.flags, "safe_path", False):
        return path
    first = path[0]
    named = [os.path.abspath(p or ".") for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if os.path.abspath(first or ".") in named and path.count(first) == 1:
        return path
    main_file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    started_here = first in ("", os.getcwd()) or first == os.path.dirname(os.path.abspath(main_file))
    return path[1:] if started_here and not first.endswith("site-packages") else path


def current() -> Environment:
    """The environment in which the manager runs."""
    import sysconfig

    try:
        path = _without_start_folder(list(sys.path))
    except FileNotFoundError:  # the working folder was deleted
        path = [entry for entry in sys.path if entry]
    return Environment(
        executable=Path(sys.executable),
        prefix=Path(sys.prefix),
        base_prefix=Path(sys.base_prefix),
        scripts=Path(sysconfig.get_path("scripts")),
        path=tuple(path),
        version=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
    )


def of(python: str) -> Environment:
    """The environment of another interpreter, asked by running it once (nothing of the host is imported)."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise UsageFault(
            f"the interpreter could not be run: {error}", where=f"--python {python}", hint="name a Python executable"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageFault(
            f"this is not a working Python interpreter: {last}",
            where=f"--python {python}",
            hint="name a Python executable",
        )
    try:
        said = json.loads(done.stdout.strip().splitlines()[-1])
        return Environment(
            executable=Path(said["executable"]),
            prefix=Path(said["prefix"]),
            base_prefix=Path(said["base_prefix"]),
            scripts=Path(said["scripts"]),
            path=tuple(said["path"]),
            version=tuple(said["version"]),
            own=os.path.realpath(said["prefix"]) == os.path.realpath(sys.prefix),
        )
    except (ValueError, KeyError, IndexError, TypeError):
        raise UsageFault(
            "this program did not answer as a Python interpreter does",
            where=f"--python {python}",
            hint="name a Python executable",
        ) from None
