"""rope-fix through the real host: tokens of transformers with it, other tokens or no engine at all without it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proofs import Facts

from . import rope_models, tiny_models
from .engines import Batch, EngineFailed, Result
from .prompts import shared_prefix_batch
from .switched_on import SWITCHED_ON

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

CARRIER = "rope-fix"
TOKENS = 16
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
#: Interleaved M-RoPE needs a host with Triton: vLLM's kernel, unmodified, in Triton's (slow) interpreter.
INTERPRETER = {"NPU_EMU_TRITON": "interpreter"}
TEXT_ONLY = {"limit_mm_per_prompt": {"image": 0, "video": 0}, "max_num_batched_tokens": 128, "max_model_len": 256}
#: Long enough that the positions at the end lie beyond the context the scaled models were made for (512).
BATCH = shared_prefix_batch(requests=4, prefix=300, tokens=TOKENS, vocabulary=490, seed=9, suffix=(5, 600))
SHORT = shared_prefix_batch(requests=2, prefix=16, tokens=6, vocabulary=490, seed=9, suffix=(5, 40))


def batch_of(name: str) -> Batch:
    return SHORT if name == "mrope" else BATCH


@pytest.fixture(scope="module")
def model(model_folder):
    return lambda name: rope_models.build(name, model_folder)


@pytest.fixture(scope="module")
def expected(model):
    """A function name -> transformers' greedy continuations of its batch, in float32."""
    known: dict[str, list[list[int]]] = {}

    def of(name: str) -> list[list[int]]:
        if name not in known:
            known[name] = rope_models.greedy(model(name), batch_of(name), name)
            assert tiny_models.distinct_share(known[name]) > 0.6, "texts that loop prove little"
        return known[name]

    return of


@pytest.fixture
def run(engines, model):
    def start(name: str, env: dict[str, str]) -> Result:
        more: dict[str, Any] = {}
        if name == "mrope":
            env = env | INTERPRETER
            more = {"mutant": "planted_triton:mrope", "engine": TEXT_ONLY}
        return engines.run(model(name), [batch_of(name)], env=ONE_PROCESS | env, **more)

    return start


def rotary_launches(result: Result) -> int:
    names = ("npu::npu_mrope", "npu::_npu_rotary_embedding")
    return sum(counters["launches"].get(name, 0) for counters in result.counters for name in names)


def found(entry: dict[str, Any]) -> dict[str, str]:
    """How the carrier found each defect on the live host."""
    pairs = (name.partition(": ") for name in entry["counters"])
    return {defect: state for defect, _, state in pairs}


@pytest.mark.proof(CARRIER)
def test_yarn_equals_transformers(run, expected, proof: Facts):
    result = run("yarn", SWITCHED_ON[CARRIER])
    entry = proof.engine(result)
    assert result.tokens[0] == expected("yarn")
    assert (entry["state"], entry["failures"]) == ("installed", {})
    assert entry["engaged"] == int(found(entry)["yarn"] == "present")


def test_llama3_scaling_equals_transformers_on_the_rotary_kernel(run, expected):
    result = run("llama3", SWITCHED_ON[CARRIER])
    entry = result.worker(CARRIER)
    assert result.tokens[0] == expected("llama3")
    assert (entry["state"], entry["failures"]) == ("installed", {})
    assert (found(entry)["llama3"], entry["engaged"]) == ("present", 1)
    # One launch a layer and step; without the repair the layer is computed in single torch operations.
    assert rotary_launches(result) >= rope_models.COMMON["num_hidden_layers"] * TOKENS


def test_interleaved_mrope_equals_transformers(run, expected):
    result = run("mrope", SWITCHED_ON[CARRIER])
    entry = result.worker(CARRIER)
    assert result.tokens[0] == expected("mrope")
    assert (entry["state"], entry["failures"]) == ("installed", {})
    assert found(entry)["mrope"] == "present"
    assert entry["engaged"] >= rope_models.COMMON["num_hidden_layers"] * SHORT.tokens
    kernels = sum(counters["launches"].get("npu::npu_mrope", 0) for counters in result.counters)
    assert kernels == 0, "the text path has to go through vLLM's Triton kernel"


def test_without_it_yarn_gives_other_texts(run, expected):
    texts = run("yarn", {}).tokens[0]
    assert all(mine != right for mine, right in zip(texts, expected("yarn"), strict=True))


def test_without_it_interleaved_mrope_ends_the_engine(run):
    with pytest.raises(EngineFailed, match="missing 1 required positional argument: 'is_neox_style'"):
        run("mrope", {})
