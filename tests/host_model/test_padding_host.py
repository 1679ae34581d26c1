"""The padding model beside the real functions of the installed host, on generated cases: equal in all."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest

from tests.host_model.host_parts import require
from tests.host_model.padding_cases import BoundaryCase, Cases, LadderCase, RanksCase, SkipCase, StepCase, generate
from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.host_model import padding
from vllm_ascend_split_batch.host_model.padding import Descriptor, HostFailure, HostRelease, RuntimeMode, releases

pytestmark = pytest.mark.host

CHILD = Path(__file__).with_name("host_padding_child.py")
ROOT = Path(__file__).parents[2]
SEED = 20_270_101
COUNTS = {"steps": 5000, "boundaries": 1000, "ranks": 1500, "ladders": 2000, "skips": 500}
CHILD_SECONDS = 300
FAILED = "failure"


class MakeMutant(Protocol):
    def __call__(self, module: ModuleType, old: str, new: str) -> Any: ...


class Recorded:
    """The cases and what the real host answered."""

    def __init__(self, cases: Cases, answers: dict[str, Any], release: HostRelease) -> None:
        self.cases, self.answers, self.release = cases, answers, release

    def differing(self, kind: str, limit: int = 3) -> list[str]:
        """Up to `limit` cases of a kind in which the model answers otherwise than the host."""
        require(self.release, kind)
        found: list[str] = []
        for case, host in zip(getattr(self.cases, kind), self.answers[kind], strict=True):
            said = json.loads(json.dumps(MODEL[kind](case)))
            if said != host:
                found.append(f"{case}\n  host  {host}\n  model {said}")
                if len(found) == limit:
                    break
        return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Every case answered by the installed host, in one process on the emulated NPU."""
    emulator = pytest.importorskip("torch_npu_emulator")
    try:
        version = importlib.metadata.version("vllm-ascend")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm-ascend is not installed")
    release = HostRelease.of(version)
    folder = tmp_path_factory.mktemp("padding")
    result, log = folder / "answers.json", folder / "log.txt"
    environment = emulator.environment(dict(os.environ) | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": "ascend"})
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(ROOT)])
    arguments = [release.value, str(SEED), *(str(count) for count in COUNTS.values()), str(result)]
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, str(CHILD), *arguments],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=CHILD_SECONDS,
        )
    assert done.returncode == 0, log.read_text()[-4000:]
    return Recorded(generate(release, SEED, *COUNTS.values()), json.loads(result.read_text()), release)


