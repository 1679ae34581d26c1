"""Graph twins in the real host: tokens equal stock's in every graph mode, and what they do is seen in the reports."""

from __future__ import annotations

import pytest

from . import tiny_models
from .engines import Batch
from .prompts import shared_prefix_batch
from .switched_on import SWITCHED_ON

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

MODEL = tiny_models.QWEN3
CARRIERS = ("cascade-attention", "cascade-graph")
ON = SWITCHED_ON["cascade-graph"] | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
OFF = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
SIZES = [2, 4, 8]


def graph(mode: str) -> dict:
    return {
        "enforce_eager": False,
        "compilation_config": {"cudagraph_mode": mode, "cudagraph_capture_sizes": SIZES},
    }


def batches() -> list[Batch]:
    """Prefix changes, requests that arrive and leave while others decode, sizes between and beyond captured ones."""
    common = {"vocabulary": MODEL.vocabulary}
    first = shared_prefix_batch(requests=7, prefix=300, tokens=14, seed=1, **common)
    other = shared_prefix_batch(requests=7, prefix=300, tokens=8, seed=3, **common)
    second = shared_prefix_batch(requests=3, prefix=520, tokens=10, seed=2, **common)
    pair = shared_prefix_batch(requests=2, prefix=300, tokens=6, seed=4, **common)
    # More requests than fit at once: some wait, join running ones, and leave at different times.
    third = shared_prefix_batch(requests=13, prefix=300, tokens=9, seed=1, **common)
    return [first, other, second, pair, third, first]


@pytest.fixture
def run(engines, build_model):
    def start(mode: str | None = None, *, mutant: str | None = None, more: dict | None = None, **env: str):
        settings = (graph(mode) if mode else {}) | (more or {})
        return engines.run(build_model(MODEL), batches(), env=env, engine=settings, mutant=mutant)

    return start


@pytest.mark.parametrize("mode", ["FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
def test_tokens_equal_stock_with_twins_replayed(run, mode):
    result = run(mode, **ON)
    assert result.tokens == run(**OFF).tokens, "stock, eager"
    attention, twins = (result.worker(name) for name in CARRIERS)
    assert twins["state"] == "installed"
    assert attention["failures"] == twins["failures"] == {}
    assert twins["counters"]["twins_captured"] == len(SIZES)
    assert twins["engaged"] > 20
    assert attention["engaged"] == twins["engaged"] + twins["reasons"].get("not_a_full_graph", 0)
    assert twins["counters"]["prefix_stages_kept"] > twins["counters"]["prefix_stages_set"] > 0


def test_a_piecewise_graph_runs_two_stages_between_its_pieces(run):
    result = run("PIECEWISE", **ON)
    assert result.tokens == run(**OFF).tokens
    assert result.worker("cascade-attention")["engaged"] > 20
    assert result.worker("cascade-graph")["engaged"] == 0


def test_without_graphs_for_decode_no_twin_is_captured_and_that_is_said(run):
    result = run("FULL", **ON)
    assert result.tokens == run(**OFF).tokens
    assert result.worker("cascade-attention")["engaged"] == 0
    assert result.worker("cascade-graph")["reasons"]["no_twins_captured"] == 1
    said = [line for line in result.log.splitlines() if "no graph twin is captured" in line]
    assert len(said) == 1
    assert "FULL_DECODE_ONLY or FULL_AND_PIECEWISE" in said[0]


def test_with_the_graph_gate_closed_full_graphs_stay_the_hosts(run):
    closed = ON | {"VLLM_ASCEND_ENABLE_CASCADE_GRAPH": "0"}
    result = run("FULL_DECODE_ONLY", **closed)
    assert result.tokens == run(**OFF).tokens
    attention = result.worker("cascade-attention")
    assert attention["engaged"] == 0
    assert attention["reasons"]["graph_mode"] > 20


@pytest.mark.parametrize("mutant", ["stale_lengths", "stale_tables"])
def test_stale_parameters_would_show(run, mutant):
    """A twin whose lengths, or tables, are not set anew computes other tokens: the comparison above notices."""
    result = run("FULL_DECODE_ONLY", mutant=f"planted_twin_faults:{mutant}", **ON)
    assert result.worker("cascade-graph")["failures"] == {}
    assert result.tokens != run(**OFF).tokens


def test_a_failure_anywhere_in_a_replay_runs_the_hosts_own_graph(run):
    """Filling fails once; the twins of 8, 4 and 2 requests in an update, behind a recorded event, in the replay."""
    result = run("FULL_DECODE_ONLY", mutant="planted_twin_faults:running", **ON)
    assert result.tokens == run(**OFF).tokens
    twins = result.worker("cascade-graph")
    assert sum(twins["failures"].values()) == 4
    assert twins["state"] == "installed", "not three in a row in one place"
    assert twins["reasons"]["twin_given_up"] > 0
    for cause in ("fill", "update", "late update", "replay"):
        assert len([line for line in result.log.splitlines() if line.endswith(f"RuntimeError: planted: {cause}")]) == 1


def test_a_failing_capture_leaves_the_hosts_graph_of_that_size(run):
    result = run("FULL_DECODE_ONLY", mutant="planted_twin_faults:capture", **ON)
    assert result.tokens == run(**OFF).tokens
    twins = result.worker("cascade-graph")
    assert sum(result.worker("cascade-attention")["failures"].values()) == 1
    assert twins["counters"]["twins_captured"] == len(SIZES) - 1
    assert twins["engaged"] > 20
    assert twins["reasons"]["no_twin"] > 5
    assert len([line for line in result.log.splitlines() if "no graph twin of 4 requests" in line]) == 1


def test_preemption_and_a_small_cache(run):
    """Requests are preempted and recomputed while others decode."""
    page = 128 * 2 * MODEL.kv_heads * MODEL.head_size * 4
    small = {"kv_cache_memory_bytes": 14 * page * MODEL.layers, "max_model_len": 1024}
    result = run("FULL_DECODE_ONLY", more=small, **ON)
    assert result.tokens == run(more=small, **OFF).tokens
    assert result.worker("cascade-graph")["engaged"] > 0
