"""All carriers on the installed host: alone, in pairs, in orders of chance; afterwards the host is what it was.

Identity is compared at every place that a carrier names or patches, after each sequence; and for every attribute of
every loaded module and class of the host once, before all sequences and after them.
"""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.emulated.switched_on import SWITCHED_ON
from tools.hosts.live_child import Snapshot
from tools.write_sidecars import carriers as declared
from vllm_ascend_split_batch.carrier import seams

CARRIERS = {carrier.name: carrier for carrier in declared()}
NAMES = sorted(CARRIERS.keys() & SWITCHED_ON.keys())


def on(name: str) -> None:
    """Load a carrier with its gates open, and the others' variables absent."""
    carrier = CARRIERS[name]
    carrier.guard.latched = False
    os.environ.update(SWITCHED_ON[name])
    try:
        carrier.load()
    finally:
        for variable in SWITCHED_ON[name]:
            os.environ.pop(variable, None)


def off(name: str) -> None:
    CARRIERS[name].uninstall()


def places() -> dict[str, Any]:
    """What lies at every place that some carrier names, and vLLM's table of variables."""
    import vllm.envs

    found: dict[str, Any] = {}
    for carrier in CARRIERS.values():
        for seam in carrier.seams:
            try:
                owner = seams.find_owner(seam)
            except LookupError:
                continue
            found[seam.target] = vars(owner).get(seam.path[-1], seams.ABSENT)
    return found | {f"vllm.envs[{name}]": entry for name, entry in vllm.envs.environment_variables.items()}


def changed(before: dict[str, Any]) -> list[str]:
    after = places()
    keys = before.keys() | after.keys()
    return sorted(key for key in keys if before.get(key, seams.ABSENT) is not after.get(key, seams.ABSENT))


@pytest.fixture(scope="module", autouse=True)
def whole_host(host):
    """Every attribute of the host, before the first sequence and after the last."""
    for name in NAMES:  # what the bindings import is imported once before
        on(name)
        off(name)
    modules = {seam.module for carrier in CARRIERS.values() for seam in carrier.seams}
    before = Snapshot(modules)
    yield
    assert before.differences() == []


@pytest.fixture(scope="module")
def alone(whole_host) -> dict[str, tuple[str, str]]:
    """State and reason of each carrier with no other one there."""
    states = {}
    for name in NAMES:
        on(name)
        states[name] = CARRIERS[name].state, CARRIERS[name].state_reason
        off(name)
    return states


def test_every_carrier_is_switched_on_in_tests():
    assert set(CARRIERS) == set(NAMES)
    assert len({carrier.extension_id for carrier in CARRIERS.values()}) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_alone(name, alone):
    before = places()
    on(name)
    assert CARRIERS[name].state in ("installed", "refused")
    assert "binding failed" not in CARRIERS[name].state_reason
    assert (changed(before) != []) is (CARRIERS[name].state == "installed" or bool(CARRIERS[name]._variables.installed))
    off(name)
    assert changed(before) == []


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(NAMES, 2)))
def test_pairs_leave_in_either_order(first, second, alone):
    before = places()
    for leaving in ((first, second), (second, first)):
        on(first)
        on(second)
        assert {name: (CARRIERS[name].state, CARRIERS[name].state_reason) for name in (first, second)} == {
            name: alone[name] for name in (first, second)
        }
        for name in leaving:
            off(name)
        assert changed(before) == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    steps=st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=24),
    seed=st.integers(0, 2**16),
)
def test_orders_of_chance(steps, seed, alone):
    before = places()
    try:
        for name, switch in steps:
            if switch:
                on(name)
                assert CARRIERS[name].state == alone[name][0]
            else:
                off(name)
    finally:
        for name in random.Random(seed).sample(NAMES, len(NAMES)):
            off(name)
    assert changed(before) == []


def test_all_at_once_with_a_stranger_on_top(host, alone):
    """A wrapper that is not ours stays where it is, and calls pass through what has left."""
    before = places()
    for name in NAMES:
        on(name)
    ours = vars(host.impl)["forward_fused_infer_attention"]

    def stranger(*args, **kwargs):
        return ours(*args, **kwargs)

    host.impl.forward_fused_infer_attention = stranger
    for name in NAMES:
        off(name)
    assert vars(host.impl)["forward_fused_infer_attention"] is stranger
    host.impl.forward_fused_infer_attention = ours
    # The next carrier that comes or goes there clears what has left.
    on("fia-demask")
    off("fia-demask")
    assert changed(before) == []


def test_a_carrier_that_leaves_something_behind_is_noticed(monkeypatch, alone):
    from vllm_ascend_split_batch.carrier import patches

    before = places()
    on("zerocost-skip-cos-sin")
    with monkeypatch.context() as forgetful:
        forgetful.setattr(patches.AttributePlace, "put", lambda self, value: None)
        forgetful.setattr(patches, "_uncover", lambda place: None)
        off("zerocost-skip-cos-sin")
    assert "vllm_ascend.worker.model_runner_v1:update_cos_sin" in changed(before)
    on("zerocost-skip-cos-sin")
    off("zerocost-skip-cos-sin")
    assert changed(before) == []
