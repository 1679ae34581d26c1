"""The acceptance kit on the emulated NPU: it accepts what is right and pays, and names each fault that is planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_npu_emulator

from tests.emulated.tiny_models import TinyModel

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

#: Two layers whose attention is most of a step's work where many requests share a long prompt.
MODEL = TinyModel("accept-d64", "qwen2", heads=12, kv_heads=4, head_size=64, layers=2, seed=11)
#: Requests and shared tokens with which cascade wins there by far.
CELL = "16x3072"


def accept(model: Path, out: Path, *arguments: str, fault: str = "") -> tuple[int, str]:
    """Exit status and verdict of `cascade accept`."""
    command = [sys.executable, "-m", "vllm_ascend_split_batch.cascade.commands", "accept"]
    done = subprocess.run(
        [*command, "--model", str(model), "--out", str(out), "--kv-cache-gib", "0.5", *arguments],
        env=torch_npu_emulator.environment(os.environ) | {"NPU_EMU_FAULT": fault},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert "Traceback" not in done.stderr, done.stderr
    verdict = (out / "verdict.txt").read_text()
    assert verdict in done.stdout
    return done.returncode, verdict


@pytest.fixture(scope="module")
def model(build_model) -> Path:
    return build_model(MODEL, "bfloat16")


def test_what_is_right_and_pays_is_accepted(model, tmp_path):
    status, verdict = accept(model, tmp_path / "out", "--modes", "graph", "--cells", CELL)
    assert verdict.startswith("ACCEPTED: "), verdict
    assert status == 0
    assert "steps ran with cascade" in verdict
    assert "faster than stock in 1 of 1 cells" in verdict
    (serving,) = json.loads((tmp_path / "out" / "serving-graph.json").read_text())["cells"]
    assert serving["engaged"] == serving["of"] > 0
    listed = (tmp_path / "out" / "MANIFEST.sha256").read_text()
    for name in ("calibration.json", "cells.json", "identity-graph.json", "kernels.json", "verdict.json"):
        assert f"  {name}\n" in listed


def test_what_is_slower_than_stock_is_not(model, tmp_path):
    """The device is measured with the fault, so its profile switches cascade off, or the timing shows the loss."""
    status, verdict = accept(
        model, tmp_path / "out", "--modes", "eager", "--cells", CELL, "--quick", fault="slow_merge"
    )
    assert verdict.startswith("NOT ACCEPTED: "), verdict
    assert status == 1
    assert "problem: speed: " in verdict
    assert "texts, eager" not in verdict.partition("found:")[0]


@pytest.mark.parametrize(
    ("fault", "mode", "problem"),
    [
        ("lse_base2", "eager", "problem: kernels: "),
        ("fia_uniform_average", "eager", "problem: kernels: "),
        ("ignore_task_update", "graph", "texts differ by more than a near tie"),
    ],
    ids=["LSE to base 2", "plain average", "stale parameters"],
)
def test_a_planted_fault_is_named(model, tmp_path, fault, mode, problem):
    status, verdict = accept(model, tmp_path / "out", "--modes", mode, "--quick", fault=fault)
    assert verdict.startswith("NOT ACCEPTED: "), verdict
    assert status == 1
    assert problem in verdict
    assert not list((tmp_path / "out").glob("serving-*.json")), "what is wrong is not timed"
