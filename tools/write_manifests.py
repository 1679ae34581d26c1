"""Write MANIFEST.sha256 of every folder of docs/evidence/ again: after a change by hand, of a page for instance.

    python tools/write_manifests.py

The programs that make the evidence write it themselves.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_ascend_split_batch.cascade.acceptance.folder import check_manifest, write_manifest

EVIDENCE = Path(__file__).resolve().parent.parent / "docs" / "evidence"


def folders() -> list[Path]:
    """The folders of evidence, one a topic."""
    return sorted(path for path in EVIDENCE.iterdir() if path.is_dir())


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for folder in folders():
        print(f"{folder.name}: {', '.join(check_manifest(folder)) or 'unchanged'}")
        write_manifest(folder)
