"""Measure GeGLU's accuracy over all of bfloat16, kernel and other forms, and rewrite this folder.

python docs/evidence/geglu/collect.py
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402
from split_batch_kernels import geglu, row_launch  # noqa: E402
from tests.kernels.test_kernels_geglu import UPS, pairs, textbook, units  # noqa: E402
from tools.svg_plot import Axis, Series, lines  # noqa: E402
from vllm_ascend_split_batch.activation.exact_geglu import exact_geglu  # noqa: E402
from vllm_ascend_split_batch.cascade.acceptance.folder import write_manifest  # noqa: E402


def tanh_form(gate_up: torch.Tensor) -> torch.Tensor:
    """The approximation by tanh, in float32."""
    gate, up = gate_up.chunk(2, -1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def one_plus_erf(gate_up: torch.Tensor) -> torch.Tensor:
    """The exact formula as it is usually written, in float32: cancels for negative gates."""
    gate, up = gate_up.chunk(2, -1)
    return 0.5 * gate * (1 + torch.erf(gate * math.sqrt(0.5))) * up


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "kernel (interpreted)": row_launch.geglu_rows,
    "reference (float64)": geglu.geglu,
    "torch form (erfc, float32)": exact_geglu,
    "0.5 g (1 + erf), float32": one_plus_erf,
    "tanh form, float32": tanh_form,
}
PLOTTED = ("kernel (interpreted)", "0.5 g (1 + erf), float32", "tanh form, float32")


def measure(form: Callable[[torch.Tensor], torch.Tensor]) -> dict:
    """Distances to float64 in units of bfloat16, per multiplier: float32 in, rounded to bfloat16 at the end."""
    found = {}
    for up in UPS:
        want = textbook(pairs(up)).to(torch.bfloat16)
        got = form(pairs(up, torch.float32)).flatten().to(torch.bfloat16)
        # Other forms may differ in where they are NaN (an infinite gate): told apart, not compared.
        same = got.isnan() == want.isnan()
        distance = units(torch.where(same, got, 0.0), torch.where(same, want, 0.0))
        found[f"up = {up:g}"] = {
            "gates": len(want),
            "largest_distance": int(distance.max()),
            "not_rounded_like_float64": int((distance > 0).sum()),
            "more_than_one_unit": int((distance > 1).sum()),
            "nan_elsewhere": int((~same).sum()),
        }
    return found


def plot() -> str:
    """Relative error in float32 against the gate, where the forms part."""
    gates = torch.linspace(-9, 4, 1301, dtype=torch.float64)
    given = torch.stack([gates, torch.ones_like(gates)], 1).float()
    want = textbook(given)
    series = []
    for name in PLOTTED:
        got = FORMS[name](given).flatten().double()
        relative = ((got - want).abs() / want.abs().clamp(min=1e-300)).clamp(1e-9, 10)
        series.append(Series(name, points=list(zip(gates.tolist(), relative.tolist(), strict=True))))
    return lines(
        "Relative error of gelu(g) against float64 (1e-9 stands for less); one unit of bfloat16 is 0.004 to 0.008",
        series,
        Axis("gate g", -9, 4),
        Axis("relative error", 1e-9, 10, log=True),
    )


def main() -> None:
    results = {name: measure(form) for name, form in FORMS.items()}
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton", "numpy")}
    document = {"versions": versions | {"python": platform.python_version()}, "forms": results}
    (HERE / "accuracy.json").write_text(json.dumps(document, indent=1) + "\n")
    (HERE / "relative-error.svg").write_text(plot())
    write_manifest(HERE)
    for name, found in results.items():
        worst = max(one["largest_distance"] for one in found.values())
        print(f"{name:30s} largest distance {worst} units of bfloat16")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
