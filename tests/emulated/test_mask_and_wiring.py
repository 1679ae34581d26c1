"""fia-demask and zerocost-wiring in whole engines: the host's tokens and log-probabilities bit for bit, less work."""

from __future__ import annotations

import pytest

from . import mask_and_wiring
from .mask_and_wiring import DEMASK, LAYERS, MODEL, PREFILL_OUT, SKIP_COS_SIN, copies, fused_calls, launches
from .switched_on import SWITCHED_ON

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

#: What an engine does once for itself, in every arm alike, is in no comparison below: those are of two whole runs.
SYNCHRONISING = ("synchronizes", "implicit_synchronizes")


@pytest.fixture
def run(engines, build_model):
    def start(env=None, **more):
        return mask_and_wiring.run(engines, build_model(MODEL), env, **more)

    return start


def bits(result):
    return result.tokens, result.logprobs


def test_switches_are_those_of_the_table():
    assert SWITCHED_ON["fia-demask"] == DEMASK
    assert SWITCHED_ON["zerocost-prefill-out"] == PREFILL_OUT
    assert SWITCHED_ON["zerocost-skip-cos-sin"] == SKIP_COS_SIN


def test_decode_without_its_mask_equals_stock(run):
    stock, result = run(), run(DEMASK)
    assert bits(result) == bits(stock)
    carrier = result.worker("fia-demask")
    assert (carrier["state"], carrier["failures"]) == ("installed", {})
    assert set(carrier["reasons"]) == {"not_decode"}
    assert carrier["engaged"] + sum(carrier["reasons"].values()) == carrier["calls"]

    assert len(fused_calls(result)) == len(fused_calls(stock)) == carrier["calls"]
    for before, after in zip(fused_calls(stock), fused_calls(result), strict=True):
        decode = mask_and_wiring.one_query_each(before)
        assert before["masked"], "stock attention always brings its mask"
        assert after == (before | {"masked": False, "sparse_mode": 0} if decode else before)
    assert sum(not call["masked"] for call in fused_calls(result)) == carrier["engaged"] > 50


def test_wiring_equals_stock_with_fewer_copies(run):
    stock, result = run(), run(PREFILL_OUT | SKIP_COS_SIN)
    assert bits(result) == bits(stock)
    out, skip = result.worker("zerocost-prefill-out"), result.worker("zerocost-skip-cos-sin")
    assert (out["state"], out["failures"], skip["state"], skip["failures"]) == ("installed", {}, "installed", {})
    assert set(out["reasons"]) == {"decode"}
    assert out["engaged"] == launches(result, "npu::npu_fused_infer_attention_score.out") > 0
    assert out["engaged"] % LAYERS == 0
    assert out["counters"]["self_copies_skipped"] == out["engaged"]
    assert skip["engaged"] == skip["calls"] > 20

    # Two copies a layer of prefill; a step's rope buffers cost two gathers, two tilings and two copies.
    saved = copies(stock, "device_to_device") - copies(result, "device_to_device")
    assert saved == 2 * out["engaged"] + 4 * skip["engaged"]
    gathers = launches(stock, "aten::index_select") - launches(result, "aten::index_select")
    assert gathers == 2 * skip["engaged"]


@pytest.mark.parametrize("env", [DEMASK, PREFILL_OUT | SKIP_COS_SIN], ids=["demask", "wiring"])
def test_nothing_is_waited_for_or_copied_to_the_host(run, env):
    stock, result = run(), run(env)
    for what in SYNCHRONISING:
        assert [counters[what] for counters in result.counters] == [counters[what] for counters in stock.counters]
    for direction in ("device_to_host", "device_to_host_bytes", "host_to_device", "host_to_device_bytes"):
        assert copies(result, direction) == copies(stock, direction)


def test_a_mask_left_out_of_prefill_changes_tokens(run):
    """The identity above would notice."""
    result = run(DEMASK, mutant="planted_attention_faults:demask_everything")
    assert result.worker("fia-demask")["reasons"] == {}
    assert result.tokens != run().tokens


def test_prefill_that_misses_a_row_changes_tokens(run):
    result = run(PREFILL_OUT, mutant="planted_attention_faults:last_row_missing")
    assert result.worker("zerocost-prefill-out")["engaged"] > 0
    assert result.tokens != run().tokens
