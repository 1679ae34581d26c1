"""Parts of the host that only some releases have: who lacks which is said here, and held to the installed release.

A comparison with a part that a release lacks is not applicable there, and says so by the part's name. A part that
vanishes from a release is no such case: `test_host_parts.py` looks for every part in the installed host's sources.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

from vllm_ascend_split_batch.host_model.padding import HostRelease

SHORT_REQUEST_FIRST = "ShortRequestFirstRequestQueue"
BATCH_JOB_AWARE = "BatchJobAwareRequestQueue"
DYNTRA_LB = "DyntraLBScheduler"
DYNTRA_LB_CORE = "DyntraLBDPEngineCoreProc"
#: Before 0.27 the host cuts its ladder in the middle of a function that needs a whole engine.
LADDER_FUNCTION = "_setup_compile_backend"

#: The file of vllm_ascend in which each class or function is defined.
FILES = {
    SHORT_REQUEST_FIRST: "core/short_request_first_scheduler.py",
    BATCH_JOB_AWARE: "core/batch_job_aware_scheduler.py",
    DYNTRA_LB: "core/dyntra_lb_scheduler.py",
    DYNTRA_LB_CORE: "patch/platform/patch_dyntra_lb_core.py",
    LADDER_FUNCTION: "platform.py",
}

#: What each modelled release lacks.
LACKS: dict[HostRelease, frozenset[str]] = {
    HostRelease.V0_23: frozenset(FILES),
    HostRelease.V0_25_1: frozenset({DYNTRA_LB, DYNTRA_LB_CORE, LADDER_FUNCTION}),
    HostRelease.V0_26: frozenset({DYNTRA_LB, DYNTRA_LB_CORE, LADDER_FUNCTION}),
    HostRelease.V0_27_1: frozenset(),
    HostRelease.V0_30: frozenset(),
}

#: The part that decides each kind of case; of kinds that are not here every release has all parts.
DECIDED_BY = {
    "short first": SHORT_REQUEST_FIRST,
    "document": SHORT_REQUEST_FIRST,
    "batch jobs": BATCH_JOB_AWARE,
    "balanced engines": DYNTRA_LB,
    "plans": DYNTRA_LB_CORE,
    "activations": DYNTRA_LB_CORE,
    "ladders": LADDER_FUNCTION,
}


def lacking(package: Path, parts: Iterable[str] = tuple(FILES)) -> frozenset[str]:
    """Those of the parts that the sources of vllm_ascend in a folder do not define."""
    return frozenset(part for part in parts if part not in _defined(package / FILES[part]))


def _defined(file: Path) -> set[str]:
    if not file.exists():
        return set()
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, kinds)}


def is_lacking(release: HostRelease, kind: str) -> bool:
    """Whether the release has nothing that decides cases of this kind."""
    return DECIDED_BY.get(kind) in LACKS[release]


def require(release: HostRelease, kind: str) -> None:
    """Ends a test that compares cases of a kind which the release does not have, as not applicable."""
    if is_lacking(release, kind):
        not_applicable(release, DECIDED_BY[kind])


def not_applicable(release: HostRelease, part: str) -> NoReturn:
    """Ends a test; `tools/hosts` reads the reason."""
    pytest.skip(f"not applicable: vllm-ascend {release.value} has no {part}")
