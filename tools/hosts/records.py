"""What was found on each release, as a file a release, and which part of it still stands for today's sources."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.setup_environment import ROOT

from .releases import Release

SCHEMA = "split-batch.host-release/1"
PARTS = ("static", "live", "proofs", "host_model")

#: The sources of ours that decide about a part's result.
INPUTS = {
    "static": ("src/vllm_ascend_split_batch/manifests", "manager/src/vllm_hust_ext"),
    "live": ("src", "emulator/src", "kernels/src", "tools/hosts/live_child.py", "tests/emulated/switched_on.py"),
    "proofs": ("src", "emulator/src", "kernels/src", "tests/emulated", "tests/proofs.py"),
    "host_model": ("src/vllm_ascend_split_batch/host_model", "emulator/src", "tests/host_model"),
}
SUFFIXES = {".py", ".json", ".cpp", ".h"}


def digest(paths: Iterable[str], *more: str) -> str:
    """SHA-256 of the source files below `paths` (relative to the repository), and of `more`."""
    state = hashlib.sha256()
    for name in paths:
        top = ROOT / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                state.update(f"{path.relative_to(ROOT)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    for text in more:
        state.update(text.encode() + b"\n")
    return state.hexdigest()[:16]


class Record:
    """The file of one release: its parts, each with the digest of the sources it was run on."""

    def __init__(self, folder: Path, release: Release) -> None:
        self.path = folder / f"{release.name}.json"
        self.document: dict[str, Any] = {"parts": {}}
        if self.path.exists():
            self.document = json.loads(self.path.read_text())
        self.document |= {
            "schema": SCHEMA,
            "release": release.name,
            "host": dict(release.distributions),
        }

    def result(self, part: str) -> Any:
        """What a part found, `None` where it was not run."""
        entry = self.document["parts"].get(part)
        return entry["result"] if entry else None

    def stands(self, part: str, sources: str, environment: str) -> bool:
        """Whether a part was run on these sources of ours, in this environment (digests)."""
        entry = self.document["parts"].get(part)
        return bool(entry and (entry["sources"], entry["environment"]) == (sources, environment))

    def write(self, part: str, sources: str, environment: str, result: Any, seconds: float) -> None:
        """Keep what a part found."""
        parts = self.document["parts"]
        parts[part] = {
            "sources": sources,
            "environment": environment,
            "on": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(seconds, 1),
            "result": result,
        }
        self.document["parts"] = {name: parts[name] for name in PARTS if name in parts}
        order = ("schema", "release", "host", "parts")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({name: self.document[name] for name in order}, indent=1) + "\n")
        partial.replace(self.path)
