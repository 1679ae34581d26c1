"""What an installed but unused plugin costs, and what an armed one adds to a command that never serves.

    python benchmarks/default_off.py [--pairs 5] [--out FILE.json]

1. Off: in a process that already holds torch, vllm and vllm_ascend, every gate unset, each front door is imported and
   loaded. Bar: no module outside the standard library and our package is added, and it takes under 1 ms a door.
2. Open: `vllm serve --help` with the cascade gate open against the same without the plugin's entry point doing anything
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
import time
from pathlib import Path
from typing import Any

DOORS = ("vllm_ascend_split_batch.cascade_plugin",)
OFF_BAR_MS = 1.0
OPEN_BAR_MS = 20.0
REPEATS = 5
OPEN_GATE = {"VLLM_ASCEND_ENABLE_CASCADE_DECODE": "1"}

# In a fresh process that holds the host already: import and load one door, say how long, and what it pulled in.
OFF_CHILD = """
import json, logging, sys, time
import torch, vllm, vllm_ascend
logging.disable(logging.CRITICAL)
door = sys.argv[1]
before = set(sys.modules)
start = time.perf_counter()
module = __import__(door, fromlist=["load"])
imported = time.perf_counter()
module.load()
loaded = time.perf_counter()
added = sorted(set(sys.modules) - before)
foreign = [name for name in added
           if name.partition(".")[0] not in sys.stdlib_module_names | {"vllm_ascend_split_batch"}]
print("RESULT" + json.dumps({"import_ms": (imported - start) * 1e3, "load_ms": (loaded - imported) * 1e3,
                             "added": added, "foreign": foreign}))
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


def off(door: str) -> dict[str, Any]:
    """The cheapest of a few fresh processes: what the door costs when nothing disturbs it."""
    runs = []
    for _ in range(REPEATS):
        output = subprocess.run(
            [sys.executable, "-c", OFF_CHILD, door], env=environment({}), capture_output=True, text=True, check=True
        ).stdout
        runs.append(json.loads(next(line for line in output.splitlines() if line.startswith("RESULT"))[6:]))
    load = [run["load_ms"] for run in runs]
    return {
        "door": door,
        "import_ms": statistics.median(run["import_ms"] for run in runs),
        "load_ms": statistics.median(load),
        "load_ms_all": load,
        "foreign_modules": sorted({name for run in runs for name in run["foreign"]}),
        "added_modules": runs[0]["added"],
        "within_bar": statistics.median(load) < OFF_BAR_MS and not any(run["foreign"] for run in runs),
    }


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
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    doors = [off(door) for door in DOORS]
    print(f"off, in a process that holds torch, vllm and vllm_ascend (median of {REPEATS} processes)")
    print(f"  {'front door':44} {'import':>9} {'load()':>9} {'foreign modules':>16}")
    for door in doors:
        foreign = len(door["foreign_modules"])
        print(f"  {door['door']:44} {door['import_ms']:6.2f} ms {door['load_ms']:6.3f} ms {foreign:16}")
    print(f"  bar: load() under {OFF_BAR_MS:.0f} ms, no foreign module")
    print("open: vllm serve --help, whole processes in turn")
    scratch = (options.out or Path("default_off.json")).with_suffix(".scratch")
    opened = open_gate(options.pairs, scratch)
    print(f"  whole processes, median of the differences: {opened['median_difference_ms']:+.0f} ms")
    print(f"  inside the open process, all of ours: {opened['inside_ms']:.1f} ms (bar: under {OPEN_BAR_MS:.0f} ms)")
    passed = opened["within_bar"] and all(door["within_bar"] for door in doors)
    print("within the bars" if passed else "OUTSIDE THE BARS")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"off": doors, "open": opened, "within_bars": passed}, indent=1) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
