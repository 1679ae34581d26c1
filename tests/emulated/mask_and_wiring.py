"""Jobs that the tests of the decode mask, the wiring and the coexistence of carriers share."""

from __future__ import annotations

from typing import Any

from . import tiny_models
from .engines import Batch, Engines, Result
from .prompts import shared_prefix_batch

MODEL = tiny_models.QWEN2
#: The engine core in the test's own child: batches form the same way in every run, so that bits can be compared.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
DEMASK = {"VLLM_HUST_FIA_DEMASK": "1"}
PREFILL_OUT = {"VLLM_HUST_FI_PREFILL_OUT": "1"}
SKIP_COS_SIN = {"VLLM_HUST_SKIP_COS_SIN": "1"}
LAYERS = MODEL.layers

#: Prompts of one token to a few pages. Twelve over eight places: prefill joins running decodes; the second batch finds
#: its prefix in the cache; the third is one request alone, with which there is nothing to share; the fourth
#: is short enough for a captured graph of eight tokens.
BATCHES: list[Batch] = [
    shared_prefix_batch(requests=12, prefix=160, tokens=10, vocabulary=MODEL.vocabulary, seed=11, suffix=(1, 150)),
    shared_prefix_batch(requests=5, prefix=160, tokens=6, vocabulary=MODEL.vocabulary, seed=11, suffix=(1, 40)),
    shared_prefix_batch(requests=1, prefix=160, tokens=6, vocabulary=MODEL.vocabulary, seed=12, suffix=(1, 40)),
    shared_prefix_batch(requests=1, prefix=4, tokens=6, vocabulary=MODEL.vocabulary, seed=13, suffix=(2, 4)),
]


def run(engines: Engines, folder: Any, env: dict[str, str] | None = None, **more: Any) -> Result:
    """One engine over :data:`BATCHES` with `env` on top; the same job is run once per session."""
    return engines.run(folder, BATCHES, env=ONE_PROCESS | (env or {}), **more)


def fused_calls(result: Result) -> list[dict[str, Any]]:
    """The calls of the fused attention operator that the emulated NPU logged."""
    return [call for call in result.oplog if "fused_infer_attention" in call["op"]]


def one_query_each(call: dict[str, Any]) -> bool:
    return list(call["query_lengths"]) == [1] * call["sequences"]


def launches(result: Result, operator: str) -> int:
    return sum(counters["launches"].get(operator, 0) for counters in result.counters)


def copies(result: Result, direction: str) -> int:
    return sum(counters["copies"][direction] for counters in result.counters)
