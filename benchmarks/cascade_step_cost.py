"""What cascade costs the host's Python per decode step, over models of 2, 8 and 30 layers.

    python benchmarks/cascade_step_cost.py [--layers 2,8,30] [--mode eager|graph|both] [--out FILE.json]

Each cell is one engine of a tiny random model on the emulated NPU, in a process of its own; 16 requests share 512
tokens. Timed are the functions that run once a step: the decision, the plan, in graph mode also the choice of the graph
and the filling of the twin's tables. Bar: together under 200 microseconds, and independent of the number of layers.
In graph mode the parameters of every layer are set beside it, by the host for its own graph and by the twin for its
own: two columns show both; they grow with the layers in both arms, and run while the device works.
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
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BAR_US = 200.0
REQUESTS, PREFIX, STEPS = 16, 512, 24


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", default="2,8,30")
    parser.add_argument("--mode", choices=("eager", "graph", "both"), default="both")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", nargs=3, metavar=("MODE", "LAYERS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        mode, layers, folder = options.inside
        result = inside(mode == "graph", int(layers), Path(folder))
        Path(folder, f"{mode}-{layers}.json").write_text(json.dumps(result))
        return 0
    modes = ("eager", "graph") if options.mode == "both" else (options.mode,)
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for mode in modes:
            for layers in map(int, options.layers.split(",")):
                cells.append({"mode": mode, "layers": layers, **start(mode, layers, Path(folder))})
                print(line(cells[-1]), flush=True)
    missed = [cell for cell in cells if cell["per_step_us"] > BAR_US]
    print(f"bar {BAR_US:g} us per step: {'met' if not missed else f'missed in {len(missed)} cells'}")
    if options.out:
        document = {"schema": "vllm-ascend-split-batch.cascade-step-cost/1", "bar_us": BAR_US, "cells": cells}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if missed else 0


def line(cell: dict[str, Any]) -> str:
    """One cell as a line of text."""
    parts = ", ".join(f"{name} {value:.0f}" for name, value in cell["parts_us"].items())
    updates = "".join(
        f"; setting parameters, {arm}: {value:.0f}" for arm, value in cell["setting_parameters_us"].items()
    )
    return f"{cell['mode']:5} {cell['layers']:3} layers: {cell['per_step_us']:6.0f} us per step ({parts}){updates}"


def start(mode: str, layers: int, folder: Path) -> dict[str, Any]:
    """Run one cell in a process of its own, on the emulated NPU."""
    import torch_npu_emulator

    environment = torch_npu_emulator.environment(dict(os.environ))
    log = folder / f"{mode}-{layers}.log"
    with log.open("w") as output:
        code = subprocess.run(
            [sys.executable, __file__, "--inside", mode, str(layers), str(folder)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
    if code:
        sys.exit(f"cascade_step_cost: the engine ended with code {code}:\n{log.read_text()[-3000:]}")
    result: dict[str, Any] = json.loads((folder / f"{mode}-{layers}.json").read_text())
    return result


# Within the emulated process ------------------------------------------------------------------------------------------


class Stopwatch:
    """Microseconds spent in functions, a value a call."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def watch(self, owner: Any, name: str, label: str) -> None:
        """Time `owner.name` from now on."""
        function: Callable[..., Any] = getattr(owner, name)
        times = self.times.setdefault(label, [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                times.append((time.perf_counter() - begin) * 1e6)

        setattr(owner, name, timed)


def inside(graph: bool, layers: int, folder: Path) -> dict[str, Any]:
    """Measure one cell."""
    sys.path.insert(0, str(ROOT))
    from tests.emulated.tiny_models import TinyModel, build
    from vllm_ascend_split_batch.cascade.acceptance.serving import Cell, prompts
    from vllm_ascend_split_batch.cascade.acceptance.switched_engine import Size, SwitchedEngine, prepare_environment

    prepare_environment(
        graph=graph, min_prefix=128, min_requests=2, more={"VLLM_ASCEND_CASCADE_PROFILE": "floors"}
    )
    # Watched before the engine starts: the patches take these functions as they are then.
    watch = Stopwatch()
    from vllm_ascend_split_batch.cascade import binding
    from vllm_ascend_split_batch.cascade.graph_twin import binding as twins

    watch.watch(binding.Cascade, "decide", "decision")
    watch.watch(binding.Cascade, "_attach", "plan")
    if graph:
        watch.watch(twins.GraphTwins, "_choose", "choice of the graph")
        watch.watch(twins.GraphTwins, "_prepare", "tables")
    model = build(
        TinyModel(f"layers-{layers}", "qwen2", heads=4, kv_heads=2, head_size=64, layers=layers), folder, "bfloat16"
    )
    engine = SwitchedEngine(
        model, Size(REQUESTS, 1024, kv_cache_bytes=64 << 20), graph=graph, capture_sizes=[REQUESTS]
    )
    if graph:
        from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

        # Outermost, over our own patch: what either arm does there.
        watch.watch(NPUModelRunner, "_update_full_graph_params_if_needed", "setting")
    cell = Cell(REQUESTS, PREFIX)
    texts = prompts(cell, engine.vocabulary, 0)
    engine.generate(texts[:1], 1)
    batch = engine.start(texts, 3 * STEPS + 8)
    batch.step_until_all_decode()
    batch.timed_steps(4)
    medians: dict[str, dict[str, float]] = {}
    for arm in ("stock", "cascade"):
        with engine.stock() if arm == "stock" else nullcontext():
            batch.step()
            for times in watch.times.values():
                times.clear()
            batch.timed_steps(STEPS)
            medians[arm] = {label: statistics.median(times) for label, times in watch.times.items() if times}
    batch.end()
    parts = {label: value for label, value in medians["cascade"].items() if not label.startswith("setting")}
    setting = {}
    if graph:
        setting = {"stock": medians["stock"]["setting"], "twin": medians["cascade"]["setting"]}
    return {
        "per_step_us": sum(parts.values()),
        "parts_us": parts,
        "setting_parameters_us": setting,
        "engaged": engine.counters["engaged"],
    }


if __name__ == "__main__":
    sys.exit(main())
