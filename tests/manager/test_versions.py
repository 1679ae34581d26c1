"""PEP 440 answers: the same whatever release of ``packaging`` is installed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from vllm_hust_ext import versions

from tests.mutants import mutant  # noqa: F401

WINDOW = ">=0.25.1rc2.dev125,<0.25.2"

TABLE = [
    (">=0", "0.25.1rc1", True),
    (">=0", "0.1.dev20240+gabc", True),
    (">=0.28,<0.29", "0.28.1rc1.dev319", True),
    (">=0.23.0.post1,<0.26,!=0.24.*,!=0.25.0.*", "0.25.1rc1", True),
    (">=0.23.0.post1,<0.26,!=0.24.*,!=0.25.0.*", "0.24.1", False),
    (WINDOW, "0.25.1rc2.dev125", True),
    (WINDOW, "0.25.1rc2.dev125+gabc.d2026", True),
    (WINDOW, "0.25.1rc2", True),
    (WINDOW, "0.25.1", True),
    (WINDOW, "0.25.1+x", True),
    (WINDOW, "0.25.1.post1", True),
    (WINDOW, "0.25.1rc1", False),
    (WINDOW, "0.25.1.dev5", False),
    (WINDOW, "0.25.2rc1", False),
    (WINDOW, "0.25.2.dev0", False),
    (WINDOW, "0.25.2", False),
    (">=0.28.1rc1.dev319,<0.29", "0.29.0rc1", False),
    (">=0.28.1rc1.dev319,<0.29", "0.29.0.dev1", False),
    (">0.25.1", "0.25.1+local", False),
    (">0.25.1", "0.25.1.post1", False),
    ("==0.25.1", "0.25.1+any", True),
    ("==0.1.dev20240", "0.1.dev20240+g1", True),
    ("==0.25.1+empty", "0.25.1", False),
    (">=0.27,<0.28", "0.27.1rc1", True),
    (">=0.27", "0.0.0", False),
    (">=0.27", "dev", None),
    (">=0.27", None, None),
]


@pytest.mark.parametrize(("specifier", "version", "inside"), TABLE)
def test_range(specifier: str, version: str | None, inside: bool | None) -> None:
    answer = versions.in_range(version, specifier)
    assert answer.inside is inside
    assert specifier in answer.explanation


def test_without_explicit_prereleases_an_answer_would_hang_on_packaging(mutant: Any) -> None:  # noqa: F811
    """The mutant refuses pre-releases, as older ``packaging`` does by default: the table notices."""
    changed: ModuleType = mutant(
        versions,
        "not s.contains(version, prereleases=True)",
        "not s.contains(version, prereleases=False)",
    )
    assert any(changed.in_range(v, s).inside is not inside for s, v, inside in TABLE)


@pytest.mark.parametrize(
    ("version", "word"),
    [
        ("0.27.1rc1", "pre-release"),
        ("0.27.1.dev3", "development"),
        ("0.27.1.post1", "post-release"),
        ("0.27.1+cpu", "local build (cpu)"),
        ("0.0.0", "source build without tags"),
        ("0.1.dev1+g123", "source build without tags"),
        ("main", "not a PEP 440 version"),
    ],
)
def test_unusual_versions_are_explained(version: str, word: str) -> None:
    assert word in (versions.nature(version) or "")


def test_exclusions_are_named() -> None:
    assert "<0.25.2 also excludes pre-releases of that version" in versions.in_range("0.25.2rc1", WINDOW).explanation
    assert "a pre-release comes before its release" in versions.in_range("0.27.0rc1", ">=0.27.0").explanation
