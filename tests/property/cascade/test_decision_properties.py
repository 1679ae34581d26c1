"""What must hold of every prediction: times grow with what they are times of, and the decision does not flap."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.cascade import cost_model, decision
from vllm_ascend_split_batch.cascade.cost_model import AttentionShape, Coefficients, CostModel
from vllm_ascend_split_batch.cascade.decision import Facts, Reason, State, decide, switched_on_from
from vllm_ascend_split_batch.cascade.profiles import Coverage, Fit, Key, Profile, Range


class MakeMutant(Protocol):
    def __call__(self, module: ModuleType, old: str, new: str) -> Any: ...


times = st.floats(0, 2000, allow_nan=False)
rates = st.one_of(st.none(), st.floats(0.1, 10_000))
coefficients = st.builds(Coefficients, times, times, times, times, times, rates, rates, rates, rates)
shapes = st.builds(
    lambda kv, group, size, element, layers: AttentionShape(kv * group, kv, size, element, layers),
    st.integers(1, 16),
    st.integers(1, 16),
    st.sampled_from([64, 96, 128, 256]),
    st.sampled_from([2, 4]),
    st.integers(1, 80),
)
requests = st.integers(1, 512)
prefixes = st.integers(0, 1 << 18)
suffixes = st.integers(1, 1 << 20)
margins = st.floats(0, 1)


def profile(
    charges: Coefficients, margin: float, low: tuple[int, int] = (1, 1), high: tuple[int, int] = (512, 1 << 18)
):
    coverage = Coverage(AttentionShape(1, 1, 1, 1), Range(low[0], high[0]), Range(low[1], high[1]), Range(1, 1))
    return Profile(Key("device", "own", "graph"), ("test",), "test", margin, charges, coverage, Fit(1, 0.0, 0.0))


def no_less(larger: float, smaller: float) -> bool:
    """Larger or equal, up to rounding."""
    return larger >= smaller * (1 - 1e-12)


@given(
    coefficients, shapes, requests, prefixes, suffixes, st.integers(0, 64), st.integers(0, 9999), st.integers(0, 9999)
)
def test_more_of_anything_never_takes_less_time(charges, shape, b, p, s, more_b, more_p, more_s):
    model = CostModel(charges, shape)
    for predict in (model.stock_us, model.cascade_us):
        assert no_less(predict(b + more_b, p, s), predict(b, p, s))
        assert no_less(predict(b, p + more_p, s), predict(b, p, s))
        assert no_less(predict(b, p, s + more_s), predict(b, p, s))


@given(coefficients, shapes, requests, prefixes, suffixes)
def test_terms_are_the_times(charges, shape, b, p, s):
    model = CostModel(charges, shape)
    assert model.stock_us(b, p, s) == pytest.approx(shape.layers * model.stock_terms(b, p, s).total)
    assert model.cascade_us(b, p, s) == pytest.approx(
        charges.cascade_step_us + shape.layers * model.cascade_terms(b, p, s).total
    )


@given(coefficients, shapes, st.integers(2, 512), prefixes, suffixes, st.integers(1, 9999))
def test_where_a_longer_prefix_wins_it_wins_more(charges, shape, b, p, s, more):
    """Cascade's launches cost no less than the host's: what is saved grows with the prefix once anything is saved."""
    charges = replace(charges, cascade_launch_us=charges.stock_launch_us + charges.cascade_launch_us)
    charges = replace(charges, cascade_request_us=charges.stock_request_us + charges.cascade_request_us)
    model = CostModel(charges, shape)

    def saving(prefix: int) -> float:
        return model.stock_us(b, prefix, s) - model.cascade_us(b, prefix, s)

    rounding = 1e-9 * model.stock_us(b, p + more, s)
    if saving(p) > rounding:
        assert saving(p + more) >= saving(p) - rounding


@given(coefficients, shapes, st.integers(1, 511), prefixes, suffixes)
def test_where_a_batch_wins_a_larger_one_wins_more(charges, shape, b, p, s):
    model = CostModel(charges, shape)

    def saving(batch: int) -> float:
        return model.stock_us(batch, p, s) - model.cascade_us(batch, p, s)

    rounding = 1e-9 * model.stock_us(b + 1, p, s)
    # One request alone reads the prefix once in either arm: it saves nothing but launches.
    alone = saving(1)
    if alone <= 0 and saving(b) > rounding:
        assert saving(b + 1) >= saving(b) - rounding


@given(coefficients, shapes, suffixes, st.integers(2, 512), margins)
def test_break_even_separates_losing_from_winning(charges, shape, s, b, margin):
    charges = replace(charges, cascade_launch_us=charges.stock_launch_us + charges.cascade_launch_us)
    charges = replace(charges, cascade_request_us=charges.stock_request_us + charges.cascade_request_us)
    model = CostModel(charges, shape)
    limit = 1 << 18
    tokens = model.break_even(b, s, margin=margin, limit=limit)

    def wins(prefix: int) -> bool:
        stock = model.stock_us(b, prefix, s)
        return stock - model.cascade_us(b, prefix, s) > margin * stock

    if tokens is None:
        assert not wins(limit)
    else:
        assert wins(tokens)
        assert tokens == 0 or not wins(tokens - 1)


@given(coefficients, shapes, margins, st.integers(2, 512), suffixes, st.integers(1, 512), st.integers(1, 1 << 18))
def test_the_prefix_it_is_switched_on_from_is_the_decisions(charges, shape, margin, b, s, high_b, high_p):
    charges = replace(charges, cascade_launch_us=charges.stock_launch_us + charges.cascade_launch_us)
    charges = replace(charges, cascade_request_us=charges.stock_request_us + charges.cascade_request_us)
    chosen = profile(charges, margin, low=(1, 128), high=(high_b, max(128, high_p)))
    tokens = switched_on_from(b, s, chosen, shape)

    def use(prefix: int) -> bool:
        return decide(Facts(b, prefix, s, shape), chosen, State()).use

    if tokens is None:
        assert not any(use(prefix) for prefix in (128, high_p, 1 << 20))
    else:
        assert tokens >= 128
        assert use(tokens)
        assert tokens == 128 or not use(tokens - 1)


@given(coefficients, shapes, margins, st.lists(st.tuples(requests, prefixes, suffixes), max_size=30))
def test_no_step_is_run_that_is_predicted_to_lose(charges, shape, margin, steps):
    state = State()
    chosen = profile(charges, margin)
    for b, p, s in steps:
        before = state.used
        answer = decide(Facts(b, p, s, shape), chosen, state)
        assert answer.use == state.used == (answer.reason is Reason.PREDICTED_WIN)
        if answer.use:
            assert answer.cascade_us < answer.stock_us
            assert before or answer.saved > margin * (1 - 1e-9)


def switches(module: ModuleType, chosen: Profile, steps: list[Facts]) -> int:
    state = module.State()
    answers = [module.decide(step, chosen, state).use for step in steps]
    return sum(one != other for one, other in itertools.pairwise(answers))


CHARGES = Coefficients(37, 1, 273, 4.6, 0, 1554, 1982, 192, 51)
SHAPE = AttentionShape(40, 8, 128, 2, 48)


def wavering(prefix_list: list[int]) -> list[Facts]:
    """Steps of 64 requests whose shared prefix wavers around the break-even."""
    return [Facts(64, prefix, 64 * 256, SHAPE) for prefix in prefix_list]


within = st.lists(st.integers(4720, 4840), min_size=2, max_size=40)


@given(within)
def test_a_batch_that_wavers_within_the_margin_does_not_flap(prefix_list):
    chosen = profile(CHARGES, 0.05)
    steps = wavering(prefix_list)
    savings = [decide(step, replace(chosen, margin=0.0), State()).saved for step in steps]
    assert all(0 < saving < 0.05 for saving in savings)
    assert switches(decision, chosen, steps) == 0
    # After a clear win it stays on.
    assert switches(decision, chosen, [Facts(64, 16384, 64 * 256, SHAPE), *steps]) == 0


def test_without_a_memory_it_would_flap(mutant: MakeMutant) -> None:  # noqa: F811
    chosen = profile(CHARGES, 0.02)
    middle = CostModel(CHARGES, SHAPE).break_even(64, 64 * 256, margin=0.02) or 0
    steps = wavering([middle + 20, middle - 20] * 10)
    assert switches(decision, chosen, steps) == 0
    forgetful = mutant(
        decision,
        "use = saving > 0 if state.used else saving > profile.margin * stock",
        "use = saving > profile.margin * stock",
    )
    assert switches(forgetful, chosen, steps) == 19


@given(coefficients, shapes, margins, requests, prefixes, suffixes)
def test_below_what_was_measured_it_is_off(charges, shape, margin, b, p, s):
    chosen = profile(charges, margin, low=(b + 1, 1))
    assert decide(Facts(b, p, s, shape), chosen, State()).reason is Reason.OUTSIDE_PROFILE
    chosen = profile(charges, margin, low=(1, p + 1))
    assert decide(Facts(b, p, s, shape), chosen, State()).reason is Reason.OUTSIDE_PROFILE


@given(coefficients, shapes, requests, st.integers(1, 1 << 18), suffixes, st.integers(1, 512), st.integers(1, 1 << 18))
def test_above_what_was_measured_no_more_is_promised(charges, shape, b, p, s, most_b, most_p):
    free = decide(Facts(b, p, s, shape), profile(charges, 0.0), State())
    bound = decide(Facts(b, p, s, shape), profile(charges, 0.0, high=(most_b, most_p)), State())
    assert bound.saved <= free.saved + 1e-9 * max(1.0, abs(free.saved))


def test_a_model_that_forgets_the_first_read_is_noticed(mutant: MakeMutant) -> None:  # noqa: F811
    copy = mutant(
        cost_model,
        "self._miss_us = max(self._token_us, self._reuse_us)",
        "self._miss_us = self._token_us * 0",
    )
    slow_cache = replace(CHARGES, cache_mib=16)
    model = copy.CostModel(slow_cache, SHAPE)
    # Beyond the cache nothing would be added any more by a longer prefix but its first read.
    honest = CostModel(slow_cache, SHAPE)
    assert honest.stock_us(64, 16384, 64) > 1.5 * model.stock_us(64, 16384, 64)
