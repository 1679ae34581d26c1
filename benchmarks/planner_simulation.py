"""How long simulating a trace takes, and how much memory: the trace is read from a file, outcomes are written to one.

Each cell runs in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vllm_ascend_split_batch.planning.simulation import Setup, Simulation
from vllm_ascend_split_batch.planning.summary import Summary, mean
from vllm_ascend_split_batch.planning.traces import Workload, generate, read_trace, write_trace

SIZES = (1_000, 10_000, 100_000)
POLICIES = ("fcfs", "short-request-first", "batch-job-aware")
BAR_SECONDS, BAR_MIB = 30.0, 1024.0
#: Time per request of the largest trace, as a multiple of that of the smallest but one.
BAR_GROWTH = 1.5


def main() -> int:
    """Command line; exit status 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--cell", nargs=2, metavar=("TRACE", "POLICY"), help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="requests of a trace")
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measured(Path(arguments.cell[0]), arguments.cell[1])))
        return 0
    cells = []
    print(f"{'requests':>9}  {'policy':<21}{'wall s':>8}{'CPU s':>8}{'us/request':>12}{'peak MiB':>10}{'steps':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            trace = Path(folder) / f"{size}.jsonl"
            write_trace(trace, generate(Workload(requests=size)))
            for policy in POLICIES:
                command = [sys.executable, __file__, "--cell", str(trace), policy]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                cell = json.loads(done.stdout)
                cells.append(cell)
                print(
                    f"{size:>9}  {policy:<21}{cell['wall_s']:>8.2f}{cell['cpu_s']:>8.2f}"
                    f"{cell['cpu_s'] / size * 1e6:>12.1f}{cell['peak_mib']:>10.1f}{cell['steps']:>9}",
                    flush=True,
                )
    met = verdict(cells)
    if arguments.out:
        document = {"cells": cells, "bars": {"seconds": BAR_SECONDS, "mib": BAR_MIB, "growth": BAR_GROWTH}, "met": met}
        arguments.out.write_text(json.dumps({**document, "python": sys.version}, indent=1))
    return 0 if met else 1


def measured(trace: Path, policy: str) -> dict[str, object]:
    """One cell: read, simulate, write."""
    started, cpu = time.perf_counter(), time.process_time()
    requests = read_trace(trace).requests
    simulation = Simulation(Setup().with_policy(policy=policy))
    summary = Summary(policy, simulation.totals)
    with tempfile.TemporaryFile("w", encoding="utf-8") as out:
        for outcome in simulation.run(requests):
            summary.add(outcome)
            out.write(outcome.line() + "\n")
    return {
        "requests": len(requests),
        "policy": policy,
        "wall_s": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "steps": simulation.totals.num_decode_steps + simulation.totals.mixed_steps.total(),
        "answered": summary.finished,
        "mean_wait_s": mean(summary.waits),
    }


def verdict(cells: list[dict[str, Any]]) -> bool:
    """Whether the largest trace is within the bars, and the time per request does not grow with the trace."""
    largest = max(cell["requests"] for cell in cells)
    within = all(
        cell["wall_s"] <= BAR_SECONDS and cell["peak_mib"] <= BAR_MIB for cell in cells if cell["requests"] == largest
    )
    sizes = sorted({cell["requests"] for cell in cells})
    linear = True
    if len(sizes) > 1:
        for policy in POLICIES:
            of = {cell["requests"]: cell["cpu_s"] / cell["requests"] for cell in cells if cell["policy"] == policy}
            linear = linear and of[sizes[-1]] <= BAR_GROWTH * of[sizes[-2]]
    print(
        f"bars: {largest} requests in {BAR_SECONDS:g} s and {BAR_MIB:g} MiB, time per request at most {BAR_GROWTH} "
        f"times that of the trace before: {'met' if within and linear else 'MISSED'}"
    )
    return within and linear


if __name__ == "__main__":
    sys.exit(main())
