"""What the installed but unused plugins cost, and what an armed one adds to a command that never serves.

    python benchmarks/default_off.py [--pairs 5] [--published VERSION|none] [--out FILE.json]

1. Off: in a process that already holds torch, vllm and vllm_ascend, every gate unset, all our front doors are imported
   and loaded, as vLLM does it in each of its processes. Bar: no module outside the standard library and our package is
   added, and all of them together take under 5 ms.
2. The same for a published release of this distribution (0.1.3), installed by pip into a folder of its own and run in a
   process of its own. For comparison only; `--published none` leaves it out, as does a machine without a package index.
3. Open: `vllm serve --help` with the cascade gate open against the same without the plugin's entry point doing anything
   (gate closed), whole processes in turn. Bar: under 20 ms more. Beside the medians of the whole processes, which
   scatter more than the bar, stands what the plugin itself took inside the open process (its import, load() and every
   look its import hook has at a module name).

Runs on the emulated NPU. Needs the environment `make test` sets up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DISTRIBUTION = "vllm-ascend-split-batch"
GROUP = "vllm.general_plugins"
PUBLISHED = "0.1.3"
OFF_BAR_MS = 5.0
OPEN_BAR_MS = 20.0
REPEATS = 5
OPEN_GATE = {"VLLM_ASCEND_ENABLE_CASCADE_DECODE": "1"}

# In a fresh process that holds the host already: import and load every door of one installed distribution, say how long
# each took, and what they pulled in. A folder given as an argument comes first on the path.
OFF_CHILD = """
import importlib.metadata, json, logging, sys, time
import torch, vllm, vllm_ascend
logging.disable(logging.CRITICAL)
distribution, group, folder = sys.argv[1:4]
path = [folder] if folder else sys.path
sys.path[:0] = [folder] if folder else []
(found, *_) = importlib.metadata.distributions(name=distribution, path=path)
entries = sorted((entry for entry in found.entry_points if entry.group == group), key=lambda entry: entry.name)
before = set(sys.modules)
doors = []
cpu = time.thread_time()
for entry in entries:
    start = time.perf_counter()
    load = entry.load()
    imported = time.perf_counter()
    try:
        load()
        error = None
    except BaseException as problem:
        error = f"{type(problem).__name__}: {problem}"
    loaded = time.perf_counter()
    doors.append({"name": entry.name, "import_ms": (imported - start) * 1e3, "load_ms": (loaded - imported) * 1e3,
                  "error": error})
cpu = time.thread_time() - cpu
added = sorted(set(sys.modules) - before)
ours = sys.stdlib_module_names | {"vllm_ascend_split_batch"}
print("RESULT" + json.dumps({
    "version": found.version,
    "doors": doors,
    "total_ms": sum(door["import_ms"] + door["load_ms"] for door in doors),
    "cpu_ms": cpu * 1e3,
    "added_modules": len(added),
    "foreign_modules": [name for name in added if name.partition(".")[0] not in ours],
}))
"""

# `vllm serve --help` with a clock around everything of ours: importing the door, load(), and the import hook's finder.
OPEN_CHILD = """
import atexit, builtins, importlib.metadata, json, os, sys, time
spent = {"load": 0.0, "finder": 0.0, "finder_calls": 0}
original = importlib.metadata.EntryPoint.load
def load(self):
    if self.name != "cascade-attention":
        return original(self)
    start = time.perf_counter()
    function = original(self)
    spent["load"] += time.perf_counter() - start
    def timed():
        start = time.perf_counter()
        known = set(map(id, sys.meta_path))
        function()
        spent["load"] += time.perf_counter() - start
        for finder in sys.meta_path:
            if id(finder) not in known:
                watch(finder)
    return timed
def watch(finder):
    find = finder.find_spec
    def find_spec(*args, **kwargs):
        start = time.perf_counter()
        try:
            return find(*args, **kwargs)
        finally:
            spent["finder"] += time.perf_counter() - start
            spent["finder_calls"] += 1
    try:
        finder.find_spec = find_spec
    except AttributeError:
        pass
importlib.metadata.EntryPoint.load = load
pid = os.getpid()
def report():
    if os.getpid() == pid:
        with open(os.environ["DEFAULT_OFF_RESULT"], "w") as file:
            json.dump(spent, file)
