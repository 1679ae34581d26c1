"""The decision: reasons, ranges, margin, hysteresis, time."""

from __future__ import annotations

import timeit
from dataclasses import replace

import pytest

from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.cascade import decision
from vllm_ascend_split_batch.cascade.cost_model import AttentionShape
from vllm_ascend_split_batch.cascade.decision import Facts, Reason, State, decide
from vllm_ascend_split_batch.cascade.prediction import FLOORS, Profiles
from vllm_ascend_split_batch.cascade.profiles import Key, Profile, ProfileError, find, shipped

QWEN_14B = AttentionShape(40, 8, 128, 2, 48)
KEY = Key("Ascend910B2", "wheel", "graph")


@pytest.fixture(scope="module")
def profile() -> Profile:
    found = find(KEY, shipped())
    assert found is not None
    return found


def facts(requests: int, prefix: int, suffix: int = 256) -> Facts:
    return Facts(requests, prefix, requests * suffix, QWEN_14B)


@pytest.mark.parametrize(
    ("requests", "prefix", "use", "reason"),
    [
        (64, 8192, True, Reason.PREDICTED_WIN),
        (32, 16384, True, Reason.PREDICTED_WIN),
        (32, 4096, False, Reason.PREDICTED_LOSS),
        (64, 4096, False, Reason.PREDICTED_LOSS),
        (31, 16384, False, Reason.OUTSIDE_PROFILE),
        (64, 4095, False, Reason.OUTSIDE_PROFILE),
        (128, 65536, True, Reason.PREDICTED_WIN),
    ],
)
def test_the_910b2(profile, requests, prefix, use, reason):
    state = State()
    answer = decide(facts(requests, prefix), profile, state)
    assert (answer.use, answer.reason, state.used) == (use, reason, use)
    if reason is not Reason.OUTSIDE_PROFILE:
        assert (answer.saved > profile.margin) == use


def test_without_a_profile_it_is_off():
    state = State()
    state.used = True
    assert decide(facts(64, 16384), None, state) == decision.Decision(False, Reason.NO_PROFILE)
    assert not state.used


def test_what_lost_when_measured_is_off():
    lost = Profile(KEY, ("somebody",), "shipped", lost="it lost")
    assert decide(facts(64, 16384), lost, State()).reason is Reason.LOST_WHEN_MEASURED


def within_the_margin(profile: Profile) -> Facts:
    """A step whose predicted saving is above zero and below the margin."""
    for prefix in range(4096, 16384, 16):
        step = facts(64, prefix)
        if 0 < decide(step, replace(profile, margin=0.0), State()).saved < profile.margin:
            return step
    raise AssertionError("no such step")


def answers(module, profile: Profile) -> list[bool]:
    """A standing start within the margin, a win, within the margin again, a loss, within the margin again."""
    state = module.State()
    middle = within_the_margin(profile)
    steps = (middle, facts(64, 16384), middle, facts(64, 4096), middle)
    return [module.decide(step, profile, state).use for step in steps]


def test_margin_and_memory(profile):
    assert answers(decision, profile) == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("saving > 0 if state.used else saving > profile.margin * stock", "saving > profile.margin * stock"),
        ("saving > 0 if state.used else saving > profile.margin * stock", "saving > 0"),
        ("saving > 0 if state.used else", "True if state.used else"),
        ("    state.used = use\n", ""),
    ],
)
def test_a_changed_memory_is_noticed(profile, mutant, old, new):  # noqa: F811
    assert answers(mutant(decision, old, new), profile) != [False, True, True, False, False]


def test_another_shape_is_predicted_anew(profile):
    state = State()
    large = decide(facts(64, 8192), profile, state)
    small = decide(replace(facts(64, 8192), shape=AttentionShape(9, 3, 64, 2, 30)), profile, state)
    assert small.stock_us < large.stock_us
    assert not small.use


def test_above_the_measured_range_the_smaller_saving_counts(profile):
    assert profile.coverage is not None
    at_edge = decide(facts(64, 16384), profile, State())
    beyond = decide(facts(64, 1 << 20), profile, State())
    assert beyond.saved <= at_edge.saved + 1e-9
    # A prefix stage that costs more than reading again, and launches that cost nothing: worse with every token.
    assert profile.coefficients is not None
    charges = replace(profile.coefficients, cascade_launch_us=0, cascade_request_us=0, prefix_tflop_s=9, cache_mib=None)
    slow = replace(profile, coefficients=charges)
    assert decide(facts(64, 16384), slow, State()).saved > decide(facts(64, 1 << 20), slow, State()).saved


def test_one_decision_takes_less_than_20_us(profile):
    state = State()
    step = facts(64, 8192)
    assert min(timeit.repeat(lambda: decide(step, profile, state), number=1000, repeat=5)) / 1000 < 20e-6


def test_the_choice_of_profiles(tmp_path):
    assert Profiles().group(KEY, QWEN_14B).decide(64, 8192, 64 * 8300).use
    unknown = Profiles().group(Key("Ascend910B3", "wheel", "graph"), QWEN_14B)
    assert unknown.decide(64, 8192, 64 * 8300).reason is Reason.NO_PROFILE
    assert unknown.never is not None
    assert "Ascend910B3" in unknown.never
    eager = Profiles().group(Key("Ascend910B2", "wheel", "eager"), QWEN_14B)
    assert eager.never is not None
    assert "lost" in eager.never
    floors = Profiles(FLOORS).group(Key("Ascend910B3", "wheel", "graph"), QWEN_14B)
    assert floors.decide(1, 128, 200) == decision.Decision(True, Reason.FLOORS_ONLY)
    assert floors.never is None
    with pytest.raises(ProfileError, match="cannot be read"):
        Profiles(str(tmp_path / "none.json"))


def test_the_suffix_of_a_group_counts_the_token_of_the_step(profile):
    group = Profiles().group(KEY, QWEN_14B)
    # Every request has 8192 shared and 99 own tokens in the cache and computes one more.
    assert group.decide(64, 8192, 64 * (8192 + 99)) == decide(facts(64, 8192, 100), profile, State())
