"""Routes of a sampling step: a table of the decision, and its order."""

from __future__ import annotations

import itertools

import pytest

from vllm_ascend_split_batch.sampling import host_switches
from vllm_ascend_split_batch.sampling.routes import (
    HostChain,
    HostSwitches,
    Route,
    Thresholds,
    choose,
    forced_host_chain,
)

DEFAULTS = Thresholds()
V = 151_936


@pytest.mark.parametrize(
    ("rows", "top_k", "has_top_p", "expected"),
    [
        (1, None, False, Route.API1),
        (1024, None, False, Route.API1),
        (1024, None, True, HostChain.TOP_P_ONLY),
        (1, (1, 1), False, Route.ARGMAX),
        (1, (1, 1), True, Route.ARGMAX),
        (1024, (1, 2), True, HostChain.SMALL_TOP_K),
        (1024, (1, V), False, HostChain.TOP_K_ONLY),
        (1024, (50, 50), False, HostChain.TOP_K_ONLY),
        (256, (32, V), True, Route.JOINT),
        (255, (32, V), True, HostChain.SMALL_BATCH),
        (256, (31, V), True, HostChain.SMALL_TOP_K),
    ],
)
def test_routes(rows, top_k, has_top_p, expected):
    assert choose(rows, top_k, has_top_p, DEFAULTS) is expected


def test_settings_move_the_thresholds():
    assert choose(8, (2, 2), True, Thresholds(joint_min_batch=8, joint_min_k=2)) is Route.JOINT
    assert choose(8, (1, 1), False, Thresholds(k1_argmax=False)) is HostChain.K1_LEFT_TO_HOST


def test_the_five_conditions_in_their_order():
    """Each condition wins over those behind it, for every combination of the five."""
    order = [
        HostChain.PER_REQUEST_GENERATORS,
        HostChain.PROCESSED_LOGPROBS,
        HostChain.BATCH_INVARIANT,
        HostChain.REDUCE_SAMPLE,
        HostChain.ASYNC_EXPONENTIAL,
    ]
    for holds in itertools.product((False, True), repeat=5):
        expected = next((reason for reason, one in zip(order, holds, strict=True) if one), None)
        assert forced_host_chain(HostSwitches(*holds[1:]), generators=holds[0], seeded=False) is expected
    assert forced_host_chain(HostSwitches(False, False, False, False), generators=True, seeded=True) is None


class Sampler:
    logprobs_mode = "raw_logprobs"


class Config:
    enable_reduce_sample = True


def test_a_switch_that_the_host_lacks_is_off():
    read = host_switches.read(Sampler(), Config, lambda: False)
    assert read == HostSwitches(False, False, reduce_sample=True, async_exponential=False)


def test_a_configuration_that_cannot_be_read_keeps_the_hosts_chain():
    def broken():
        raise RuntimeError("no configuration")

    assert host_switches.read(Sampler(), broken, lambda: False) == HostSwitches(False, True, True, True)


@pytest.mark.parametrize("mode", ["processed_logits", "processed_logprobs"])
def test_processed_logprobs(mode):
    sampler = Sampler()
    sampler.logprobs_mode = mode
    assert host_switches.read(sampler, Config, lambda: False).processed_logprobs