@pytest.mark.parametrize("kind", list(COUNTS))
def test_the_model_answers_as_the_real_host(kind: str, recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    differing = recorded.differing(kind)
    assert not differing, "\n".join(differing)
    answers = recorded.answers[kind]
    with capsys.disabled():
        print(f"\npadding, vllm-ascend {recorded.release.value}: {len(answers)} {kind} compared, all equal ", end="")


def test_the_generated_cases_reach_every_outcome(recorded: Recorded) -> None:
    assert sum(COUNTS.values()) == 10_000
    steps = [answer for answer in recorded.answers["steps"] if answer != FAILED]
    assert {answer[0][0] for answer in steps} == {"NONE", "PIECEWISE", "FULL"}
    assert {answer[0][3] for answer in steps} == {True, False}
    rows = [answer[1] for answer in steps if answer[1] != FAILED]
    assert sum(real_and_zero[3] > 0 for real_and_zero in rows) > 500  # dummy rows
    assert sum(len(answer[0]) > len(answer[1]) for answer in rows) == 0
    assert any(1 in answer[1][answer[2] :] for answer in rows)  # beyond the buffer
    for kind in ("steps", "boundaries", "ranks", "ladders"):
        if recorded.answers[kind] is None:
            continue
        failed = sum(answer == FAILED for answer in recorded.answers[kind])
        assert 0 < failed < COUNTS[kind] / 2, kind
    beliefs = [[rank[1] for rank in answer] for answer in recorded.answers["ranks"] if answer != FAILED]
    assert any(len({tuple(belief) for belief in ranks}) > 1 for ranks in beliefs)
    assert set(recorded.answers["skips"]) == {True, False}


# A change to the model, and the kind of case that must notice it.
MUTANTS = [
    ("steps", "step", "-(-num_tokens // parallel) * parallel", "num_tokens // parallel * parallel"),
    ("steps", "step", "== query_length * batch.num_requests", "<= query_length * batch.num_requests"),
    ("steps", "step", "if any(tokens <= 0 for tokens in computed)", "if all(tokens <= 0 for tokens in computed)"),
    ("steps", "step", "batch.cascade_attention or", "False or"),
    ("steps", "step", "done >= prompt or", "done > prompt or"),
    ("steps", "dispatch", "min(tokens // query_length, self._settings.max_num_seqs)", "tokens // query_length"),
    ("steps", "dispatch", "query_length <= size <=", "query_length < size <="),
    ("steps", "dispatch", "<= query_length * self._settings.max_num_seqs", "< query_length * self._settings.max_num_seqs"),  # noqa: E501
    ("steps", "dispatch", "self._ladder[bisect_left(self._ladder, num_tokens)]", "self._ladder[-1]"),
    ("steps", "dispatch", "count & (count - 1) == 0 or", "count & (count - 1) == 0 and"),
    ("steps", "query_boundary", "and not settings.is_mla", ""),
    ("steps", "query_boundary", "ends[-1] >= padded_tokens", "ends[-1] > padded_tokens"),
    ("steps", "query_boundary", "and not one_full_graph:", "and True:"),
    ("steps", "query_boundary", "[0] * (in_buffer - len(real)) + [1]", "[1] * (in_buffer - len(real)) + [1]"),
    ("boundaries", "query_boundary", "len(ends) > rows", "len(ends) > rows + 1"),
    ("boundaries", "query_boundary", "ends[-1] + extra * query_length", "padded_tokens"),
    ("boundaries", "query_boundary", "if len(ends) != rows", "if False"),
    ("boundaries", "query_boundary", "and mode is RuntimeMode.FULL)", ")"),
    ("ranks", "data_parallel", "min(choice.mode for choice in choices)", "max(choice.mode for choice in choices)"),
    ("ranks", "data_parallel", "(most,) * len(choices) if pads else raw", "(most,) * len(choices)"),
    ("ranks", "step", "frozenset({view.mode})", "ALL_MODES"),
    ("ladders", "capture_sizes", "range(256, largest + 1, 16)", "range(256, largest + 1, 8)"),
    ("ladders", "capture_sizes", "if most_tokens <= largest", "if most_tokens < largest"),
    ("ladders", "capture_sizes", "_LARGEST_DEFAULT = 512", "_LARGEST_DEFAULT = 1024"),
    ("ladders", "capture_sizes", "min(largest, 32)", "min(largest, 64)"),
    ("ladders", "capture_sizes", "return [multiple]", "return sizes"),
    ("ladders", "capture_sizes", "round(index * step)", "int(index * step)"),
    ("skips", "data_parallel", "(rules.skips_by_prefill_alone or not separates_decode)", "True"),
]  # fmt: skip

# Where a rule of the release keeps a changed line from being reached, or from saying anything else, the model is as it
# was: the mutant must not be noticed there.
NOTICED_WHERE: dict[str, Callable[[releases.PaddingRules], bool]] = {
    "done >= prompt or": lambda rules: rules.whole_prompt_under_dcp or rules.whole_prompt_of_hybrids,
    "round(index * step)": lambda rules: rules.samples_reduced_ladders,
    "(rules.skips_by_prefill_alone or not separates_decode)": lambda rules: not rules.skips_by_prefill_alone,
}


@pytest.mark.parametrize(("kind", "name", "old", "new"), MUTANTS)
def test_a_changed_model_is_noticed(
    kind: str,
    name: str,
    old: str,
    new: str,
    recorded: Recorded,
    mutant: MakeMutant,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = importlib.import_module(f"{padding.__name__}.{name}")
    changed = mutant(original, old, new)
    for module in [padding, *(importlib.import_module(f"{padding.__name__}.{part}") for part in PARTS)]:
        for attribute, value in list(vars(module).items()):
            if getattr(value, "__module__", None) == original.__name__ and hasattr(changed, attribute):
                monkeypatch.setattr(module, attribute, getattr(changed, attribute))
    noticed = NOTICED_WHERE.get(old, lambda _: True)(recorded.release.rules)
    assert bool(recorded.differing(kind, limit=1)) == noticed


def test_each_mutant_is_noticed_on_some_release() -> None:
    assert set(NOTICED_WHERE) < {old for _, _, old, _ in MUTANTS}
    for where in NOTICED_WHERE.values():
        assert any(where(release.rules) for release in HostRelease)


# The cases that a rule of the release decides.
RULES = {
    "computed_tokens_need_speculation": "steps",
    "whole_prompt_under_dcp": "steps",
    "whole_prompt_of_hybrids": "steps",
    "shards_tokens_by_pass": "steps",
    "aligns_for_any_sharding": "ladders",
    "captures_default_maximum": "ladders",
    "samples_reduced_ladders": "ladders",
    "sharded_decode_sizes": "ladders",
    "pads_by_own_mode": "ranks",
    "skips_by_prefill_alone": "skips",
    "mega_moe": "skips",
}


@pytest.mark.parametrize("rule", [field.name for field in fields(releases.PaddingRules)])
def test_a_changed_rule_of_the_release_is_noticed(
    rule: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = recorded.release.rules
    here = getattr(rules, rule)
    other = {
        "absent": "consumer",
        "consumer": "first",
        "first": "consumer",
        "refuse": "accept",
        "accept": "refuse",
        "round": "accept",
    }
    monkeypatch.setitem(
        releases._RULES, recorded.release, replace(rules, **{rule: other[here] if isinstance(here, str) else not here})
    )
    assert recorded.differing(RULES[rule], limit=1)


PARTS = ("capture_sizes", "data_parallel", "dispatch", "query_boundary", "step")


def described(mode: RuntimeMode, descriptor: Descriptor) -> list[Any]:
    return [
        mode.name,
        descriptor.num_tokens,
        descriptor.num_reqs,
        descriptor.uniform,
        descriptor.has_lora,
        descriptor.num_active_loras,
    ]


def answer_step(case: StepCase) -> Any:
    try:
        execution = padding.StepPadding(case.settings, case.ladder).execute(case.batch)
    except HostFailure:
        return FAILED
    described_step = described(execution.mode, execution.descriptor)
    try:
        rows = padding.attention_rows(case.settings, case.batch.scheduled_tokens, case.batch.computed_tokens, execution)
    except HostFailure:
        return [described_step, FAILED]
    return [described_step, [rows.query_ends, rows.kv_lengths, rows.real_rows, rows.dummy_rows, rows.slots]]


def answer_boundary(case: BoundaryCase) -> Any:
    try:
        return padding.pad_query_ends(
            case.settings,
            case.query_ends,
            padded_tokens=case.padded_tokens,
            mode=case.mode,
            graph_requests=case.graph_requests,
        )
    except HostFailure:
        return FAILED


def answer_ranks(case: RanksCase) -> Any:
    try:
        ranks = padding.StepPadding(case.settings, case.ladder).execute_ranks(
            case.batches, skipped=case.skipped, needs_equal_tokens=lambda _: case.needs_equal_tokens
        )
    except HostFailure:
        return FAILED
    return [[described(rank.mode, rank.descriptor), rank.tokens_across_ranks] for rank in ranks]


def answer_ladder(case: LadderCase) -> Any:
    try:
        return padding.capture_sizes(case.settings)
    except HostFailure:
        return FAILED


def answer_skip(case: SkipCase) -> Any:
    return padding.skips_agreement(case.release, **case.facts)


MODEL: dict[str, Callable[[Any], Any]] = {
    "steps": answer_step,
    "boundaries": answer_boundary,
    "ranks": answer_ranks,
    "ladders": answer_ladder,
    "skips": answer_skip,
}
