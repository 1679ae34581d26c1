"""Run the demo with and without kernels and rewrite this folder's raw figures, versions and checksums.

make evidence
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
from pathlib import Path

from vllm_ascend_split_batch.cascade.acceptance.folder import write_manifest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DISTRIBUTIONS = (
    "vllm",
    "vllm-ascend",
    "torch",
    "transformers",
    "vllm-ascend-split-batch",
    "vllm-hust-ext",
    "torch-npu-emulator",
)


def run_demo(kernels: str) -> dict:
    output = ROOT / "out" / f"evidence-{kernels}"
    command = [sys.executable, "-m", "demo", "--kernels", kernels, "--output", str(output)]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise SystemExit(f"the demo with kernels={kernels} failed; nothing was rewritten")
    return json.loads((output / "result.json").read_text())


def main() -> None:
    results = {kernels: run_demo(kernels) for kernels in ("reference", "none")}
    for kernels, result in results.items():
        (HERE / f"demo-{kernels}.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    versions = {name: importlib.metadata.version(name) for name in DISTRIBUTIONS} | {
        "python": platform.python_version()
    }
    (HERE / "versions.json").write_text(json.dumps(versions, indent=1, sort_keys=True) + "\n")
    write_manifest(HERE)
    print(f"rewrote {HERE.relative_to(ROOT)}; check with: sha256sum -c MANIFEST.sha256")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
