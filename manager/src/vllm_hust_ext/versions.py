"""PEP 440 answers with their explanation.

Pre-releases are always admitted explicitly (``prereleases=True``): what a range says about ``0.27.1rc1`` must not
depend on which release of ``packaging`` happens to be installed.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version


@dataclass(frozen=True)
class RangeAnswer:
    """Whether a version lies in a range; ``inside`` is None where the version says nothing."""

    inside: bool | None
    explanation: str


def parse(text: str | None) -> Version | None:
    if text is None:
        return None
    try:
        return Version(text)
    except ValueError:  # InvalidVersion, or numbers longer than Python converts
        return None


def nature(text: str | None) -> str | None:
    """What kind of version this is where it is not a plain release, as a phrase; None for a plain release."""
    version = parse(text)
    if version is None:
        return "not a PEP 440 version" if text else "no version"
    if is_untagged(version):
        return "the version of a source build without tags, which says nothing about the release it was built from"
    kinds = []
    if version.is_devrelease:
        kinds.append("a development version")
    elif version.is_prerelease:
        kinds.append("a pre-release")
    if version.is_postrelease:
        kinds.append("a post-release")
    if version.local:
        kinds.append(f"a local build ({version.local})")
    return " and ".join(kinds) or None


def is_untagged(version: Version) -> bool:
    """``0.0.0`` or ``0.1.devN+g...``: what setuptools-scm gives a source tree whose tags are missing."""
    return version.release in ((0, 0, 0), (0, 0), (0,)) or (
        version.release in ((0, 1), (0, 1, 0)) and version.is_devrelease
    )


def in_range(text: str | None, specifier: str) -> RangeAnswer:
    """Does version ``text`` lie in ``specifier``?"""
    try:
        allowed = SpecifierSet(specifier)
    except ValueError:
        return RangeAnswer(None, f"{specifier!r} is not a version range")
    version = parse(text)
    if version is None:
        said = f"{text!r} is not a PEP 440 version" if text else "the version is not known"
        return RangeAnswer(None, f"{said}, so {specifier} cannot be answered")
    try:
        failing = [str(s) for s in allowed if not s.contains(version, prereleases=True)]
    except ValueError:
        return RangeAnswer(None, f"{specifier!r} holds a number that is too long for a version")
    phrase = nature(text)
    note = f" ({phrase})" if phrase else ""
    if not failing:
        return RangeAnswer(True, f"{text}{note} is in {specifier}")
    if is_untagged(version):
        # A range that names this very build (== or ===) still admits it above.
        return RangeAnswer(False, f"{text} is {phrase}; {specifier} does not name it")
    extra = ""
    if version.is_prerelease and any(s.startswith("<") and not s.startswith("<=") for s in failing):
        upper = [s for s in failing if s.startswith("<") and not s.startswith("<=")]
        same = [s for s in upper if parse(s[1:].strip()) and parse(s[1:].strip()).base_version == version.base_version]  # type: ignore[union-attr]
        if same:
            extra = f"; {same[0]} also excludes pre-releases of that version"
    if version.is_prerelease and any(s.startswith(">=") and _base(s[2:]) == version.base_version for s in failing):
        extra = "; a pre-release comes before its release"
    return RangeAnswer(False, f"{text}{note} is not in {specifier}: {', '.join(sorted(failing))} excludes it{extra}")


def _base(text: str) -> str | None:
    version = parse(text.strip())
    return version.base_version if version is not None else None
