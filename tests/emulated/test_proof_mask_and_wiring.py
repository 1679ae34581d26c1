"""fia-demask, zerocost-wiring and aot-cache-guard on whatever release is installed.

The first three share one engine beside stock's; each looks at what stock spends and at what is left of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.proofs import Facts

from . import tiny_models
from .mask_and_wiring import copies, fused_calls, launches, one_query_each
from .switched_on import SWITCHED_ON
from .test_token_identity import batches

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

MODEL = tiny_models.QWEN2
DEMASK, OUT, SKIP, GUARD = "fia-demask", "zerocost-prefill-out", "zerocost-skip-cos-sin", "aot-cache-guard"
CHILD = Path(__file__).with_name("compile_ahead_child.py")


@pytest.fixture
def stock(engines, build_model):
    return engines.run(build_model(MODEL), batches(MODEL))


@pytest.fixture
def result(engines, build_model):
    return engines.run(
        build_model(MODEL), batches(MODEL), env=SWITCHED_ON[DEMASK] | SWITCHED_ON[OUT] | SWITCHED_ON[SKIP]
    )


def installed(entry: dict[str, Any]) -> bool:
    """Every release up to now has what these carriers need; one that has not must say so by its seams."""
    assert entry["failures"] == {}
    if entry["state"] == "refused":
        assert entry["engaged"] == 0
        assert any(seam["status"] in ("differs", "missing") for seam in entry["seams"]), entry["state_reason"]
        return False
    assert entry["state"] == "installed"
    assert entry["engaged"] + sum(entry["reasons"].values()) == entry["calls"]
    return True


@pytest.mark.proof(DEMASK)
def test_decode_runs_without_its_mask(stock, result, proof: Facts):
    decode = [call for call in fused_calls(stock) if one_query_each(call)]
    masked = sum(call["masked"] for call in decode)
    proof.defect(
        "a mask that masks nothing",
        present=masked > 0,
        because=f"{masked} of stock's {len(decode)} decode calls bring one",
    )
    entry = proof.engine(result)
    assert result.tokens == stock.tokens
    if installed(entry):
        left = [call for call in fused_calls(result) if one_query_each(call) and call["masked"]]
        assert left == []
        assert entry["engaged"] > 80
        proof.number("decode calls without a mask", entry["engaged"])


@pytest.mark.proof(OUT)
def test_prefill_is_written_where_it_belongs(stock, result, proof: Facts):
    entry = proof.engine(result)
    saved = copies(stock, "device_to_device") - copies(result, "device_to_device")
    proof.defect(
        "prefill copied twice", present=saved > 0, because=f"{saved} copies on the device more, with all carriers off"
    )
    assert result.tokens == stock.tokens
    if installed(entry):
        assert entry["engaged"] == launches(result, "npu::npu_fused_infer_attention_score.out") > 0
        assert entry["counters"]["self_copies_skipped"] == entry["engaged"]
        assert entry["counters"].get("written_back", 0) == 0
        proof.number("copies saved", 2 * entry["engaged"])


@pytest.mark.proof(SKIP)
def test_rope_buffers_that_nobody_reads_are_not_filled(stock, result, proof: Facts):
    entry = proof.engine(result)
    gathers = launches(stock, "aten::index_select") - launches(result, "aten::index_select")
    proof.defect(
        "rope buffers filled, not read", present=gathers > 0, because=f"{gathers} gathers more, with all carriers off"
    )
    assert result.tokens == stock.tokens
    if installed(entry):
        assert entry["engaged"] > 20
        assert gathers > entry["engaged"]  # two a step; the two engines need not take the same number of steps
        proof.number("gathers saved", gathers)


@pytest.mark.proof(GUARD)
def test_compiling_ahead_of_time_does_not_assert(proof: Facts):
    """With torch's cache as it is by default; no engine is needed to reach the assertion."""
    import torch_npu_emulator

    base = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "NPU_EMU_"))}
    environment = torch_npu_emulator.environment(base | {"VLLM_PLUGINS": ""})
    del environment["TORCHINDUCTOR_AUTOGRAD_CACHE"]
    ran = subprocess.run(
        [sys.executable, str(CHILD)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, ran.stdout[-2000:] + ran.stderr[-4000:]
    found = json.loads(lines[0][6:])
    present = found["stock"] is not None
    proof.defect(
        "the AOTAutograd cache asserts",
        present=present,
        because=found["stock"] or "the same compilation passes without us",
    )
    proof.report(found["report"])
    assert found["guarded"] is None
    report = found["report"]
    assert report["failures"] == {}
    if present:
        assert "expected OutputCode" in found["stock"]
        assert (report["state"], report["engaged"]) == ("installed", 1)
    else:
        assert report["engaged"] == 0
        assert report["state_reason"].startswith("not needed here")
