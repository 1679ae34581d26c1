"""Write everything in this folder again: run the two benchmarks (ten minutes on an idle machine), or take their files.

    python docs/evidence/cascade-serve/collect.py [--serve FILE.json] [--step-cost FILE.json]

Without a file the benchmark runs. README.md's tables, the figure and MANIFEST.sha256 follow from the two JSON files.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from tools.hosts.table import replace_between  # noqa: E402

from vllm_ascend_split_batch.cascade.acceptance.folder import write_manifest  # noqa: E402

SERVE, STEP_COST = HERE / "serve.json", HERE / "step-cost.json"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--step-cost", type=Path)
    options = parser.parse_args()
    obtain(SERVE, options.serve, "cascade_serve.py")
    obtain(STEP_COST, options.step_cost, "cascade_step_cost.py")
    serve, cost = json.loads(SERVE.read_text()), json.loads(STEP_COST.read_text())
    page = HERE / "README.md"
    text = page.read_text()
    for mode, result in serve["modes"].items():
        text = replace_between(text, mode, serve_table(result))
    page.write_text(replace_between(text, "cost", cost_table(cost)))
    plot(serve)
    write_manifest(HERE)


def obtain(target: Path, given: Path | None, program: str) -> None:
    """Copy the given file, or run the benchmark. Its exit status says whether bars were met, which the page shows."""
    if given is not None:
        if given.resolve() != target:
            shutil.copyfile(given, target)
        return
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / program), "--out", str(target)], check=False)


def serve_table(result: dict[str, Any]) -> list[str]:
    """One mode's cells."""
    names = "requests", "shared", "stock tok/s", "cascade tok/s", "speed-up", "noise (A/A)", "two-stage steps"
    names += "launches a layer", "KV bytes / least", "added copies, waits"
    rows = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for one in result["cells"]:
        used = f"{one['engaged']} of {one['of']}" + "".join(f", {reason}" for reason in one["reasons"])
        added = f"{one['added_device_to_host']}, {one['added_synchronizes'] + one['added_implicit_synchronizes']}"
        cells: list[object] = [one["cell"]["requests"], one["cell"]["prefix"]]
        cells += [f"{one['stock_rate']:.1f}", f"{one['cascade_rate']:.1f}", f"{one['speed_up']:.2f}"]
        cells += [f"{one['noise']:.0%}", used, f"{one['attention_launches_per_layer']:g}"]
        cells += [f"{one['kv_bytes_over_least']:.3f}", added]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    missed = "; ".join(result["missed"])
    return [*rows, "", f"Bars missed: {missed or 'none'}."]


def cost_table(document: dict[str, Any]) -> list[str]:
    """Host time of a step, by mode and layers."""
    rows = ["| mode | layers | us a step |", "|---|---|---|"]
    rows += [f"| {one['mode']} | {one['layers']} | {one['per_step_us']:.0f} |" for one in document["cells"]]
    return [*rows, "", f"Bar: {document['bar_us']:g} us, in every row."]


def plot(serve: dict[str, Any]) -> None:
    """Speed-up over the shared tokens, a line a batch size, a panel a mode."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "cascade-serve"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(serve["modes"]), figsize=(10, 4), sharey=True, squeeze=False)
    for axis, (mode, result) in zip(axes[0], serve["modes"].items(), strict=True):
        for requests in sorted({one["cell"]["requests"] for one in result["cells"]}):
            line = [one for one in result["cells"] if one["cell"]["requests"] == requests]
            prefixes = [one["cell"]["prefix"] for one in line]
            axis.errorbar(
                prefixes,
                [one["speed_up"] for one in line],
                yerr=[one["noise"] * one["speed_up"] for one in line],
                marker="o",
                capsize=3,
                label=f"{requests} requests",
            )
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.axhline(2, color="grey", linewidth=0.8, linestyle=":")
        axis.set_title(f"{mode} mode")
        axis.set_xlabel("shared tokens")
    axes[0][0].set_ylabel("decode speed, cascade over stock")
    axes[0][0].legend()
    figure.suptitle("SmolLM2-135M on the emulated NPU, two CPU cores; bars: noise of stock against itself")
    figure.tight_layout()
    figure.savefig(HERE / "speed-up.png", dpi=120)
    figure.savefig(HERE / "speed-up.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
