"""N-way plans: worked numbers, every reason, and the table's lookup."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from vllm_ascend_split_batch.planner import GraphCost, Reason, SplitSlice, SplitTable, plan_split
from vllm_ascend_split_batch.planning.cost import ROWS_ONLY

SIZES = (1, 2, 4, 8, 16, 32, 64)
COST = GraphCost(launch_us=10.0, row_us=1.0)


def captured(**arguments: Any) -> tuple[list[int] | None, str]:
    plan, reason = plan_split(**{"main_capture_sizes": SIZES, "cost": COST, **arguments})
    return plan and [piece.padded_tokens for piece in plan.slices], reason


@pytest.mark.parametrize(
    ("arguments", "sizes", "reason"),
    [
        ({"num_requests": 33}, [32, 1], "split"),  # 20 + 33 us; 64 alone is 10 + 64
        ({"num_requests": 43}, [32, 16], "split"),  # 20 + 48 us; 32 + 8 + 4 is 30 + 44, 64 alone 74
        ({"num_requests": 63}, [64], "single_graph_cheapest"),
        ({"num_requests": 64}, [64], "exact_graph_hit"),
        ({"num_requests": 65}, [64, 1], "split"),
        ({"num_requests": 200}, [64, 64, 64, 8], "split"),
        ({"num_requests": 200, "max_slices": 3}, None, "exceeds_max_size"),
        ({"num_requests": 65, "max_slices": 1}, None, "exceeds_max_size"),
        ({"num_requests": 65, "parallel_capture_sizes": ()}, None, "exceeds_max_size"),
        ({"num_requests": 33, "parallel_capture_sizes": ()}, [64], "single_graph_cheapest"),
        ({"num_requests": 33, "parallel_capture_sizes": (40,)}, [1, 40], "split"),  # 20 + 41 us
        ({"num_requests": 33, "parallel_capture_sizes": (60,)}, [64], "single_graph_cheapest"),
        ({"num_requests": 70, "parallel_capture_sizes": (40,)}, [32, 40], "split"),
        ({"num_requests": 33, "cost": GraphCost(0, 0)}, [64], "single_graph_cheapest"),
        ({"num_requests": 63, "cost": ROWS_ONLY}, [32, 16, 8, 4, 2, 1], "split"),
        ({"num_requests": 63, "cost": ROWS_ONLY, "max_slices": 2}, [64], "single_graph_cheapest"),
        ({"num_requests": 0}, None, "no_requests"),
        ({"num_requests": 1, "main_capture_sizes": ()}, None, "no_capture_sizes"),
        ({"num_requests": 1, "tokens_per_request": 65}, None, "no_capture_sizes"),
    ],
)
def test_worked_numbers(arguments: dict[str, Any], sizes: list[int] | None, reason: str) -> None:
    assert captured(**arguments) == (sizes, reason)


def test_a_plan_of_several_tokens_per_request_cuts_between_requests() -> None:
    plan, _ = plan_split(num_requests=11, tokens_per_request=3, main_capture_sizes=(4, 12, 24, 64), cost=COST)
    assert plan is not None
    # 33 tokens. Graphs of 24 and 12 hold 8 and 4 requests; one of 64 would run 28 rows more for one launch less.
    assert plan.slices == (SplitSlice(0, 8, 0, 24, 24), SplitSlice(8, 11, 24, 33, 12))
    assert (plan.total_tokens, plan.rows, plan.padding_rows, plan.unsplit_rows, plan.rows_saved) == (33, 36, 3, 64, 28)
    assert (plan.expected_us, plan.unsplit_us) == (56.0, 74.0)


def test_above_the_largest_capture_size_nothing_is_known_of_the_unsplit_batch() -> None:
    plan, reason = plan_split(num_requests=65, main_capture_sizes=SIZES, cost=COST)
    assert plan is not None
    assert (plan.unsplit_rows, plan.unsplit_us, plan.rows_saved, plan.padding_rows) == (None, None, None, 0)
    assert reason is Reason.SPLIT


def test_costs_are_compared_without_rounding() -> None:
    # 0.1 + 0.2 > 0.3 in floating point; the plan must depend on the numbers as given, for any number of slices.
    cost = GraphCost(launch_us=1e-300, row_us=1e-300)
    assert captured(num_requests=63, cost=cost) == ([64], "single_graph_cheapest")
    assert captured(num_requests=33, cost=cost) == ([32, 1], "split")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens_per_request": 0}, "tokens_per_request must be at least 1, got 0"),
        ({"max_slices": 0}, "max_slices must be at least 1, got 0"),
        ({"main_capture_sizes": (0, 1)}, "capture sizes must be positive, got 0"),
        ({"parallel_capture_sizes": (-1,)}, "capture sizes must be positive, got -1"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        captured(num_requests=3, **arguments)
    with pytest.raises(ValueError, match=message):
        SplitTable(**{"main_capture_sizes": SIZES, "cost": COST, "max_requests": 3, **arguments})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["launch_us", "row_us"])
def test_a_cost_is_checked(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a finite number of microseconds"):
        GraphCost(**{"launch_us": 1.0, "row_us": 1.0, name: value})


def test_the_table_answers_as_the_planner_does() -> None:
    table = SplitTable(main_capture_sizes=SIZES, cost=COST, max_requests=130)
    for requests in range(131):
        assert table.decide(requests) == plan_split(num_requests=requests, main_capture_sizes=SIZES, cost=COST)
    assert table.decide(131) == (None, "batch_above_table")
    assert table.decide(-1) == (None, "no_requests")
    with pytest.raises(ValueError, match="max_requests must be at least 1, got 0"):
        SplitTable(main_capture_sizes=SIZES, cost=COST, max_requests=0)


def peak_bytes(call: Callable[[], None]) -> int:
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    call()
    return tracemalloc.get_traced_memory()[1] - before


def test_a_lookup_allocates_nothing() -> None:
    table = SplitTable(main_capture_sizes=SIZES, cost=COST, max_requests=512)
    decide = table.decide
    batches = [0, 1, 33, 256, 512, 513]

    def look_up() -> None:
        for batch in batches:
            decide(batch)

    def loop() -> None:
        for _ in batches:
            pass

    def copy() -> None:
        for batch in batches:
            list(decide(batch))

    tracemalloc.start()
    try:
        # The first round fills the interpreter's own caches; reading the counters costs a few bytes by itself.
        looked_up, looped, copied = (min(peak_bytes(call) for _ in range(5)) for call in (look_up, loop, copy))
    finally:
        tracemalloc.stop()
    assert looked_up == looped
    assert copied > looped
    assert decide(33) is decide(33)
