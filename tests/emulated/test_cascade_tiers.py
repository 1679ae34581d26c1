"""Every kernel tier in the real host: tokens equal stock's, eager and in captured graphs, and kernels that fail."""

from __future__ import annotations

import json

import pytest

from . import tiny_models
from .prompts import shared_prefix_batch
from .switched_on import SWITCHED_ON

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

MODEL = tiny_models.QWEN2
CARRIER = "cascade-attention"
OFF = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
ON = SWITCHED_ON[CARRIER] | OFF
GRAPH = {
    "enforce_eager": False,
    "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4, 8]},
}


def batches():
    common = {"vocabulary": MODEL.vocabulary}
    return [
        shared_prefix_batch(requests=6, prefix=300, tokens=12, seed=1, **common),
        shared_prefix_batch(requests=3, prefix=400, tokens=8, seed=2, **common),
    ]


@pytest.fixture
def run(engines, build_model):
    def start(*, graph: bool = False, **env: str):
        return engines.run(build_model(MODEL), batches(), env=env, engine=GRAPH if graph else {})

    return start


@pytest.mark.parametrize("tier", ["host", "own"])
def test_tokens_equal_stock(run, tier):
    result = run(VLLM_ASCEND_CASCADE_KERNELS=tier, **ON)
    assert result.tokens == run(**OFF).tokens
    carrier = result.worker(CARRIER)
    assert carrier["failures"] == {}
    assert carrier["engaged"] >= 12
    ops = {call["op"].split("::")[1] for call in result.oplog}
    if tier == "host":
        assert "npu_attention_update" in ops
    else:
        assert {"cascade_prefix", "cascade_suffix"} <= ops


@pytest.mark.parametrize("tier", ["host", "own"])
def test_graph_twins_of_each_tier(run, tier):
    graph = {"VLLM_ASCEND_ENABLE_CASCADE_GRAPH": "1", "VLLM_ASCEND_CASCADE_KERNELS": tier}
    result = run(graph=True, **ON, **graph)
    assert result.tokens == run(**OFF).tokens
    twins = result.worker("cascade-graph")
    assert twins["failures"] == {}
    assert twins["engaged"] >= 12


def test_own_kernels_take_two_launches_a_layer(run):
    """The operator log holds nothing else in steps that ran two-stage."""
    result = run(VLLM_ASCEND_CASCADE_KERNELS="own", **ON)
    prefix = [call for call in result.oplog if call["op"].endswith("cascade_prefix")]
    suffix = [call for call in result.oplog if call["op"].endswith("cascade_suffix")]
    self_test = 1
    assert len(prefix) == len(suffix) == result.worker(CARRIER)["engaged"] * MODEL.layers + self_test


def test_auto_takes_the_first_tier_with_a_profile(run, tmp_path):
    """The wheel is not there; `host` has a profile in the user's file; `own` has none."""
    profile = tmp_path / "profile.json"
    shape = {"query_heads": 4, "kv_heads": 2, "head_size": 64, "element_bytes": 4}
    free = dict.fromkeys(("stock_launch_us", "stock_request_us", "cascade_launch_us"), 0.0)
    free |= dict.fromkeys(("cascade_request_us", "cascade_step_us"), 0.0)
    rates = {"read_gb_s": 1.0, "reuse_gb_s": 1.0, "cache_mib": 1.0, "prefix_tflop_s": 1.0}
    entry = {
        "device": "emulated-npu",
        "tier": "host",
        "mode": "eager",
        "sources": ["made for a test"],
        "margin": 0.0,
        "coefficients": free | rates,
        "measured": shape | {"requests": [2, 64], "prefix_tokens": [128, 4096], "suffix_tokens": [1, 512]},
        "fit": {"cells": 1, "median_error": 0.0, "largest_error": 0.0},
    }
    document = {"schema": "vllm-ascend-split-batch.cascade-profile/1", "profiles": [entry]}
    profile.write_text(json.dumps(document))
    automatic = {"VLLM_ASCEND_CASCADE_KERNELS": "auto", "VLLM_ASCEND_CASCADE_PROFILE": str(profile)}
    result = run(**ON | automatic | {"NPU_EMU_KERNELS": "none"})
    assert result.tokens == run(**OFF).tokens
    assert result.worker(CARRIER)["engaged"] >= 12
    assert {call["op"].split("::")[1] for call in result.oplog} >= {"npu_attention_update"}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("lse_base2", "the prefix stage returns its LSE to base 2"),
        ("fia_uniform_average", "the prefix stage returns the plain average of the values"),
    ],
)
def test_wrong_kernels_never_compute_a_token(run, fault, said):
    """A fault in the device's kernels is found before the first two-stage step, named once, and stock's texts stay."""
    result = run(NPU_EMU_FAULT=fault, **ON)
    assert result.tokens == run(NPU_EMU_FAULT=fault, **OFF).tokens
    carrier = result.worker(CARRIER)
    assert carrier["engaged"] == 0
    assert carrier["reasons"]["self_test"] == 1
    assert len([line for line in result.log.splitlines() if said in line]) == 1
