"""The admission model beside the host's own queues, planners and schedulers: equal at every step of generated cases."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from types import ModuleType
from typing import Any, Protocol

import pytest

from tests.host_model.admission_cases import SHOWN_THEN_ABORTED
from tests.host_model.admission_kinds import model_answers
from tests.host_model.admission_mutants import MUTANTS, NOTICED_WHERE
from tests.host_model.recorded_admission import COUNTS, Recorded
from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.host_model.admission import HostRelease, admission_rules, releases

pytestmark = pytest.mark.host


class MakeMutant(Protocol):
    def __call__(self, module: ModuleType, old: str, new: str) -> Any: ...


@pytest.mark.parametrize("kind", list(COUNTS))
def test_the_model_answers_as_the_host(
    kind: str, recorded_admission: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = recorded_admission.of_host(kind)
    differing = recorded_admission.differing(kind)
    assert not differing, "\n".join(differing)
    steps = sum(len(answer) for answer in answers)
    with capsys.disabled():
        print(
            f"\nadmission, vllm-ascend {recorded_admission.version}: {len(answers)} {kind} compared, all equal "
            f"({steps} steps) ",
            end="",
        )


def test_the_generated_cases_reach_every_outcome(recorded_admission: Recorded) -> None:
    rules = admission_rules(recorded_admission.release)
    kinds = ["engines", "connected engines"] + (["balanced engines"] if rules.has_load_balancing else [])
    for kind in kinds:
        steps = [
            step
            for answer in recorded_admission.of_host(kind)
            for step in answer
            if isinstance(step, dict) and "tokens" in step
        ]
        reached = {
            "preempted": sum(bool(step["preempted"]) for step in steps),
            "finished": sum(bool(step["finished"]) for step in steps),
            "length": sum(reason == "length" for step in steps for _, reason in step["finished"]),
            "waiting": sum(bool(step["waiting"]) for step in steps),
        }
        if kind != "engines":
            statuses = [state[0] for step in steps for state in step["state"].values()]
            reached["loads"] = statuses.count("WAITING_FOR_REMOTE_KVS")
            reached["recomputed"] = sum(bool(step["recomputed"]) for step in steps)
            reached["skipped"] = sum(bool(step["skipped"]) for step in steps)
        assert min(reached.values()) > 10, (kind, reached)
    if rules.has_policies:
        # Under BatchJobAware a request that was shown and then aborted ends the engine, if anybody else waits.
        ended = [answer[-1] == "failure" for answer in recorded_admission.of_host("engines")]
        assert 2 <= sum(ended) < SHOWN_THEN_ABORTED
        told = [given for answer in recorded_admission.of_host("batch jobs") for given, _ in answer]
        assert {"none", "too many jobs"} <= {given for given in told if isinstance(given, str)}
        states = [state for answer in recorded_admission.of_host("short first") for _, state in answer]
        assert sum(state[5] > 0 for state in states) > 100  # promoted
        assert any(state[7] for state in states)  # warned
    if rules.has_load_balancing:
        plans = [rank for answer in recorded_admission.of_host("plans") for rank in answer]
        assert sum(bool(out) for out, _, _ in plans) > 500
        assert sum(freeze for _, _, freeze in plans) > 500
        paused = [
            state
            for answer in recorded_admission.of_host("balanced engines")
            for step in answer
            if isinstance(step, dict)
            for state in step["state"].values()
        ]
        assert sum(state[0] == "PREEMPTED" and state[1] > 0 for state in paused) > 100  # with its keys and values


def module_named(name: str) -> ModuleType:
    for package in ("", "admission.", "load_balance.", "recovery.", "remote_kv."):
        try:
            return importlib.import_module(f"vllm_ascend_split_batch.host_model.{package}{name}")
        except ModuleNotFoundError:
            continue
    raise AssertionError(name)


@pytest.mark.parametrize(("kind", "name", "old", "new"), MUTANTS)
def test_a_changed_model_is_noticed(
    kind: str,
    name: str,
    old: str,
    new: str,
    recorded_admission: Recorded,
    mutant: MakeMutant,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded_admission.of_host(kind)
    model_answers()  # imports all there is to change
    original = module_named(name)
    changed = mutant(original, old, new)
    for module in [module for name, module in sys.modules.items() if name.startswith(USERS)]:
        if module is changed:
            continue
        for attribute, value in list(vars(module).items()):
            if getattr(value, "__module__", None) == original.__name__ and hasattr(changed, attribute):
                monkeypatch.setattr(module, attribute, getattr(changed, attribute))
    noticed = NOTICED_WHERE.get((name, old), lambda _: True)(admission_rules(recorded_admission.release))
    assert bool(recorded_admission.differing(kind, limit=1)) == noticed


def test_each_mutant_and_rule_is_noticed_on_some_release() -> None:
    assert set(NOTICED_WHERE) < {(name, old) for _, name, old, _ in MUTANTS}
    assert set(RULE_NOTICED_WHERE) < set(RULES)
    for where in (*NOTICED_WHERE.values(), *RULE_NOTICED_WHERE.values()):
        assert any(where(admission_rules(release)) for release in HostRelease)


USERS = ("vllm_ascend_split_batch.host_model", "tests.host_model")

# The kinds of cases that a rule of the release decides, and the releases whose generated cases show it.
RULES: dict[str, str] = {
    "has_watermark": "",  # decides which settings exist
    "has_policies": "",
    "has_load_balancing": "",
    "defers_frees": "connected engines",
    "waits_for_frees": "connected engines",
    "unhashed_first": "engines",
    "passes_over_next": "engines",
    "recompute_by_priority": "connected engines",
    "recompute_aborts_split": "connected engines",
    "recomputed_answers": "connected engines",
    "recompute_reserves": "connected engines",
}

# Where another rule of the release leaves a rule nothing to decide, a change of it must not be noticed: only deferred
# frees can be waited for, and where they are, nobody is finished for recomputation while an output is under way.
RULE_NOTICED_WHERE: dict[str, Callable[[releases.AdmissionRules], bool]] = {
    "waits_for_frees": lambda rules: rules.defers_frees,
    "recomputed_answers": lambda rules: not (rules.waits_for_frees and rules.defers_frees),
}


@pytest.mark.parametrize("rule", [field.name for field in fields(releases.AdmissionRules)])
def test_a_changed_rule_of_the_release_is_noticed(
    rule: str, recorded_admission: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not RULES[rule]:
        with pytest.raises(ValueError, match=r"vllm-ascend 0\.23"):
            EXISTS[rule]()
        return
    rules = admission_rules(recorded_admission.release)
    monkeypatch.setitem(releases._RULES, recorded_admission.release, replace(rules, **{rule: not getattr(rules, rule)}))
    noticed = RULE_NOTICED_WHERE.get(rule, lambda _: True)(rules)
    assert bool(recorded_admission.differing(RULES[rule], limit=1)) == noticed


def settings_of(**more: Any) -> Any:
    from vllm_ascend_split_batch.host_model.admission import EngineSettings

    return EngineSettings(release=HostRelease.V0_23, **more)


EXISTS: dict[str, Callable[[], Any]] = {
    "has_watermark": lambda: settings_of(watermark=0.1),
    "has_policies": lambda: settings_of(policy="short-request-first"),
    "has_load_balancing": lambda: balanced(),
}


def balanced() -> Any:
    from vllm_ascend_split_batch.host_model.load_balance import BalancedScheduler

    return BalancedScheduler(settings_of())
