"""All carriers on at once in whole engines: stock's tokens, every proof of its own still holds, counters add up.

Pairs and orders of coming and going are in `inside_host/test_install_orders.py`, without engines.
"""

from __future__ import annotations

from typing import Any

import pytest

from . import mask_and_wiring
from .mask_and_wiring import LAYERS, MODEL, fused_calls, one_query_each
from .switched_on import SWITCHED_ON

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

ALL: dict[str, str] = {variable: value for variables in SWITCHED_ON.values() for variable, value in variables.items()}
#: What each carrier does on this model (Qwen2, greedy, eager): engages, or says by name why it does not.
ENGAGES = {"cascade-attention", "fia-demask", "mlp-chunk", "zerocost-prefill-out", "zerocost-skip-cos-sin"}


@pytest.fixture
def run(engines, build_model):
    def start(env=None, **more):
        return mask_and_wiring.run(engines, build_model(MODEL), env, **more)

    return start


@pytest.fixture
def together(run):
    return run(ALL)


def entries(result) -> dict[str, dict[str, Any]]:
    """The carriers' entries of the process that ran the model."""
    return {name: result.worker(name) for name in SWITCHED_ON if name in reported(result)}


def reported(result) -> set[str]:
    """Carriers that some process has bound or refused."""
    return {
        carrier["name"]
        for report in result.reports
        for carrier in report["carriers"]
        if carrier["state"] not in ("armed", "closed")
    }


def adds_up(entry: dict[str, Any]) -> bool:
    return entry["engaged"] + sum(entry["reasons"].values()) + sum(entry["failures"].values()) == entry["calls"]


def test_all_at_once_equal_stock(run, together):
    assert together.tokens == run().tokens


def test_each_engages_as_it_does_alone(together):
    found = entries(together)
    assert {name for name, entry in found.items() if entry["engaged"]} >= ENGAGES
    for name, entry in found.items():
        assert entry["failures"] == {}, name
        assert entry["state"] in ("installed", "refused"), name
        assert entry["state"] == "installed" or entry["engaged"] == 0, name
        assert adds_up(entry), name


def test_their_work_is_seen_on_the_device(together):
    found = entries(together)
    calls = fused_calls(together)
    prefix = [call for call in calls if not call["masked"] and call["lse"] and call["sequences"] == 1]
    decode = [call for call in calls if one_query_each(call)]
    assert len(prefix) >= found["cascade-attention"]["engaged"] * LAYERS > 0
    # The suffix stages of cascade keep their mask, every other decode call has lost it.
    assert {call["lse"] for call in decode if call["masked"]} == {True}
    assert sum(not call["masked"] and not call["lse"] for call in decode) == found["fia-demask"]["engaged"] > 0
    assert found["zerocost-prefill-out"]["engaged"] == mask_and_wiring.launches(
        together, "npu::npu_fused_infer_attention_score.out"
    )


def test_two_ranks_take_the_same_routes_and_make_the_same_tokens(engines, build_model, run):
    engine = {"tensor_parallel_size": 2}
    result = engines.run(build_model(MODEL), mask_and_wiring.BATCHES, env=ALL, engine=engine)
    assert result.tokens == run().tokens
    ranks = [
        {carrier["name"]: carrier for carrier in report["carriers"]}
        for report in result.reports
        if any(carrier["name"] == "fia-demask" and carrier["calls"] for carrier in report["carriers"])
    ]
    assert len(ranks) == 2
    for name in ranks[0].keys() | ranks[1].keys():
        one, other = ranks[0][name], ranks[1][name]
        for what in ("state", "engaged", "calls", "reasons", "failures"):
            assert one[what] == other[what], (name, what)
    assert {name for name, entry in ranks[0].items() if entry["engaged"]} >= ENGAGES


def test_one_fails_at_each_call_and_the_others_work(run):
    result = run(ALL, mutant="planted_failures:fia-demask")
    assert result.tokens == run().tokens
    found = entries(result)
    assert found["fia-demask"]["state"] == "latched"
    assert found["fia-demask"]["engaged"] == 0
    assert sum(found["fia-demask"]["failures"].values()) == 3
    for name in ENGAGES - {"fia-demask"}:
        assert (found[name]["state"], found[name]["failures"]) == ("installed", {}), name
        assert found[name]["engaged"] > 0, name


def test_all_fail_at_each_call_and_the_host_runs_its_own_path(run):
    stock = run()
    result = run(ALL, mutant="planted_failures:all")
    assert result.tokens == stock.tokens
    assert result.logprobs == stock.logprobs
    found = entries(result)
    assert {name for name, entry in found.items() if entry["engaged"]} == set()
    assert found["fia-demask"]["state"] == found["zerocost-prefill-out"]["state"] == "latched"


def test_installed_but_never_reached_shows_as_engaged_zero(together):
    """A patch that no call reaches must not look like one that works."""
    entry = entries(together)["fi-gelu"]  # this model's MLP has no GELU
    assert (entry["engaged"], entry["calls"]) == (0, 0)
