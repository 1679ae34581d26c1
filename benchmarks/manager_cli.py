"""How long the manager's everyday commands take, in an environment of 200 distributions.

Prints a table and, with ``--json FILE``, writes the numbers. The bars: ``extension list`` in under 0.4 s and in under
3 times what importing click and pydantic costs; ``extension inspect`` of an installed extension beside the real host
in under 0.5 s (measured where this interpreter's environment has one). ``--check`` makes the exit code say whether
they are met.

    python benchmarks/manager_cli.py [--repeats 15] [--distributions 200] [--check] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.manager.scratch import Scratch, make_scratch, make_venv, manifest

LIST_SECONDS = 0.4
LIST_TIMES_BASELINE = 3.0
INSPECT_SECONDS = 0.5
BUNDLES = 10


def populate(scratch: Scratch, distributions: int) -> None:
    """A host, ten extensions, and plain distributions up to the wanted number."""
    scratch.site.host()
    for number in range(BUNDLES):
        name = f"ext{number}"
        carrier = [{"type": "python_module", "module": f"{name}.plugin", "object": "load", "status": "active"}]
        document = manifest(
            f"org.example.{name}", implementation=carrier, activation={"environment": {f"GATE_{number}": "1"}}
        )
        scratch.site.extension(document, distribution=name)
    for number in range(distributions - BUNDLES - 2):
        scratch.site.install(
            f"plain-{number}",
            files={f"plain_{number}/__init__.py": "", **{f"plain_{number}/m{i}.py": "" for i in range(20)}},
            entry_points={"console_scripts": {f"plain-{number}": f"plain_{number}:main"}} if number % 2 else {},
            metadata="Requires-Dist: packaging\n" * 10,
        )


def measure(command: Sequence[str], env: dict[str, str], repeats: int) -> dict[str, float]:
    """Wall time of a command in seconds: the smallest and the median of ``repeats`` runs after one that warms the
    caches.
    """
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        done = subprocess.run(command, env=env, capture_output=True, check=False)
        times.append(time.perf_counter() - start)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.decode()}")
    return {"min": min(times[1:]), "median": statistics.median(times[1:])}


def scratch_numbers(repeats: int, distributions: int) -> dict[str, dict[str, float]]:
    """Commands in a scratch environment that holds only the manager and the made distributions."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = make_scratch(Path(folder), make_venv(Path(folder) / "venv"))
        populate(scratch, distributions)
        env = scratch.environment()
        python = str(scratch.python)
        rows = {
            "python -c pass": [python, "-c", "pass"],
            "import click, pydantic": [python, "-c", "import click, pydantic; pydantic.BaseModel"],
            "extension list": scratch.command("extension", "list"),
            "extension list --json": scratch.command("extension", "list", "--json"),
            "extension inspect": scratch.command("extension", "inspect", "org.example.ext0"),
            "extension env": scratch.command("extension", "env"),
            "extension status": scratch.command("extension", "status"),
            "extension enable": scratch.command("extension", "enable", "org.example.ext0"),
            "run -- true": scratch.command("run", "--", "true"),
            "doctor": scratch.command("doctor"),
        }
        return {name: measure(command, env, repeats) for name, command in rows.items()}


def installed_numbers(repeats: int) -> dict[str, dict[str, float]]:
    """``inspect`` in this interpreter's own environment, for each valid extension in it."""
    program = [sys.executable, "-m", "vllm_hust_ext"]
    env = dict(os.environ)
    listed = subprocess.run(
        [*program, "extension", "list", "--json"], env=env, capture_output=True, text=True, check=False
    )
    document: Any = json.loads(listed.stdout)
    rows = {}
    for extension in document["extensions"]:
        if extension["valid"]:
            name = extension["bundle_id"]
            rows[f"inspect {name} (here)"] = measure([*program, "extension", "inspect", name], env, repeats)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--distributions", type=int, default=200)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = scratch_numbers(arguments.repeats, arguments.distributions)
    rows |= installed_numbers(arguments.repeats)
    width = max(map(len, rows))
    print(f"{'command':<{width}}  {'min ms':>8}  {'median ms':>10}   ({arguments.distributions} distributions)")
    for name, row in rows.items():
        print(f"{name:<{width}}  {row['min'] * 1000:8.0f}  {row['median'] * 1000:10.0f}")
    ratio = rows["extension list"]["min"] / rows["import click, pydantic"]["min"]
    bars = {
        f"extension list under {LIST_SECONDS} s": rows["extension list"]["min"] < LIST_SECONDS,
        f"extension list under {LIST_TIMES_BASELINE:.0f} times importing click and pydantic ({ratio:.2f})": ratio
        < LIST_TIMES_BASELINE,
    }
    for name, row in rows.items():
        if name.endswith("(here)"):
            bars[f"{name} under {INSPECT_SECONDS} s"] = row["min"] < INSPECT_SECONDS
    for name, met in bars.items():
        print(f"{'met   ' if met else 'MISSED'}  {name}")
    if arguments.json:
        body = {
            "program": "benchmarks/manager_cli.py",
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "distributions": arguments.distributions,
            "repeats": arguments.repeats,
            "seconds": rows,
            "list_over_baseline": ratio,
            "bars": bars,
        }
        arguments.json.write_text(json.dumps(body, indent=2) + "\n")
    return 0 if all(bars.values()) or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
