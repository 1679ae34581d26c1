"""Draw every case, compare with the oracle, and rewrite this folder.

Rows of up to 5,000 tokens are drawn by the interpreted Triton kernel. Of a vocabulary of 151,936 the interpreter draws a
hundred rows a second at best: there the kernel draws some, each compared with the CPU reference, which draws them all.


python docs/evidence/sampling/collect.py [--draws 100000] [--only NAME] [--missing]

A case's figures are written as soon as they are there; --missing measures only cases without that many draws.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from split_batch_kernels import row_launch, sampling  # noqa: E402
from tests.kernels.sampling_cases import LARGE, SMALL, Case, compare, draw  # noqa: E402
from tools.svg_plot import Axis, Series, rows_of_dots  # noqa: E402
from vllm_ascend_split_batch.cascade.acceptance.folder import write_manifest  # noqa: E402

BATCH = 20_000
#: Draws of a large vocabulary that the kernel makes, too.
COMPARED = 500


def measure(case: Case, draws: int) -> dict:
    """The statistics of one case; draws are made in batches, each with a step of its own."""
    import torch

    started, tokens, out_of_rounds = time.monotonic(), [], 0
    by = sampling if case in LARGE else row_launch
    for step, first in enumerate(range(0, draws, BATCH)):
        drawn, capped = draw(case, min(BATCH, draws - first), by, step=step)
        tokens.append(drawn)
        out_of_rounds += capped
    differing = None
    if by is sampling:
        drawn, _ = draw(case, COMPARED, row_launch, step=0)
        differing = int((drawn != tokens[0][:COMPARED]).sum())
    probabilities = case.probabilities()
    agreement = compare(torch.cat(tokens), probabilities)
    return {
        "case": case.name,
        "drawn_by": "reference" if by is sampling else "kernel",
        "kernel_draws_compared": None if differing is None else COMPARED,
        "kernel_draws_differing": differing,
        "vocabulary": len(probabilities),
        "top_k": case.top_k,
        "top_p": case.top_p,
        "kept_tokens": int((probabilities > 0).sum()),
        "rows_out_of_rounds": out_of_rounds,
        **dataclasses.asdict(agreement),
        "holds": agreement.holds and not differing,
        "seconds": round(time.monotonic() - started, 1),
    }


def plots(results: list[dict]) -> dict[str, str]:
    """The two plots by file name."""
    labels = [result["case"] for result in results]
    floor = 1e-5
    return {
        "total-variation.svg": rows_of_dots(
            "Total variation distance between draws and oracle, 100,000 draws or more a case",
            labels,
            [
                Series("measured", [max(r["total_variation"], floor) for r in results]),
                Series("of a perfect sampler, on average", [max(r["expected_total_variation"], floor) for r in results]),
            ],
            Axis("total variation distance (1e-5 stands for less)", floor, 1, log=True),
        ),
        "chi-square.svg": rows_of_dots(
            "Pearson's chi-square test of the same draws",
            labels,
            [Series("p-value", [max(r["p_value"], 1e-6) for r in results])],
            Axis("p-value (uniform between 0 and 1 for a perfect sampler)", 0, 1),
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--only", help="measure one case")
    parser.add_argument("--missing", action="store_true", help="keep figures of that many draws that are there already")
    arguments = parser.parse_args()
    cases = SMALL + LARGE
    present = {}
    if (HERE / "statistics.json").exists() and (arguments.missing or arguments.only):
        present = {one["case"]: one for one in json.loads((HERE / "statistics.json").read_text())["cases"]}
    for case in cases:
        known = present.get(case.name, {}).get("draws", 0) >= arguments.draws
        if arguments.only in (None, case.name) and not (arguments.missing and known):
            present[case.name] = measure(case, arguments.draws)
            print(json.dumps(present[case.name]), flush=True)
            write([present[case.name] for case in cases if case.name in present])
    failed = [name for name, result in present.items() if not result["holds"]]
    print(f"{len(present) - len(failed)} of {len(cases)} cases hold{': not ' if failed else ''}{', '.join(failed)}")
    sys.exit(1 if failed else 0)


def write(results: list[dict]) -> None:
    """The folder's figures, plots and checksums."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton", "numpy")}
    document = {"versions": versions | {"python": platform.python_version()}, "cases": results}
    (HERE / "statistics.json").write_text(json.dumps(document, indent=1) + "\n")
    for name, text in plots(results).items():
        (HERE / name).write_text(text)
    write_manifest(HERE)


if __name__ == "__main__":
    main()
