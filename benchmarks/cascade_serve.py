"""Decode speed of a real model on the emulated NPU, stock against cascade, eager and in captured graphs.

    python benchmarks/cascade_serve.py [--mode eager|graph|both] [--batches 8,16,32] [--prefixes 1024,2048,4096,6144]
                                       [--model DIR] [--kernels wheel|host|own] [--rounds N] [--steps N] [--quick]
                                       [--out FILE.json]

Each mode is one engine, in a process of its own that this program starts on the emulated NPU. Within a cell the arms
take turns step by step in one batch, stock twice a round: the spread of the two stock series is the noise (A/A). Bars:
at 32 requests and at least 4096 shared tokens cascade decodes at least twice as fast; nowhere is it slower than the
noise; where the decision says no, the device is asked for exactly what stock asks.

Counted in the timed steps by the emulated NPU: copies to the host and synchronises that cascade adds (bar 0), KV bytes
read against the least that is possible, P + B*S tokens (bar 1.05), attention launches per layer (bar 3 with the kernel
wheel's operators, 2 with our own). Times are those of this machine's processor; what they say of an NPU is nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_ascend_split_batch.cascade.acceptance.serving import Cell, Measured, measure, table
from vllm_ascend_split_batch.cascade.acceptance.switched_engine import Size, SwitchedEngine, prepare_environment

ROOT = Path(__file__).resolve().parent.parent
BATCHES, PREFIXES = (8, 16, 32), (1024, 2048, 4096, 6144)
#: Operators that are attention or a part of it; all others are the same in both arms.
ATTENTION = (
    "fused_infer_attention",
    "fa_fp32_stage1",
    "lse_merge",
    "attention_update",
    "cascade_prefix",
    "cascade_suffix",
)
BAR_SPEED_UP, BAR_REQUESTS, BAR_PREFIX, BAR_BYTES = 2.0, 32, 4096, 1.05
#: The engines run the models' own bfloat16.
ELEMENT_BYTES = 2
BAR_LAUNCHES = {"wheel": 3, "host": 3, "own": 2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mode", choices=("eager", "graph", "both"), default="both")
    parser.add_argument("--batches", type=numbers, default=list(BATCHES))
    parser.add_argument("--prefixes", type=numbers, default=list(PREFIXES))
    parser.add_argument("--model", type=Path, help="a model folder; SmolLM2-135M-Instruct by default")
    parser.add_argument("--kernels", choices=("wheel", "host", "own"), default="wheel")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a turn")
    parser.add_argument("--quick", action="store_true", help="two cells, one round: whether it runs at all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", choices=("eager", "graph"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.batches, options.prefixes, options.rounds = [4], [256, 512], 1
    if options.inside:
        json.dump(inside(options), options.out.open("w"))
        return 0
    modes = ("eager", "graph") if options.mode == "both" else (options.mode,)
    results = {mode: start(mode, options) for mode in modes}
    document = {
        "schema": "vllm-ascend-split-batch.cascade-serve/1",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "kernels": options.kernels,
        "modes": results,
    }
    for mode, result in results.items():
        show(mode, result, options.kernels)
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(not result["missed"] for result in results.values()) else 1


def numbers(text: str) -> list[int]:
    """A list of positive integers, separated by commas."""
    values = [int(word) for word in text.split(",")]
    if min(values) < 1:
        raise ValueError
    return values


def start(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one mode in a process of its own, on the emulated NPU."""
    import torch_npu_emulator

    out = ROOT / "out" / f"cascade_serve-{mode}.json"
    out.parent.mkdir(exist_ok=True)
    model = options.model
    if model is None:
        sys.path.insert(0, str(ROOT))
        from tools.demo_model import ensure_model

        model = ensure_model()
    command = [sys.executable, __file__, "--inside", mode, "--model", str(model), "--out", str(out)]
    for name in ("batches", "prefixes"):
        command += [f"--{name}", ",".join(map(str, getattr(options, name)))]
    for name in ("kernels", "rounds", "steps"):
        command += [f"--{name}", str(getattr(options, name))]
    log = out.with_suffix(".log")
    with log.open("w") as output:
        code = subprocess.run(
            command, env=torch_npu_emulator.environment(dict(os.environ)), stdout=output, stderr=subprocess.STDOUT
        ).returncode
    if code:
        sys.exit(f"cascade_serve: the {mode} engine ended with code {code}; see {log}")
    result: dict[str, Any] = json.loads(out.read_text())
    return result


# Within the emulated process ------------------------------------------------------------------------------------------


