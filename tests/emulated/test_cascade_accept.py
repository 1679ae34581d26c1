"""`cascade accept` on the emulated NPU: it accepts what is in order, and says what is wrong when something is.

The model is small but its attention is not: one layer of 16 heads, each with keys and values of its own, and 16
requests that share 2048 tokens. There cascade takes half of stock's time for a step, also on the emulated NPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vllm_ascend_split_batch.cascade.acceptance.folder import check_manifest

from . import planted_by_plugin
from .engines import FOREIGN_PREFIXES
from .tiny_models import TinyModel

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

MODEL = TinyModel("wide", "qwen2", heads=16, kv_heads=16, head_size=64, layers=1, intermediate=256, seed=1)
CELL = "16x2048"
KIT_SECONDS = 400


@dataclass(frozen=True)
class Acceptance:
    """What a run of the kit came to: exit status, what it printed, and its folder."""

    status: int
    printed: str
    folder: Path

    @property
    def verdict(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "verdict.json").read_text())
        return found

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return found

    @property
    def measured(self) -> set[str]:
        """The steps that were done."""
        steps = ("kernels", "identity-eager", "identity-graph", "calibration", "serving-eager", "serving-graph")
        return {name for name in steps if (self.folder / f"{name}.log").exists()}


@pytest.fixture
def accept(build_model, tmp_path):
    """A function that runs the kit."""

    def run(*arguments: str, plugin: str | None = None, **environment: str) -> Acceptance:
        import torch_npu_emulator

        base = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_PREFIXES)}
        base |= {"NPU_EMU_TOTAL_GIB": "4"} | environment
        if plugin is not None:
            base |= {"PLANTED_FAULT": plugin, "PYTHONPATH": planted_by_plugin.installed(tmp_path / "plugins")}
        out = tmp_path / "evidence"
        command = [sys.executable, "-m", "vllm_ascend_split_batch.cascade.commands", "accept", "--quick"]
        command += ["--model", str(build_model(MODEL, "bfloat16")), "--out", str(out)]
        # Other tests may run beside: whether the device is idle is not what is asked here.
        command += ["--cells", CELL, "--kv-cache-gib", "0.25", "--most-noise", "10", *arguments]
        done = subprocess.run(
            command, env=torch_npu_emulator.environment(base), capture_output=True, text=True, timeout=KIT_SECONDS
        )
        printed = done.stdout + done.stderr
        assert "Traceback" not in printed, printed
        assert (out / "verdict.json").exists(), printed
        assert check_manifest(out) == []
        assert (out / "verdict.txt").read_text() in printed
        return Acceptance(done.returncode, printed, out)

    return run


def test_what_is_in_order_and_pays_is_accepted(accept):
    done = accept()
    assert done.verdict["problems"] == []
    assert done.verdict["accepted"]
    assert done.status == 0
    assert "\nACCEPTED: " in done.printed
    assert len(done.measured) == 6
    for mode in ("eager", "graph"):
        texts = done.result(f"identity-{mode}")
        assert texts["requests"] > 60
        assert texts["steps_two_stage"] > 50
        assert texts["twins_replayed"] == (texts["steps_two_stage"] if mode == "graph" else 0)
        (cell,) = done.result(f"serving-{mode}")["cells"]
        assert cell["engaged"] == cell["of"]
        assert cell["speed_up"] > 1 + cell["noise"]
    assert "faster than stock in 2 of 2 cells" in done.printed
    assert "an emulated NPU: times say nothing of a device" in (done.folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("lse_base2", "kernels: the prefix stage returns its LSE to base 2, the merge takes natural logarithms."),
        ("fia_uniform_average", "kernels: the prefix stage returns the plain average of the values"),
    ],
)
def test_wrong_kernels_are_not_accepted(accept, fault, reason):
    done = accept(NPU_EMU_FAULT=fault)
    refused(done, reason)
    assert done.measured == {"kernels"}, "nothing is measured with kernels that are wrong"


@pytest.mark.parametrize("by_device", [True, False], ids=["the device ignores updates", "the twin keeps its lengths"])
def test_stale_parameters_are_not_accepted(accept, by_device):
    """A device on which task updates have no effect, for both arms; and a twin that does not set its lengths."""
    stale: dict[str, Any] = {"NPU_EMU_FAULT": "ignore_task_update"} if by_device else {"plugin": "stale_lengths"}
    done = accept("--modes", "graph", **stale)
    refused(done, "texts differ by more than a near tie between two tokens. Cascade computes something else than stock")
    texts = done.result("identity-graph")
    assert texts["twins_replayed"] > 50
    assert texts["faults"] > texts["requests"] // 4
    assert done.measured == {"kernels", "identity-graph"}, "times of wrong texts are not taken"


def test_slower_than_stock_is_not_accepted(accept):
    """Right, and predicted to win by a profile that does not know of a delay in the engine."""
    done = accept("--modes", "eager", plugin="slow")
    refused(done, "slower than stock")
    (cell,) = done.result("serving-eager")["cells"]
    assert cell["engaged"] == cell["of"]
    assert cell["speed_up"] < 1 - cell["noise"]
    assert done.measured == {"kernels", "identity-eager", "calibration", "serving-eager"}


def refused(done: Acceptance, reason: str) -> None:
    """Not accepted, for this reason and no other."""
    assert done.status == 1, done.printed
    assert not done.verdict["accepted"]
    assert "\nNOT ACCEPTED: leave cascade off" in done.printed
    (problem,) = done.verdict["problems"]
    assert reason in problem
