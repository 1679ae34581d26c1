"""Every plan covers its batch, keeps to its rules, and is as cheap as any."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mutants import mutant  # noqa: F401
from tests.property.planning.brute_force import cheapest
from vllm_ascend_split_batch.planning import optimum
from vllm_ascend_split_batch.planning.cost import GraphCost
from vllm_ascend_split_batch.planning.dual_pad import plan_dual_pad
from vllm_ascend_split_batch.planning.ladder import Ladder
from vllm_ascend_split_batch.planning.optimum import CheapestSizes
from vllm_ascend_split_batch.planning.split import SplitPlan, SplitTable, plan_split


class MakeMutant(Protocol):
    def __call__(self, module: ModuleType, old: str, new: str) -> Any: ...


small_sizes = st.lists(st.integers(1, 12), max_size=4)
costs = st.builds(GraphCost, st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.5, 7.0, 40.0]), st.sampled_from([0.0, 0.1, 1.0]))


@settings(max_examples=400)
@given(
    st.integers(1, 9),
    st.integers(1, 3),
    small_sizes,
    st.none() | small_sizes,
    costs,
    st.none() | st.integers(1, 4),
)
def test_a_plan_is_as_cheap_as_brute_force(
    requests: int, k: int, main: list[int], parallel: list[int] | None, cost: GraphCost, max_slices: int | None
) -> None:
    plan, reason = plan_split(
        num_requests=requests,
        main_capture_sizes=main,
        cost=cost,
        tokens_per_request=k,
        parallel_capture_sizes=parallel,
        max_slices=max_slices,
    )
    best = cheapest(
        requests,
        main=main,
        parallel=main if parallel is None else parallel,
        tokens_per_request=k,
        launch=cost.launch_us,
        row=cost.row_us,
        max_slices=max_slices,
    )
    if plan is None:
        assert best is None
        assert reason == ("exceeds_max_size" if any(size >= k for size in main) else "no_capture_sizes")
        return
    assert exact(plan, cost) == best
    well_formed(plan, main, main if parallel is None else parallel, max_slices)


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=20),
    st.none() | st.lists(st.integers(1, 300), max_size=8),
    st.integers(1, 8),
    costs,
    st.none() | st.integers(1, 6),
)
def test_plans_of_large_ladders_are_well_formed(
    main: list[int], parallel: list[int] | None, k: int, cost: GraphCost, max_slices: int | None
) -> None:
    table = SplitTable(
        main_capture_sizes=main,
        cost=cost,
        max_requests=80,
        tokens_per_request=k,
        parallel_capture_sizes=parallel,
        max_slices=max_slices,
    )
    before = Fraction(0)
    for requests in range(1, 81):
        plan, _ = table.decide(requests)
        if plan is None:
            assert all(table.decide(more).plan is None for more in range(requests, 81))
            break
        well_formed(plan, main, main if parallel is None else parallel, max_slices)
        assert exact(plan, cost) >= before  # a smaller batch never costs more
        before = exact(plan, cost)
        if plan.unsplit_us is not None:
            assert exact(plan, cost) <= Fraction(cost.launch_us) + Fraction(cost.row_us) * (plan.unsplit_rows or 0)


@settings(max_examples=300)
@given(st.integers(1, 200), st.lists(st.integers(1, 128), min_size=1, max_size=8))
def test_two_slices_never_pad_more_than_the_published_plan(requests: int, sizes: list[int]) -> None:
    published, _ = plan_dual_pad(num_requests=requests, total_tokens=requests, main_capture_sizes=sizes)
    if published is None:
        return
    plan, _ = plan_split(num_requests=requests, main_capture_sizes=sizes, cost=GraphCost(0, 1), max_slices=2)
    assert plan is not None
    assert plan.rows <= sum(piece.padded_tokens for piece in published.slices)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max(0, num_requests - size // self._k)", "max(0, num_requests - size // self._k - 1)"),
        ("launch + row * size", "launch * 2 + row * size"),
        ("self._limited(max_requests, max_slices - 1)", "self._limited(max_requests, max_slices - 2)"),
    ],
)
def test_brute_force_notices_a_changed_recurrence(old: str, new: str, mutant: MakeMutant) -> None:  # noqa: F811
    changed = mutant(optimum, old, new)

    def differs(sizes_class: Any) -> bool:
        for main in ((1, 4, 6), (2, 3), (5,)):
            for max_slices in (None, 2, 3):
                for requests in range(1, 12):
                    cost = GraphCost(1.0, 1.0)
                    sizes = sizes_class(
                        Ladder(main), Ladder(main), cost, tokens_per_request=1, max_requests=11, max_slices=max_slices
                    ).sizes(requests)
                    best = cheapest(
                        requests, main=main, parallel=main, tokens_per_request=1, launch=1, row=1, max_slices=max_slices
                    )
                    found = None if sizes is None else len(sizes) + sum(sizes)
                    if found != best or (sizes is not None and sum(sizes) < requests):
                        return True
        return False

    assert not differs(CheapestSizes)
    assert differs(changed.CheapestSizes)


def exact(plan: SplitPlan, cost: GraphCost) -> Fraction:
    return Fraction(cost.launch_us) * len(plan.slices) + Fraction(cost.row_us) * plan.rows


def well_formed(plan: SplitPlan, main: list[int], parallel: list[int], max_slices: int | None) -> None:
    k = plan.tokens_per_request
    stop = 0
    for number, piece in enumerate(plan.slices):
        assert piece.request_start == stop < piece.request_stop
        assert (piece.token_start, piece.token_stop) == (piece.request_start * k, piece.request_stop * k)
        assert piece.token_stop - piece.token_start <= piece.padded_tokens
        assert piece.padded_tokens in (parallel if number else main)
        stop = piece.request_stop
    assert stop == plan.num_requests
    assert max_slices is None or len(plan.slices) <= max_slices
    assert plan.padding_rows >= 0
