"""The Python sources of the releases, unpacked from their source distributions: read, never run.

A distribution is fetched by pip (its index settings and its cache hold) into
`.hosts/sources/<distribution>-<version>/`, Python files of its package only. The network is not needed afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.setup_environment import VLLM_ASCEND_BUILD, Environment, SetupError, path_without, vllm_build

from .releases import Release

PACKAGES = {"vllm": "vllm", "vllm-ascend": "vllm_ascend"}
STAMP = "complete.json"
AT_ONCE = 2


class Sources:
    """The folder of unpacked distributions.

    Args:
        folder: where they lie.
        base: an environment with what the distributions' own build scripts import (torch, setuptools-scm).
    """

    def __init__(self, folder: Path, base: Environment) -> None:
        self.folder = folder
        self.base = base

    def path(self, release: Release) -> list[Path]:
        """The search path on which the release's two packages are found."""
        return [self._place(*distribution) for distribution in release.distributions]

    def digests(self, release: Release) -> dict[str, str]:
        """The SHA-256 of each distribution's archive; of those that are there."""
        found: dict[str, str] = {}
        for name, version in release.distributions:
            stamp = self._place(name, version) / STAMP
            if stamp.exists():
                found[f"{name}-{version}"] = str(json.loads(stamp.read_text())["sha256"])
        return found

    def fetch(self, releases: Iterable[Release]) -> list[str]:
        """Fetch what is missing; the names of what was fetched."""
        distributions = dict.fromkeys(pair for release in releases for pair in release.distributions)
        missing = [pair for pair in distributions if not (self._place(*pair) / STAMP).exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        with path_without("cargo") as path, ThreadPoolExecutor(AT_ONCE) as pool:
            search = str(self.base.path / "bin") + os.pathsep + path
            fetching = [pool.submit(self._fetch, name, version, search) for name, version in missing]
            for future in fetching:
                future.result()
        return [f"{name} {version}" for name, version in missing]

    def _place(self, distribution: str, version: str) -> Path:
        return self.folder / f"{distribution}-{version}"

    def _fetch(self, distribution: str, version: str, path: str) -> None:
        requirement = f"{distribution}=={version}"
        build = vllm_build(requirement) if distribution == "vllm" else VLLM_ASCEND_BUILD
        with tempfile.TemporaryDirectory(prefix=f"{distribution}-", dir=self.folder) as scratch:
            self.base.run(
                *(str(self.base.python), "-m", "pip", "download", "--no-deps", "--no-build-isolation"),
                *("--no-binary", distribution, "--dest", scratch, requirement),
                env={**build, "PATH": path},
                expect="Sources of host releases come through pip: it needs its index, or PIP_FIND_LINKS set.",
            )
            archives = list(Path(scratch).glob("*.tar.gz"))
            if len(archives) != 1:
                raise SetupError(f"pip fetched no source distribution of {requirement} (.tar.gz), which was asked for")
            place = self._place(distribution, version)
            if place.exists():
                shutil.rmtree(place)
            partial = Path(scratch) / "unpacked"
            count = unpack(archives[0], PACKAGES[distribution], partial)
            digest = hashlib.sha256(archives[0].read_bytes()).hexdigest()
            (partial / STAMP).write_text(json.dumps({"archive": archives[0].name, "sha256": digest, "files": count}))
            partial.replace(place)


def unpack(archive: Path, package: str, target: Path) -> int:
    """Write the Python files of `package` in a source distribution to `target`; how many there are."""
    count = 0
    with tarfile.open(archive) as members:
        for member in members:
            inner = member.name.partition("/")[2]
            parts = inner.split("/")
            if not member.isfile() or parts[0] != package or not inner.endswith(".py") or ".." in parts:
                continue
            content = members.extractfile(member)
            assert content is not None
            file = target / inner
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.read())
            count += 1
    if not count:
        raise SetupError(f"{archive.name} holds no Python file of package {package}")
    return count
