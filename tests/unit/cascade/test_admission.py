"""Every admission rule alone, and their order."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from vllm_ascend_split_batch.cascade.admission import (
    EngineTraits,
    Refusal,
    prefix_refusal,
    static_refusal,
    step_refusal,
)

FITTING = EngineTraits()

RULES = [
    ({"speculative": True}, Refusal.SPECULATIVE_DECODING),
    ({"microbatching": True}, Refusal.MICROBATCHING),
    ({"context_parallel": True}, Refusal.CONTEXT_PARALLEL),
    ({"mla": True}, Refusal.MLA),
    ({"stock_backend": False}, Refusal.ATTENTION_BACKEND),
    ({"alibi": True}, Refusal.ALIBI),
    ({"sinks": True}, Refusal.SINKS),
    ({"quantised_kv": True}, Refusal.QUANTISED_KV),
    ({"sliding_window": True}, Refusal.SLIDING_WINDOW),
    ({"local_attention": True}, Refusal.LOCAL_ATTENTION),
    ({"split_blocks": True}, Refusal.SPLIT_BLOCKS),
    ({"beyond_device_limits": "head size 96"}, Refusal.DEVICE_LIMITS),
]


def test_a_fitting_engine_is_admitted():
    assert static_refusal(FITTING) is None


@pytest.mark.parametrize(
    ("change", "reason"), RULES, ids=lambda value: value.value if isinstance(value, Refusal) else None
)
def test_each_trait_alone_refuses_by_its_own_name(change, reason):
    assert static_refusal(replace(FITTING, **change)) is reason


def test_every_trait_has_a_rule():
    assert {name for change, _ in RULES for name in change} == {field.name for field in fields(EngineTraits)}


def test_the_first_rule_that_applies_is_named():
    everything = EngineTraits(**{name: value for change, _ in RULES for name, value in change.items()})
    assert static_refusal(everything) is Refusal.SPECULATIVE_DECODING


@pytest.mark.parametrize(
    ("decode_only", "requests", "reason"),
    [
        (True, 4, None),
        (True, 5, None),
        (True, 3, Refusal.BELOW_MIN_REQS),
        (False, 4, Refusal.NOT_DECODE),
        (False, 3, Refusal.NOT_DECODE),
    ],
)
def test_step_rules_at_their_bounds(decode_only, requests, reason):
    assert step_refusal(decode_only=decode_only, requests=requests, min_requests=4) is reason


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (0, Refusal.NO_SHARED_PREFIX),
        (128, Refusal.BELOW_MIN_PREFIX),
        (255, Refusal.BELOW_MIN_PREFIX),
        (256, None),
        (384, None),
    ],
)
def test_prefix_rules_at_their_bounds(prefix, reason):
    assert prefix_refusal(prefix, min_prefix=256) is reason