atexit.register(report)
sys.argv = ["vllm", "serve", "--help"]
from vllm.entrypoints.cli.main import main
main()
"""


def environment(extra: dict[str, str]) -> dict[str, str]:
    import torch_npu_emulator

    base = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "NPU_EMU_"))}
    # An installed wheel has its bytecode; an editable install gets it at the first import, unless this forbids it.
    base.pop("PYTHONDONTWRITEBYTECODE", None)
    return dict(torch_npu_emulator.environment(base | extra))


def off(folder: str = "") -> dict[str, Any]:
    """Every door of one installed distribution, in the least disturbed of a few fresh processes."""
    runs = []
    for _ in range(REPEATS):
        output = subprocess.run(
            [sys.executable, "-c", OFF_CHILD, DISTRIBUTION, GROUP, folder],
            env=environment({}),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        runs.append(json.loads(next(line for line in output.splitlines() if line.startswith("RESULT"))[6:]))
    least = min(runs, key=lambda run: float(run["total_ms"]))
    return {
        **least,
        "total_ms_all": [run["total_ms"] for run in runs],
        "foreign_modules": sorted({name for run in runs for name in run["foreign_modules"]}),
    }


def install_published(version: str, folder: Path) -> str | None:
    """Install a published release of this distribution into a folder; what went wrong, or None."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    ran = subprocess.run(
        [*command, "--target", str(folder), f"{DISTRIBUTION}=={version}"], capture_output=True, text=True, check=False
    )
    return None if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["pip failed"])[-1]


def show(title: str, measured: dict[str, Any]) -> None:
    """The table of one distribution's doors."""
    print(title)
    print(f"  {'front door':28} {'import':>12} {'load()':>12}")
    for door in measured["doors"]:
        said = f"  {door['error']}" if door["error"] else ""
        print(f"  {door['name']:28} {door['import_ms']:9.2f} ms {door['load_ms']:9.3f} ms{said}")
    print(
        f"  together {measured['total_ms']:.2f} ms ({measured['cpu_ms']:.2f} ms of processor time); "
        f"modules added: {measured['added_modules']}, {len(measured['foreign_modules'])} of them foreign"
    )


def help_seconds(extra: dict[str, str]) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "--help"]
    subprocess.run(command, env=environment(extra), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def open_gate(pairs: int, scratch: Path) -> dict[str, Any]:
    closed_s: list[float] = []
    open_s: list[float] = []
    help_seconds({})  # warm the file cache
    for pair in range(pairs):
        arms = [({}, closed_s), (OPEN_GATE, open_s)]
        for extra, results in arms if pair % 2 == 0 else reversed(arms):
            results.append(help_seconds(extra))
        print(f"  pair {pair + 1} of {pairs}: closed {closed_s[-1]:.2f} s, open {open_s[-1]:.2f} s", flush=True)
    inside = []
    for _ in range(3):
        extra = OPEN_GATE | {"DEFAULT_OFF_RESULT": str(scratch)}
        subprocess.run(
            [sys.executable, "-c", OPEN_CHILD],
            env=environment(extra),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,  # --help leaves by SystemExit
        )
        inside.append(json.loads(scratch.read_text()))
        scratch.unlink()
    own = [run["load"] * 1e3 + run["finder"] * 1e3 for run in inside]
    return {
        "pairs": pairs,
        "closed_s": closed_s,
        "open_s": open_s,
        "median_difference_ms": statistics.median(b - a for a, b in zip(closed_s, open_s, strict=True)) * 1e3,
        "inside_ms": statistics.median(own),
        "inside": inside,
        "within_bar": statistics.median(own) < OPEN_BAR_MS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--published", default=PUBLISHED, help="a published release to compare with, or 'none'")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ours = off()
    show(f"off, in a process that holds torch, vllm and vllm_ascend (least disturbed of {REPEATS} processes)", ours)
    off_within = (
        ours["total_ms"] < OFF_BAR_MS
        and not ours["foreign_modules"]
        and not any(door["error"] for door in ours["doors"])
    )
    print(f"  bar: together under {OFF_BAR_MS:.0f} ms, no foreign module: {'met' if off_within else 'MISSED'}")
    published: dict[str, Any] | None = None
    if options.published != "none":
        with tempfile.TemporaryDirectory() as scratch:
            problem = install_published(options.published, Path(scratch))
            if problem is None:
                published = off(scratch)
                show(f"published {DISTRIBUTION} {options.published}, gates unset, likewise", published)
            else:
                print(f"published {DISTRIBUTION} {options.published} could not be installed: {problem}")
    print("open: vllm serve --help, whole processes in turn")
    with tempfile.TemporaryDirectory() as folder:
        opened = open_gate(options.pairs, Path(folder) / "spent.json")
    print(f"  whole processes, median of the differences: {opened['median_difference_ms']:+.0f} ms")
    print(f"  inside the open process, all of ours: {opened['inside_ms']:.1f} ms (bar: under {OPEN_BAR_MS:.0f} ms)")
    passed = opened["within_bar"] and off_within
    print("within the bars" if passed else "OUTSIDE THE BARS")
    if options.out:
        document = {"off": ours, "published": published, "open": opened, "within_bars": passed}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
