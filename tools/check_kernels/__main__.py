"""The command; see the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.setup_environment import ROOT, SetupError, say

from . import compilation, environment, report

SOURCES = ROOT / "kernels" / "src" / "split_batch_kernels"
PLANTED = Path(__file__).with_name("planted_triton.py")
LOWER = Path(__file__).with_name("lower.py")
TARGET = "Ascend910B2"


class CheckError(Exception):
    """The check itself could not be carried out; its text is the whole message."""


def lowered(python: Path, folder: Path, sources: list[Path]) -> list[dict[str, Any]]:
    """The document of `lower`, run in the check's environment."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "TRITON_INTERPRET"}}
    run = subprocess.run(
        [str(python), str(LOWER), str(folder), TARGET, *map(str, sources)],
        env=kept,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if run.returncode != 0:
        raise CheckError(f"the kernel sources cannot be read by Triton for Ascend:\n{run.stderr.strip()[-2000:]}")
    document: list[dict[str, Any]] = json.loads(run.stdout.strip().splitlines()[-1])
    return document


def check(sources: list[Path], only: str, jobs: int, seconds: float) -> list[compilation.Result]:
    """The variants of the sources whose name contains `only`, and the planted one, compiled."""
    place = environment.prepare()
    compiler = environment.compiler(place)
    with tempfile.TemporaryDirectory(prefix="check-kernels-") as scratch:
        folder = Path(scratch)
        stand_in = folder / "bin"
        stand_in.mkdir()
        compilation.write_stand_in(stand_in)
        entries = lowered(place.python, folder, [*sources, PLANTED])
        chosen = [
            entry
            for entry in entries
            if only in f"{entry['kernel']} {entry['variant']}" or entry["source"] == PLANTED.name
        ]

        def run(entry: dict[str, Any]) -> compilation.Result:
            module = folder / entry.get("file", "")
            return compilation.compile_variant(compiler, stand_in, module, entry, TARGET, seconds)

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(run, chosen))


def verdict(results: list[compilation.Result], planted: list[compilation.Result]) -> tuple[int, str]:
    """Exit code and the last line: everything compiled and fits, and the planted overflow was noticed."""
    if not planted or any("UB overflow" not in (result.error or "") for result in planted):
        found = "; ".join(str(result.error) for result in planted) or "nothing was compiled"
        return 2, f"the check is blind: its planted overflow was not reported ({found})"
    failed = [result for result in results if result.error is not None]
    if failed:
        return 1, f"{len(failed)} of {len(results)} variants FAILED: {', '.join(result.name for result in failed)}"
    if not results:
        return 1, "no kernel was checked: no variant's name contains what --only asks for"
    return 0, f"{len(results)} variants compile for {TARGET} and fit; the planted overflow was noticed"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tools.check_kernels", description=__doc__)
    parser.add_argument("--only", default="", help="check kernels and variants whose name contains this")
    parser.add_argument("--source", type=Path, action="append", default=[], help="one more kernel source")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilations at once")
    parser.add_argument("--seconds", type=float, default=300.0, help="the longest that one compilation may take")
    options = parser.parse_args(argv)
    missing = [str(source) for source in options.source if not source.is_file()]
    if missing:
        parser.error(f"--source {', '.join(missing)}: no such file")
    sources = [*sorted(SOURCES.glob("*_triton.py")), *(source.resolve() for source in options.source)]
    try:
        results = check(sources, options.only, options.jobs, options.seconds)
    except (SetupError, CheckError) as error:
        print(f"check-kernels stopped: {error}", file=sys.stderr)
        return 2
    planted = [result for result in results if result.source == PLANTED.name]
    results = [result for result in results if result.source != PLANTED.name]
    say(report.table(results))
    code, line = verdict(results, planted)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "schema": "split-batch-kernels.check/1",
            "target": TARGET,
            "capacity_bytes": compilation.CAPACITY_BYTES,
            "verdict": line,
            "variants": [result.as_json() for result in results],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    say(line)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("\ncheck-kernels interrupted: run it again")
        sys.exit(130)
