"""Write the seams sidecar of every bundle from what its carriers declare.

    python tools/write_sidecars.py                  write the sidecars that differ
    python tools/write_sidecars.py --check          write nothing; exit 1 when one differs
    python tools/write_sidecars.py --verified "vllm-ascend==0.27.1rc1 vllm==0.27.1"
                                                    note a release the carriers have been run on, too

The front doors (`src/vllm_ascend_split_batch/*_plugin.py`) declare carriers; a carrier's `extension_id` names the
bundle, whose manifest lies in a folder below `src/vllm_ascend_split_batch/manifests/`. Releases that a sidecar lists
already stay listed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "vllm_ascend_split_batch"
MANIFEST = "vllm-hust-extension-v0.2.json"

sys.path.insert(0, str(SOURCE))

from vllm_ascend_split_batch.carrier import Carrier, sidecar  # noqa: E402 - the source tree must be on the path


class Problem(Exception):
    """Something the caller must put right; shown without a traceback."""


def carriers() -> list[Carrier]:
    """The carriers of all front doors."""
    found: dict[int, Carrier] = {}
    for path in sorted(PACKAGE.glob("*_plugin.py")):
        module = importlib.import_module(f"{PACKAGE.name}.{path.stem}")
        found.update((id(value), value) for value in vars(module).values() if isinstance(value, Carrier))
    return list(found.values())


def bundles(folder: Path = PACKAGE / "manifests") -> dict[str, Path]:
    """The folder of each bundle, by extension id."""
    return {json.loads(path.read_text())["extension_id"]: path.parent for path in sorted(folder.glob(f"*/{MANIFEST}"))}


def parse_release(text: str) -> dict[str, Any]:
    """``"host==1 other==2"`` as an entry of ``verified_on``."""
    pairs = [word.split("==") for word in text.split()]
    if not pairs or any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise Problem(f'--verified {text!r} is not of the form "vllm-ascend==VERSION vllm==VERSION"')
    (name, version), *others = pairs
    return {"distribution": name, "version": version, "with": dict(others)}


def render(path: Path, extension_id: str, members: Sequence[Carrier], verified: Sequence[dict[str, Any]]) -> str:
    """The text of one sidecar; the releases of the present file stay listed, oldest first."""
    listed: list[dict[str, Any]] = json.loads(path.read_text())["verified_on"] if path.exists() else []
    listed += [release for release in verified if release not in listed]
    listed.sort(key=lambda release: (release["distribution"], Version(release["version"])))
    return json.dumps(sidecar.document(members, extension_id, listed), indent=2) + "\n"


def run(check: bool, verified: Sequence[dict[str, Any]]) -> int:
    """Write or compare all sidecars; the exit status."""
    folders = bundles()
    members: dict[str, list[Carrier]] = {}
    for carrier in carriers():
        if carrier.extension_id is not None:
            members.setdefault(carrier.extension_id, []).append(carrier)
    homeless = sorted(set(members) - set(folders))
    if homeless:
        raise Problem(f"no manifest with extension_id {', '.join(homeless)} below {PACKAGE / 'manifests'}")
    differing = 0
    for extension_id, belonging in sorted(members.items()):
        path = folders[extension_id] / sidecar.FILE_NAME
        text = render(path, extension_id, belonging, verified)
        shown = path.relative_to(ROOT)
        if path.exists() and path.read_text() == text:
            print(f"{shown}: up to date")
        elif check:
            differing += 1
            print(f"{shown}: differs from what the carriers declare; run python tools/write_sidecars.py")
        else:
            path.write_text(text)
            print(f"{shown}: written")
    return 1 if differing else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a sidecar differs")
    parser.add_argument("--verified", action="append", default=[], metavar="RELEASE", help="a release it was run on")
    arguments = parser.parse_args(argv)
    try:
        return run(arguments.check, [parse_release(text) for text in arguments.verified])
    except Problem as problem:
        print(f"write_sidecars: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
