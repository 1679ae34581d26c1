"""The evidence folder: everything that was measured, and a list of checksums so that it can be sent and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "MANIFEST.sha256"

README = """# Acceptance of cascade decode attention on a device

{verdict}
Measured on {device} ({emulated}) with {versions}.

| file | what it is |
|---|---|
| verdict.txt, verdict.json | the verdict |
| facts.json | device, versions, machine |
| kernels.json | every call form of the kernels against attention in float64 |
| identity-*.json | texts with cascade against texts without, per request |
| calibration.json, cells.json | the profile of this device, and the times it was fitted to |
| serving-*.json | decode speed, stock and cascade in turns within one engine |
| *.log | what each step printed |
| {manifest} | checksums of all of these; check with `sha256sum -c {manifest}` |

To use the profile: `VLLM_ASCEND_CASCADE_PROFILE=<this folder>/calibration.json{floors}`.
To give it to everybody, send this folder to the project: it becomes a profile that is shipped, and the folder its
evidence.
"""


def write(path: Path, text: str) -> None:
    """One file.

    Raises:
        OSError: it cannot be written; unlike the system's own, of a full disk too it names the file.
    """
    try:
        path.write_text(text, "utf-8", "backslashreplace")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_json(path: Path, document: Any) -> None:
    """One document."""
    write(path, json.dumps(document, indent=1) + "\n")


def finish(folder: Path, verdict: str, facts: Mapping[str, Any], floors: str = "") -> None:
    """Write the README and, last, the checksums; `floors` are variables that are to be set beside the profile's."""
    versions = ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    write(
        folder / "README.md",
        README.format(
            verdict=f"```\n{verdict}```\n",
            device=facts.get("device_name", "an unknown device"),
            emulated="an emulated NPU: times say nothing of a device" if facts.get("emulated") else "a real device",
            versions=versions or "unknown versions",
            manifest=MANIFEST,
            floors=f" {floors}" if floors else "",
        ),
    )
    write_manifest(folder)


def write_manifest(folder: Path) -> None:
    """Checksums of all files of the folder, in the form that sha256sum reads."""
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in sorted(_files(folder))]
    write(folder / MANIFEST, "".join(lines))


def _files(folder: Path) -> set[str]:
    """Names of the files that are listed; a program that lies in the folder leaves bytecode behind."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST and path.parent.name != "__pycache__"
    }


def check_manifest(folder: Path) -> list[str]:
    """What does not agree with the checksums: missing, changed and further files, in words."""
    if not (folder / MANIFEST).is_file():
        return [f"{MANIFEST} is missing"]
    listed: dict[str, str] = {}
    for line in (folder / MANIFEST).read_text().splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    present = _files(folder)
    problems = [f"{name} is missing" for name in sorted(set(listed) - present)]
    problems += [f"{name} is not listed" for name in sorted(present - set(listed))]
    for name in sorted(present & set(listed)):
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != listed[name]:
            problems.append(f"{name} was changed")
    return problems
