"""The seams sidecar: what a bundle's carriers rely on, as a document for the manager's static check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .seams import Seam

if TYPE_CHECKING:
    from .carrier import Carrier

SCHEMA = "vllm-hust-ext.seams/1"
FILE_NAME = "vllm-hust-extension-seams.json"


def document(
    carriers: Iterable[Carrier], extension_id: str, verified_on: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The sidecar of a bundle, described in ``docs/formats/seams.md``.

    Args:
        carriers: the bundle's carriers.
        extension_id: the bundle's id in its manifest.
        verified_on: the releases the carriers have been run on, each as
            ``{"distribution": name, "version": version, "with": {name: version}}``.
    """
    return {
        "schema": SCHEMA,
        "extension_id": extension_id,
        "verified_on": list(verified_on),
        "carriers": [
            {"name": carrier.name, "seams": [_entry(seam) for seam in carrier.seams]}
            for carrier in sorted(carriers, key=lambda carrier: carrier.name)
        ],
    }


def _entry(seam: Seam) -> dict[str, Any]:
    entry: dict[str, Any] = {"target": seam.target, "check": seam.check}
    if seam.parameters is not None:
        entry["parameters"] = list(seam.parameters)
    if seam.calls is not None:
        entry["callee"] = seam.calls.callee
        entry["count"] = seam.calls.count
    entry["why"] = seam.why
    return entry
