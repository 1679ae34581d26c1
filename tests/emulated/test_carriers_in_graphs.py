"""fia-demask and the wiring in engines that capture graphs: the tokens of stock in eager mode, in every graph mode."""

from __future__ import annotations

import pytest

from . import mask_and_wiring
from .mask_and_wiring import DEMASK, LAYERS, MODEL, PREFILL_OUT, SKIP_COS_SIN

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

SIZES = [1, 2, 4, 8]
ON = DEMASK | PREFILL_OUT | SKIP_COS_SIN


@pytest.fixture
def run(engines, build_model):
    def start(mode: str | None = None, env=None, **more):
        graphs = {"cudagraph_mode": mode, "cudagraph_capture_sizes": SIZES}
        engine = {"enforce_eager": False, "compilation_config": graphs} if mode else {}
        return mask_and_wiring.run(engines, build_model(MODEL), env, engine=engine, **more)

    return start


@pytest.mark.parametrize("mode", ["FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
def test_captured_decode_runs_without_its_mask(run, mode):
    result = run(mode, ON)
    assert result.tokens == run().tokens, "stock, eager"
    demask = result.worker("fia-demask")
    assert (demask["state"], demask["failures"]) == ("installed", {})
    # Every layer of every graph, each after the host's warm-up has tried it outside of the capture.
    assert demask["counters"]["captured_calls"] == LAYERS * len(SIZES)
    assert set(demask["reasons"]) <= {"not_decode"}
    # Prefill is not part of a captured graph of attention in these modes.
    out, skip = result.worker("zerocost-prefill-out"), result.worker("zerocost-skip-cos-sin")
    assert (out["failures"], skip["failures"]) == ({}, {})
    assert out["engaged"] > 0
    assert skip["engaged"] > 20


def test_a_graph_for_mixed_batches_keeps_its_mask(run):
    """Mode FULL replays one graph for decode and prefill alike: a mask left out of it would be missing in prefill."""
    result = run("FULL", DEMASK)
    assert result.tokens == run().tokens
    demask = result.worker("fia-demask")
    assert demask["reasons"]["graph_of_mixed_batches"] >= LAYERS * len(SIZES)
    assert demask["counters"].get("captured_calls", 0) == 0


def test_a_mask_left_out_of_such_a_graph_changes_tokens(run):
    """The rule above is needed."""
    result = run("FULL", DEMASK, mutant="planted_attention_faults:demask_mixed_graphs")
    assert result.worker("fia-demask")["counters"]["captured_calls"] > 0
    assert result.tokens != run().tokens