def inside(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all cells of one mode."""
    graph = options.inside == "graph"
    prepare_environment(
        graph=graph, min_prefix=128, min_requests=2, more={"VLLM_ASCEND_CASCADE_KERNELS": options.kernels}
    )
    most = max(options.batches)
    # Prompts, own tokens and what is generated, in whole pages of 128.
    longest = -(-(max(options.prefixes) + 48 + 40 + (options.steps + 2) * 3 * options.rounds) // 128) * 128
    size = Size(most, longest, kv_cache_bytes=(1 << 30) + (512 << 20))
    engine = SwitchedEngine(options.model, size, graph=graph, capture_sizes=sorted(options.batches))
    config = json.loads((options.model / "config.json").read_text())
    cells = [Cell(requests, prefix) for prefix in options.prefixes for requests in options.batches]
    measured = []
    for cell in cells:
        one = measure(engine, cell, rounds=options.rounds, steps=options.steps, probe=probe)
        measured.append(one)
        print(*table([one])[0], flush=True)
    entries = [entry(one, config, options.steps) for one in measured]
    return {
        "layers": config["num_hidden_layers"],
        "cells": entries,
        "table": table(measured),
        "missed": missed(entries, options.kernels),
    }


def probe(arm: str) -> Callable[[], dict[str, Any]]:
    """What the emulated NPU counts in a turn."""
    from torch_npu.emulator import counters

    before = counters.snapshot()

    def finish() -> dict[str, Any]:
        after = counters.snapshot()
        launches = {
            name: count - before["launches"].get(name, 0)
            for name, count in after["launches"].items()
            if count != before["launches"].get(name, 0)
        }
        return {
            "launches": launches,
            "kv_bytes": after["kv_bytes"]["token"] - before["kv_bytes"]["token"],
            "device_to_host": after["copies"]["device_to_host"] - before["copies"]["device_to_host"],
            "synchronizes": after["synchronizes"] - before["synchronizes"],
            "implicit_synchronizes": after["implicit_synchronizes"] - before["implicit_synchronizes"],
        }

    return finish


def entry(one: Measured, config: dict[str, Any], steps: int) -> dict[str, Any]:
    """One cell as JSON, with what follows from its counts."""
    stock, cascade = one.facts["stock"], one.facts["cascade"]
    calls = sum(count for name, count in cascade["launches"].items() if any(part in name for part in ATTENTION))
    # The least: the prefix once and every request's own keys once, in each layer and step.
    layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    size = int(config.get("head_dim") or config["hidden_size"] // heads)
    token_bytes = 2 * int(config.get("num_key_value_heads") or heads) * size * ELEMENT_BYTES
    own = [cascade["tokens"] - one.cell.prefix + step for step in range(steps)]
    least = layers * token_bytes * sum(one.cell.prefix + one.cell.requests * tokens for tokens in own)
    return {
        **asdict(one),
        "speed_up": one.speed_up,
        "noise": one.noise,
        "stock_rate": one.stock_rate,
        "cascade_rate": one.cascade_rate,
        "slower": one.slower,
        "added_device_to_host": cascade["device_to_host"] - stock["device_to_host"],
        "added_synchronizes": cascade["synchronizes"] - stock["synchronizes"],
        "added_implicit_synchronizes": cascade["implicit_synchronizes"] - stock["implicit_synchronizes"],
        "attention_launches_per_layer": calls / layers / steps,
        "kv_bytes_over_least": cascade["kv_bytes"] / least,
        "same_launches": cascade["launches"] == stock["launches"],
    }


def missed(entries: list[dict[str, Any]], kernels: str) -> list[str]:
    """The bars that were missed, in words."""
    found = []
    for one in entries:
        name = f"{one['cell']['requests']} requests, {one['cell']['prefix']} shared"
        used = one["engaged"] > 0
        demanded = one["cell"]["requests"] >= BAR_REQUESTS and one["cell"]["prefix"] >= BAR_PREFIX
        if demanded and one["speed_up"] < BAR_SPEED_UP:
            found.append(f"{name}: {one['speed_up']:.2f}x, bar {BAR_SPEED_UP}x")
        if one["slower"]:
            found.append(f"{name}: slower than the noise ({one['speed_up']:.2f}x, noise {one['noise']:.0%})")
        for what in ("added_device_to_host", "added_synchronizes", "added_implicit_synchronizes"):
            if one[what]:
                found.append(f"{name}: {what.replace('_', ' ')} {one[what]}, bar 0")
        if used and one["attention_launches_per_layer"] > BAR_LAUNCHES[kernels]:
            found.append(f"{name}: {one['attention_launches_per_layer']:g} launches per layer")
        if used and one["kv_bytes_over_least"] > BAR_BYTES:
            found.append(f"{name}: KV bytes {one['kv_bytes_over_least']:.2f}x of the least, bar {BAR_BYTES}x")
        if not used and not one["same_launches"]:
            found.append(f"{name}: cascade stayed out, and yet other operators ran than stock's")
    return found


def show(mode: str, result: dict[str, Any], kernels: str) -> None:
    """Print one mode's table."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    shown = Table(title=f"decode tokens per second, {mode}, kernels: {kernels}", title_justify="left")
    heads = "requests", "shared", "stock", "cascade", "speed-up", "noise (A/A)", "two-stage", "reasons"
    for name in (*heads, "launches/layer", "KV bytes/least", "added copies, waits"):
        shown.add_column(name, justify="left" if name == "reasons" else "right")
    for row, one in zip(result["table"], result["cells"], strict=True):
        bytes_text = f"{one['kv_bytes_over_least']:.3f}"
        added = f"{one['added_device_to_host']}, {one['added_synchronizes'] + one['added_implicit_synchronizes']}"
        shown.add_row(*row, f"{one['attention_launches_per_layer']:g}", bytes_text, added)
    console.print(shown)
    for sentence in result["missed"]:
        console.print(f"  missed: {sentence}", style="red")
    if not result["missed"]:
        console.print("  every bar met", style="green")


if __name__ == "__main__":
    sys.exit(main())
