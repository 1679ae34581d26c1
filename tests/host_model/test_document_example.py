"""A published example of the lanes: run by the queueing tool that it was written for, by the model, and by the host."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.host_model.admission_lockstep import run_model
from tests.host_model.document_example import EXPECTED, PROGRAM, admissions, document_cases
from tests.host_model.recorded_admission import Recorded
from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.host_model.admission import HostRelease, policies, short_request_first


def told(order: tuple[int, ...], times: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(order, times, strict=True))


@pytest.mark.parametrize("wait", list(EXPECTED))
def test_the_tool_admits_in_this_order(wait: float) -> None:
    pyserq = pytest.importorskip("pyserq")
    source = PROGRAM.read_text()
    assert source.count("let max_wait = 0.003;") == 1
    if wait == 0:
        source = source.replace("let max_wait = 0.003;", "let max_wait = 0;")
    report = pyserq.run(pyserq.compile(source=source))
    selected = [int(number) for number in report.observe("selected").samples]
    admitted = [round(1000 * seconds) for seconds in report.observe("admitted").samples]
    assert sorted(zip(selected, admitted, strict=True), key=lambda one: one[1]) == told(*EXPECTED[wait])


@pytest.mark.host
@pytest.mark.parametrize("wait", list(EXPECTED))
def test_the_host_and_the_model_admit_in_this_order(wait: float, recorded_admission: Recorded) -> None:
    answers = recorded_admission.of_host("document")
    expected = told(*EXPECTED[wait])
    number = list(EXPECTED).index(wait)
    assert admissions(run_model(document_cases(recorded_admission.release)[number])) == expected
    assert admissions(answers[number]) == expected


@pytest.mark.parametrize("wait", list(EXPECTED))
def test_the_model_alone(wait: float) -> None:
    case = document_cases(HostRelease.V0_27_1)[list(EXPECTED).index(wait)]
    assert admissions(run_model(case)) == told(*EXPECTED[wait])


def test_a_changed_lane_is_noticed(
    mutant: Callable[[ModuleType, str, str], Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = mutant(short_request_first, "request.status is RequestStatus.PREEMPTED or ", "")
    monkeypatch.setattr(policies, "ShortRequestFirstQueue", changed.ShortRequestFirstQueue)
    with pytest.raises(AssertionError):
        test_the_model_alone(3.0)
