"""The emulated NPU runs a cascade through our Triton kernels, in Triton's interpreter: tokens equal to stock."""

from __future__ import annotations

import pytest

from . import tiny_models
from .prompts import shared_prefix_batch
from .switched_on import CASCADE

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.interpreter]

MODEL = tiny_models.QWEN3
CARRIER = "cascade-attention"
PREFIX, TOKENS, REQUESTS = 300, 10, 4
SELF_TEST_CALLS = 4
#: The interpreter copies the whole cache at every launch: a small one.
ENGINE = {"kv_cache_memory_bytes": 32 << 20}
#: Our two launches a layer; and the wheel's contract on our kernels, beside the host's own attention for the suffix.
TIERS = {
    "own": (
        {"VLLM_ASCEND_CASCADE_KERNELS": "own"},
        ("split_batch::cascade_prefix", "split_batch::cascade_suffix"),
    ),
    "wheel": (
        {"VLLM_ASCEND_CASCADE_KERNELS": "wheel", "VLLM_ASCEND_CASCADE_PRECISION": "fp32"},
        ("npu::fa_fp32_stage1", "npu::lse_merge"),
    ),
}


def batches():
    return [
        shared_prefix_batch(requests=REQUESTS, prefix=PREFIX, tokens=TOKENS, vocabulary=MODEL.vocabulary, seed=PREFIX)
    ]


@pytest.fixture
def stock(engines, build_model):
    return engines.run(build_model(MODEL), batches(), engine=ENGINE)


@pytest.fixture
def run(engines, build_model):
    def start(mutant=None, **env):
        return engines.run(build_model(MODEL), batches(), env=CASCADE | env, engine=ENGINE, mutant=mutant)

    return start


@pytest.mark.parametrize(("settings", "launched"), TIERS.values(), ids=TIERS)
def test_tokens_equal_stock(stock, run, settings, launched):
    assert tiny_models.distinct_share(stock.tokens[0]) > 0.6, "texts that loop prove little"
    result = run(NPU_EMU_KERNELS="triton", **settings)
    assert result.tokens == stock.tokens
    carrier = result.carrier(CARRIER)
    assert carrier["failures"] == {}
    assert carrier["engaged"] >= TOKENS - 2
    launches = carrier["engaged"] * MODEL.layers
    ops = [call["op"] for call in result.oplog]
    for op in launched:  # those of the steps, and a few of the self-test at the start
        assert launches <= ops.count(op) <= launches + SELF_TEST_CALLS


def test_a_wrong_log_sum_exp_changes_tokens(stock, run):
    """The identity above would notice: a prefix log-sum-exp shifted by 3, past a self-test that is blinded."""
    settings, _ = TIERS["wheel"]
    result = run("nothing_but_blind", NPU_EMU_KERNELS="triton", NPU_EMU_FAULT="lse_shift", **settings)
    assert result.carrier(CARRIER)["engaged"] >= TOKENS - 2
    assert result.tokens != stock.tokens
