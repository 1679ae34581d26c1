"""`cascade calibrate` on the emulated NPU: what it measures, writes and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_npu_emulator

from vllm_ascend_split_batch.cascade.profiles import EMULATED_DEVICE, Key, load

pytestmark = pytest.mark.emulated

CONFIG = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 256,
    "num_hidden_layers": 2,
}
CELLS = [
    "--modes",
    "eager",
    "--batches",
    "2,4",
    "--prefixes",
    "128,512",
    "--suffixes",
    "16,200",
    "--seconds",
    "0.05",
    "--most-noise",
    "10",
]


def calibrate(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "vllm_ascend_split_batch.cascade.commands",
            "calibrate",
            "--model",
            str(folder),
            *arguments,
        ],
        env=torch_npu_emulator.environment(os.environ) | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("tier", ["wheel", "host"])
def test_the_emulated_npu_is_measured(tmp_path, tier):
    done = calibrate(tmp_path, "--tier", tier, "--out", "profile.json", "--cells", "cells.json", *CELLS)
    assert done.returncode == 0, done.stderr
    (profile,) = load(tmp_path / "profile.json")
    assert profile.key == Key(EMULATED_DEVICE, tier, "eager")
    assert profile.coefficients is not None
    assert profile.coefficients.cache_mib is None
    assert profile.coverage is not None
    assert (profile.coverage.requests.low, profile.coverage.prefix_tokens.high) == (2, 512)
    cells = json.loads((tmp_path / "cells.json").read_text())[0]["cells"]
    assert len(cells) == 8
    assert all(cell["rounds"] >= 5 and cell["stock_us"] > 0 and cell["cascade_us"] > 0 for cell in cells)
    assert "8/8" in done.stderr
    assert done.stdout.rstrip().endswith(f"VLLM_ASCEND_CASCADE_PROFILE={tmp_path / 'profile.json'}")


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"NPU_EMU_KERNELS": "none"}, "ascend_kernel"),
        ({"NPU_EMU_FAULT": "lse_base2"}, "fail their self-test on this device"),
        ({"NPU_EMU_FAULT": "fia_uniform_average"}, "fail their self-test on this device"),
    ],
    ids=["no kernels", "LSE to base 2", "plain average"],
)
def test_kernels_that_are_not_there_or_wrong_are_not_measured(tmp_path, environment, problem):
    done = calibrate(tmp_path, "--out", "profile.json", *CELLS, **environment)
    assert done.returncode == 1, done.stderr
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "profile.json").exists()
