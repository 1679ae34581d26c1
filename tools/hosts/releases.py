"""The releases: one requirements file each, with the vLLM of its line and what it needs besides."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from tools.setup_environment import REQUIREMENTS, SetupError, pinned, requirement_text

FOLDER = REQUIREMENTS / "hosts"


@dataclass(frozen=True)
class Release:
    """A vllm-ascend release and the vLLM release of its line.

    Attributes:
        name: the version of vllm-ascend, and the name of the release everywhere here.
        vllm: the version of vLLM.
        extra: what it needs besides the demo's requirements, as pip wants it.
    """

    name: str
    vllm: str
    extra: tuple[str, ...]

    @property
    def requirements(self) -> str:
        """The name of its requirements file, as `setup_environment.pinned` wants it."""
        return f"{FOLDER.name}/{self.name}"

    @property
    def distributions(self) -> tuple[tuple[str, str], ...]:
        """(distribution, version) of the two parts of the host."""
        return ("vllm", self.vllm), ("vllm-ascend", self.name)


def read(name: str) -> Release:
    """The release of `requirements/hosts/<name>.txt`."""
    file = f"{FOLDER.name}/{name}"
    ascend, vllm = (pinned(file, distribution).partition("==")[2] for distribution in ("vllm-ascend", "vllm"))
    if ascend != name:
        raise SetupError(f"requirements/{file}.txt pins vllm-ascend {ascend}: the file is named after the release")
    extra = tuple(line for line in requirement_text(file) if line.partition("==")[0] not in ("vllm", "vllm-ascend"))
    return Release(name, vllm, extra)


def known() -> list[Release]:
    """All releases, oldest first."""
    return [read(name) for name in sorted((path.stem for path in FOLDER.glob("*.txt")), key=Version)]


def choose(words: str) -> list[Release]:
    """The releases named in `words` (names apart by spaces or commas), all where it names none, oldest first."""
    wanted = words.replace(",", " ").split()
    releases = known()
    unknown = sorted(set(wanted) - {release.name for release in releases})
    if unknown:
        names = " ".join(release.name for release in releases)
        raise SetupError(f"no such release here: {', '.join(unknown)}. There are: {names}")
    return [release for release in releases if not wanted or release.name in wanted]
