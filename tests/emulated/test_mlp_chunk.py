"""mlp-chunk through the real host: stock tokens, a lower peak, decode never cut; eager, in graphs and on two ranks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from . import tiny_models
from .engines import Batch, Result
from .prompts import shared_prefix_batch
from .switched_on import SWITCHED_ON

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

CARRIER = "mlp-chunk"
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
#: Wide enough that the MLP's intermediate results are what a prefill's peak is made of.
MODEL = replace(tiny_models.QWEN2, name="qwen2-wide", intermediate=2048)
DECODING = 144


def short_prompts() -> Batch:
    """So many requests that a decode step of them has more rows than a part and than the threshold."""
    rng = random.Random(21)
    return Batch(tuple(tuple(rng.randrange(3, MODEL.vocabulary) for _ in range(8)) for _ in range(DECODING)), 4)


BATCHES = [
    shared_prefix_batch(requests=6, prefix=300, tokens=12, vocabulary=MODEL.vocabulary, seed=9, suffix=(5, 300)),
    short_prompts(),
]
ENGINE: dict[str, Any] = {"max_num_seqs": DECODING, "enable_prefix_caching": False}
ON = SWITCHED_ON[CARRIER] | {"VLLM_HUST_MLP_CHUNK_MIN_TOKENS": "130"}
#: The host's default kind of graphs, captured for few sizes: one for every decode step of all the requests.
GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [8, 144]},
}


@pytest.fixture
def run(engines, build_model):
    def start(env: dict[str, str], **engine: Any) -> Result:
        alone = {} if "tensor_parallel_size" in engine else ONE_PROCESS
        return engines.run(build_model(MODEL), BATCHES, env=alone | env, engine=ENGINE | engine)

    return start


def launches(result: Result, name: str) -> int:
    return sum(counters["launches"].get(name, 0) for counters in result.counters)


def peak(result: Result) -> int:
    return max(counters["memory"]["peak"] for counters in result.counters)


def decode_is_whole_and_prefill_in_two(entry: dict[str, Any], stock: Result, result: Result) -> None:
    """The activation ran once more for every MLP that was cut, and for nothing else."""
    assert entry["engaged"] > 0
    assert entry["reasons"]["decode"] >= 3 * MODEL.layers
    assert set(entry["reasons"]) <= {"decode", "below_min_tokens"}
    assert entry["engaged"] + sum(entry["reasons"].values()) == entry["calls"]
    assert launches(result, "npu::npu_swiglu") - launches(stock, "npu::npu_swiglu") == entry["engaged"]


def test_tokens_are_stocks_and_the_peak_is_lower(run):
    stock, result = run({}), run(ON)
    entry = result.worker(CARRIER)
    assert result.tokens == stock.tokens
    assert (entry["state"], entry["failures"]) == ("installed", {})
    assert entry["counters"]["mlps"] == MODEL.layers
    decode_is_whole_and_prefill_in_two(entry, stock, result)
    # What it says is what the largest MLP saves; with parts the peak may lie elsewhere, and then less is saved.
    saved = peak(stock) - peak(result)
    assert 4 << 20 < saved <= entry["counters"]["peak_bytes_saved"]


def test_compiled_code_and_captured_graphs_decide_when_they_run(run):
    """vLLM compiles once, for the profiling run's 2,048 rows, drops its guards, and captures decode of 144 rows."""
    stock, result = run({}), run(ON, **GRAPHS)
    entry = result.worker(CARRIER)
    assert result.tokens == stock.tokens
    assert entry["failures"] == {}
    assert entry["counters"]["from_compiled_code"] == entry["calls"]
    assert entry["engaged"] >= 2 * MODEL.layers  # the profiling run's and the prefill's
    assert entry["reasons"]["graph"] >= MODEL.layers  # the capture of 144 rows
    assert set(entry["reasons"]) <= {"graph", "decode", "below_min_tokens"}
    assert sum(counters["graphs"]["replays"] for counters in result.counters) > 0


def test_two_ranks_sum_once(run):
    stock, result = run({}, tensor_parallel_size=2), run(ON, tensor_parallel_size=2)
    assert result.tokens == stock.tokens
    entry = result.carrier(CARRIER)
    assert entry["engaged"] > 0
    assert entry["failures"] == {}
    ranks = [c for report in result.reports for c in report["carriers"] if c["engaged"]]
    assert len(ranks) == 2
    assert ranks[0]["engaged"] == ranks[1]["engaged"]
    # Requests arrive one by one and may take a step more or less: sums per MLP that ran, cut or not.
    sums = [launches(r, "c10d::allreduce_") for r in (stock, result)]
    mlps = [launches(stock, "npu::npu_swiglu"), sum(rank["calls"] for rank in ranks)]
    assert sums[0] * mlps[1] == sums[1] * mlps[0] > 0
    assert launches(result, "npu::npu_swiglu") == mlps[1] + sum(rank["engaged"] for rank in ranks)
