"""Seams of every bundle in a release's source files, as the manager reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_hust_ext.source_index import SourceIndex
from vllm_hust_ext.static_seams import check_sources

from tools.setup_environment import ROOT

MANIFESTS = ROOT / "src" / "vllm_ascend_split_batch" / "manifests"
MANIFEST = "vllm-hust-extension-v0.2.json"
SIDECAR = "vllm-hust-extension-seams.json"


def sidecars(folder: Path = MANIFESTS) -> list[dict[str, Any]]:
    """The seams sidecars of all bundles."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{SIDECAR}"))]


def manifests(folder: Path = MANIFESTS) -> list[dict[str, Any]]:
    """The manifests of all bundles that have a sidecar, in the same order."""
    return [json.loads((path.parent / MANIFEST).read_text()) for path in sorted(folder.glob(f"*/{SIDECAR}"))]


def carriers(documents: Sequence[dict[str, Any]]) -> list[str]:
    """The carriers that the sidecars name, in their order."""
    return list(dict.fromkeys(str(carrier["name"]) for document in documents for carrier in document["carriers"]))


def check(path: Sequence[Path], documents: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Every carrier's seams on the packages found on `path`: target, check, status (matched, differs, missing, unknown)
    and detail, in the order the carrier declares them.
    """
    index = SourceIndex([str(folder) for folder in path])
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in carriers(documents)}
    for document in documents:
        for result in check_sources(document, index):
            entry = result.as_json()
            found[entry.pop("carrier")].append({key: entry[key] for key in ("target", "check", "status", "detail")})
    return found
