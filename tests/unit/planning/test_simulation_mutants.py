"""The tests of simulation and advice can fail: each planted change is noticed by what they check."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from vllm_ascend_split_batch.planning.advice import capture_sizes, lanes, split_threshold
from vllm_ascend_split_batch.planning.cost import GraphCost
from vllm_ascend_split_batch.planning.simulation import outcome, simulator, step_time, step_totals
from vllm_ascend_split_batch.planning.simulation.simulator import Simulation
from vllm_ascend_split_batch.planning.traces import TraceRequest

from .test_advice import result
from .test_simulation import PLAIN, setup

Mutant = Callable[[ModuleType, str, str], ModuleType]
REQUESTS = [
    TraceRequest("a", 0.0, 10, 100),
    TraceRequest("b", 0.0205, 1, 2),
    TraceRequest("c", 0.0301, 70, 3),
    TraceRequest("d", 9.0, 600, 1),
    TraceRequest("e", 9.5, 6, 1),
]


def told(simulation: type[Simulation], **engine: object) -> list[str]:
    return [one.line() for one in simulation(setup(**engine)).run(REQUESTS)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("requests[arrived].arrival <= self.now", "requests[arrived].arrival <= self.now + 0.01"),
        ("self.now, idle = upcoming, 0", "self.now, idle = upcoming + 1, 0"),
        (
            "self._pass_time(result)\n            finished",
            "finished = self._note(result, began)\n            self._pass_time(result)\n            finished",
        ),
        ("prompt_tokens = tokens - result.decodes", "prompt_tokens = 0"),
        ("self.now += result.steps * seconds", "self.now += seconds"),
        ("outcome.admitted = began", "outcome.admitted = self.now"),
        ("self._outcomes[request].first_token = known", "self._outcomes[request].first_token = began"),
        ("outcome.finished = known", "outcome.finished = began"),
        ("math.ceil((upcoming", "1 + math.ceil((upcoming"),
        ('"rejected", str(error)', '"stop", str(error)'),
        ("outcome.outputs = request.outputs", "outcome.outputs = 0"),
    ],
)
def test_changes_of_the_loop(old: str, new: str, mutant: Mutant) -> None:
    try:
        changed = told(mutant(simulator, old, new).Simulation)
    except KeyError:  # outcomes are looked up twice
        return
    assert changed != told(Simulation)


def test_a_change_of_asynchronous_outputs(mutant: Mutant) -> None:
    changed = mutant(simulator, "began if self.setup.engine.asynchronous else self.now", "self.now").Simulation
    assert told(changed, asynchronous=True) != told(Simulation, asynchronous=True)
    assert told(changed) == told(Simulation)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.graph_us if in_graph else self.eager_us", "self.graph_us"),
        ("(rows - prompt_tokens)", "rows"),
        ("+ self.prompt_token_us * prompt_tokens", ""),
        ("* 1e-6", "* 1e-3"),
    ],
)
def test_changes_of_the_step_time(old: str, new: str, mutant: Mutant) -> None:
    changed = mutant(step_time, old, new).StepTime(3, 5, 7, 11)
    given = {"rows": 20, "prompt_tokens": 4, "in_graph": False}
    assert step_time.StepTime(3, 5, 7, 11).seconds(**given) == pytest.approx((5 + 7 * 16 + 11 * 4) * 1e-6)  # type: ignore[arg-type]
    assert changed.seconds(**given) != step_time.StepTime(3, 5, 7, 11).seconds(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rows[k] - sizes[j] * upto[k]", "rows[k]"),
        ("-(-batch // multiple) * multiple", "batch // multiple * multiple"),
        ("rows[-1] < best", "rows[-1] > -best"),
        ("weights.get(size, 0) + count", "count"),
    ],
)
def test_changes_of_the_search_for_sizes(old: str, new: str, mutant: Mutant) -> None:
    changed = mutant(capture_sizes, old, new).best_capture_sizes
    tries = {
        ((3, 100), (4, 90), (5, 300), (7, 10)): (2, 2, (6, 8)),
        ((1, 50), (2, 1), (3, 1), (4, 20), (8, 1)): (2, 2, (2, 8)),
        ((1, 5), (9, 1)): (3, 1, (1, 8)),
        ((5, 10), (6, 9), (1, 30)): (3, 1, (1, 6, 8)),
        ((3, 0), (8, 5)): (3, 1, (8,)),
    }

    def right(search: Callable[..., tuple[int, ...]]) -> list[bool]:
        return [
            search(dict(steps), most_graphs=most, largest=8, multiple=multiple) == sizes
            for steps, (most, multiple, sizes) in tries.items()
        ]

    assert all(right(capture_sizes.best_capture_sizes))
    assert not all(right(changed))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cost.launch_us // cost.row_us", "cost.row_us // cost.launch_us"),
        ("rows += count * plan.padding_saved", "rows += plan.padding_saved"),
        ("- cost.launch_us) * 1e-6", ") * 1e-6"),
        ("smallest = smallest or batch", "smallest = batch"),
    ],
)
def test_changes_of_the_split_threshold(old: str, new: str, mutant: Mutant) -> None:
    given = {33: 7, 20: 100, 64: 3}, (1, 2, 4, 8, 16, 32, 64), GraphCost(10, 1)
    changed = mutant(split_threshold, old, new).split_advice(*given)
    advised = split_threshold.split_advice(*given)
    assert vars(changed) != vars(advised)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("percentile(summary.waits, 1) <= limit", "True"),
        ("wait - one[0] >= worth", "True"),
        ("summary.finished >= now.finished", "True"),
    ],
)
def test_changes_of_the_choice(old: str, new: str, mutant: Mutant) -> None:
    now, tried = (
        result("now", 4, 4, 4),
        [result("starving", 0, 0, 9), result("nearly", 4, 4, 3.9), result("fewer", 0, 0)],
    )
    changed = mutant(lanes, old, new).choose(now, tried, longest_wait_factor=2)
    assert lanes.choose(now, tried, longest_wait_factor=2).result is now
    assert changed.result is not now


def test_changes_of_totals_and_waits(mutant: Mutant) -> None:
    changed = mutant(outcome, "self.admitted - self.request.arrival", "self.admitted").Outcome
    assert changed(REQUESTS[1], admitted=1.0).wait != outcome.Outcome(REQUESTS[1], admitted=1.0).wait
    for old in ("self.rows += steps * rows", "self.decode_rows += steps * rows", "self.seconds += steps * seconds"):
        totals = mutant(step_totals, old, old.replace("steps * ", "")).StepTotals()
        right = step_totals.StepTotals()
        for one in (totals, right):
            simulation = Simulation(setup(step_time=PLAIN))
            list(simulation.run(REQUESTS))
            one.count(steps=3, tokens=3, rows=4, mode=next(iter(step_totals.RuntimeMode)), decode=True, seconds=0.5)
        assert vars(totals) != vars(right)
