"""A guard against a model of it: any sequence of successes, declines and failures at several sites."""

from __future__ import annotations

import logging

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend_split_batch.carrier.guard import Guard

steps = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["serve", "decline", "raise"])), max_size=30)


@settings(max_examples=200)
@given(steps=steps)
def test_any_sequence(steps):
    logging.getLogger("vllm.split_batch").setLevel(logging.CRITICAL)
    guard = Guard("x")
    sites = [guard.site("a"), guard.site("b"), guard.site("c", counted=False)]
    row = [0, 0, 0]
    latched, bodies_run = False, 0
    calls = engaged = declined = failed = refused = 0

    for number, what in steps:
        ran = []

        def body(value, what=what, ran=ran):
            ran.append(1)
            if what == "raise":
                raise ValueError(what)
            return guard.decline("no") if what == "decline" else ("ours", value)

        answer = sites[number].run(body, lambda value: ("native", value), 5)
        counted = number < 2
        calls += counted
        assert bool(ran) == (not latched)
        if latched:
            refused += counted
            assert answer == ("native", 5)
            continue
        bodies_run += 1
        assert answer == ("ours" if what == "serve" else "native", 5)
        engaged += counted and what == "serve"
        declined += what == "decline"
        failed += what == "raise"
        row[number] = row[number] + 1 if what == "raise" else 0
        latched = row[number] >= 3
        assert guard.latched == latched

    assert guard.calls == calls
    assert guard.engaged == engaged
    assert guard.reasons.get("no", 0) == declined
    assert guard.reasons.get("latched", 0) == refused
    assert sum(guard.failures.values()) == failed
    assert len(guard.failures) <= 1  # one cause: one line of this file
    logging.getLogger("vllm.split_batch").setLevel(logging.NOTSET)
