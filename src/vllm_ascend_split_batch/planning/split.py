"""Plans of any number of slices for a decode batch, and a table that answers a decode step in one lookup."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from vllm_ascend_split_batch.planning.cost import GraphCost
from vllm_ascend_split_batch.planning.dual_pad import SplitSlice
from vllm_ascend_split_batch.planning.ladder import Ladder
from vllm_ascend_split_batch.planning.optimum import CheapestSizes
from vllm_ascend_split_batch.planning.reasons import Reason


@dataclass(frozen=True)
class SplitPlan:
    """The graphs that a decode batch replays, one per slice.

    Attributes:
        num_requests: requests of the batch; each has `tokens_per_request` tokens.
        tokens_per_request: tokens of one request, 1 without speculative decoding.
        slices: adjoining ranges that cover the batch and cut it between requests, each with its capture size in tokens.
        unsplit_rows: the capture size that the whole batch would be padded to; None where it is above all of them.
        expected_us: time of the plan by the cost it was made for, microseconds.
        unsplit_us: the same for the whole batch in one graph; None where no graph holds it.
    """

    num_requests: int
    tokens_per_request: int
    slices: tuple[SplitSlice, ...]
    unsplit_rows: int | None
    expected_us: float
    unsplit_us: float | None

    @property
    def is_split(self) -> bool:
        """More than one slice. A plan of one slice is what the host does by itself."""
        return len(self.slices) > 1

    @property
    def total_tokens(self) -> int:
        """Tokens of the batch."""
        return self.num_requests * self.tokens_per_request

    @property
    def rows(self) -> int:
        """Rows that the graphs run, padding rows included."""
        return sum(piece.padded_tokens for piece in self.slices)

    @property
    def padding_rows(self) -> int:
        """Rows that carry no token of the batch."""
        return self.rows - self.total_tokens

    @property
    def rows_saved(self) -> int | None:
        """Padding rows fewer than in one graph; None where no graph holds the whole batch."""
        return None if self.unsplit_rows is None else self.unsplit_rows - self.rows


class SplitDecision(NamedTuple):
    """A plan and why it is this one, or None and why there is none (the batch runs without a graph)."""

    plan: SplitPlan | None
    reason: Reason


class SplitTable:
    """Every decision for batches of 0 to `max_requests` requests, made once; `decide` is one lookup.

    Args:
        main_capture_sizes: capture sizes of the first slice, tokens.
        cost: what replays cost; a plan is optimal for it.
        max_requests: largest batch to plan for (the host's `max_num_seqs`).
        tokens_per_request: tokens of each request in a uniform decode step: 1 + speculative tokens.
        parallel_capture_sizes: capture sizes of every further slice. None: the main ones. Empty: no further slice.
        max_slices: most slices of a batch; None for no limit.

    Raises:
        ValueError: a capture size, `max_requests`, `tokens_per_request` or `max_slices` is not positive.
    """

    __slots__ = ("_above", "_decisions", "max_requests")

    def __init__(
        self,
        *,
        main_capture_sizes: Iterable[int],
        cost: GraphCost,
        max_requests: int,
        tokens_per_request: int = 1,
        parallel_capture_sizes: Iterable[int] | None = None,
        max_slices: int | None = None,
    ) -> None:
        planner = _Planner(
            main_capture_sizes, cost, max_requests, tokens_per_request, parallel_capture_sizes, max_slices
        )
        self.max_requests = max_requests
        self._decisions = tuple(planner.decision(requests) for requests in range(max_requests + 1))
        self._above = SplitDecision(None, Reason.BATCH_ABOVE_TABLE)

    def decide(self, num_requests: int) -> SplitDecision:
        """The decision for a batch of `num_requests`: one lookup, nothing is allocated.

        Above `max_requests` the answer is no plan, with `batch_above_table`.
        """
        if num_requests > self.max_requests:
            return self._above
        return self._decisions[num_requests if num_requests > 0 else 0]


def plan_split(
    *,
    num_requests: int,
    main_capture_sizes: Iterable[int],
    cost: GraphCost,
    tokens_per_request: int = 1,
    parallel_capture_sizes: Iterable[int] | None = None,
    max_slices: int | None = None,
) -> SplitDecision:
    """The cheapest plan for one batch; see `SplitTable`, which takes the same arguments, for decisions in every step.

    Returns:
        The plan with `split`, `exact_graph_hit` or `single_graph_cheapest`; or no plan with `no_requests`,
        `no_capture_sizes` (no main capture size holds a request) or `exceeds_max_size` (the allowed slices hold fewer
        requests than the batch has).

    Raises:
        ValueError: a capture size, `tokens_per_request` or `max_slices` is not positive.

    >>> sizes = (1, 2, 4, 8, 16, 32, 64)
    >>> plan, reason = plan_split(num_requests=33, main_capture_sizes=sizes, cost=GraphCost(launch_us=10, row_us=1))
    >>> [piece.padded_tokens for piece in plan.slices], plan.rows_saved, plan.expected_us, str(reason)
    ([32, 1], 31, 53.0, 'split')
    """
    planner = _Planner(
        main_capture_sizes, cost, max(num_requests, 1), tokens_per_request, parallel_capture_sizes, max_slices
    )
    return planner.decision(num_requests)


class _Planner:
    def __init__(
        self,
        main_capture_sizes: Iterable[int],
        cost: GraphCost,
        max_requests: int,
        tokens_per_request: int,
        parallel_capture_sizes: Iterable[int] | None,
        max_slices: int | None,
    ) -> None:
        for name, value in (
            ("max_requests", max_requests),
            ("tokens_per_request", tokens_per_request),
            ("max_slices", max_slices),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._main = Ladder(main_capture_sizes)
        self._cost = cost
        self._k = tokens_per_request
        self._cheapest = CheapestSizes(
            self._main,
            self._main if parallel_capture_sizes is None else Ladder(parallel_capture_sizes),
            cost,
            tokens_per_request=tokens_per_request,
            max_requests=max_requests,
            max_slices=max_slices,
        )

    def decision(self, num_requests: int) -> SplitDecision:
        if num_requests < 1:
            return SplitDecision(None, Reason.NO_REQUESTS)
        if self._main.at_least(self._k) is None:
            return SplitDecision(None, Reason.NO_CAPTURE_SIZES)
        sizes = self._cheapest.sizes(num_requests)
        if sizes is None:
            return SplitDecision(None, Reason.EXCEEDS_MAX_SIZE)
        unsplit = self._main.at_least(num_requests * self._k)
        plan = SplitPlan(
            num_requests=num_requests,
            tokens_per_request=self._k,
            slices=self._cut(num_requests, sizes),
            unsplit_rows=unsplit,
            expected_us=self._cost.time_us(len(sizes), sum(sizes)),
            unsplit_us=None if unsplit is None else self._cost.time_us(1, unsplit),
        )
        if plan.is_split:
            return SplitDecision(plan, Reason.SPLIT)
        return SplitDecision(plan, Reason.SINGLE_GRAPH_CHEAPEST if plan.padding_rows else Reason.EXACT_GRAPH_HIT)

    def _cut(self, num_requests: int, sizes: tuple[int, ...]) -> tuple[SplitSlice, ...]:
        """All slices but the last are full. The last is never empty: a cheapest plan has no slice to spare."""
        slices = []
        start = 0
        for size in sizes:
            stop = min(num_requests, start + size // self._k)
            slices.append(SplitSlice(start, stop, start * self._k, stop * self._k, size))
            start = stop
        return tuple(slices)
