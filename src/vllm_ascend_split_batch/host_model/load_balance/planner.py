"""DyntraLB's plan: which requests each rank pauses and admits so that no rank is much heavier than the average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_ROUNDS = 1000
STEP_OVERHEAD = 20000.0
STEP_PER_BLOCK = 19.2


@dataclass(frozen=True)
class RankRequests:
    """Blocks of a rank's requests, in the order of its scheduler.

    Attributes:
        running: of the running ones.
        waiting: of those that could be admitted.
    """

    running: tuple[int, ...]
    waiting: tuple[int, ...] = ()


@dataclass
class RankPlan:
    """What one rank does in its next step. Requests are named by their blocks alone.

    Attributes:
        out: running requests to pause.
        into: waiting requests to admit.
        freeze: admit nobody.
    """

    out: list[int] = field(default_factory=list)
    into: list[int] = field(default_factory=list)
    freeze: bool = False


@dataclass(eq=False)
class _Item:
    blocks: int
    added: bool = False  # admitted by this plan


class _Rank:
    def __init__(self, requests: RankRequests) -> None:
        self.running = [_Item(blocks) for blocks in requests.running]
        self.waiting = [_Item(blocks) for blocks in requests.waiting]
        self.blocks = sum(requests.running)
        self.plan = RankPlan()

    def admit(self, item: _Item) -> None:
        self.plan.into.append(item.blocks)
        self.blocks += item.blocks
        self.waiting.remove(item)
        self.running.append(item)

    def pause(self, item: _Item) -> None:
        self.plan.out.append(item.blocks)
        self.blocks -= item.blocks
        self.running.remove(item)
        self.waiting.append(item)

    def fill(self, places: int) -> None:
        while len(self.running) < places and self.waiting:
            self.waiting[0].added = True
            self.admit(self.waiting[0])

    def swap(self, out: _Item, into: _Item) -> None:
        self.pause(out)
        self.waiting.remove(out)
        self.admit(into)
        self.waiting.append(out)


def exchanged(ranks: Sequence[RankRequests], max_num_seqs: int) -> list[RankRequests]:
    """What each rank tells the others: its first requests alone, running ones first, twice its places at most."""
    slots = 2 * max_num_seqs
    return [RankRequests(rank.running[:slots], rank.waiting[: max(slots - len(rank.running), 0)]) for rank in ranks]


def plan(ranks: Sequence[RankRequests], *, max_num_seqs: int | None, bubble_threshold: float) -> list[RankPlan]:
    """The plan of each rank.

    Free places are filled from the heads of the waiting requests. Then, as long as the heaviest rank is above the
    average by the threshold: the lightest rank swaps a running request for a heavier waiting one, the heaviest for a
    lighter one, each where it brings the rank closest to the average that results; where neither can, the heaviest rank
    pauses the request that raises the estimated throughput most, if any does. Requests of equal blocks that would leave
    and enter a rank cancel out.

    Args:
        ranks: what each rank holds.
        max_num_seqs: places of a rank; None: nothing is filled.
        bubble_threshold: see `BalanceSettings`.
    """
    loads = [_Rank(requests) for requests in ranks]
    if max_num_seqs is not None:
        for rank in loads:
            rank.fill(max_num_seqs)
    # Sorted again and again: ranks of equal load keep the order of the round before.
    order = list(loads)
    for _ in range(MOST_ROUNDS):
        order.sort(key=lambda rank: rank.blocks, reverse=True)
        if _bubble(order, bubble_threshold) < bubble_threshold:
            break
        swapped = _swap(order, order[-1], heavier=True)
        if swapped:
            if _bubble(order, bubble_threshold) < bubble_threshold:
                break
            order.sort(key=lambda rank: rank.blocks, reverse=True)
        swapped |= _swap(order, order[0], heavier=False)
        changed = swapped or _pause_for_throughput(order)
        if not changed:
            break
    for rank in loads:
        _cancel(rank.plan)
    return [rank.plan for rank in loads]


def _bubble(ranks: Sequence[_Rank], threshold: float) -> float:
    most = max(rank.blocks for rank in ranks)
    above = most - sum(rank.blocks for rank in ranks) / len(ranks)
    if threshold >= 1:
        return above
    return above / most if most else 0.0


def _swap(ranks: Sequence[_Rank], rank: _Rank, *, heavier: bool) -> bool:
    """Swap the pair that brings a rank closest to the average; among equals, one that pauses who was just admitted."""
    average = sum(each.blocks for each in ranks) / len(ranks)
    best: tuple[_Item, _Item] | None = None
    distance, added = abs(rank.blocks - average), False
    for out in rank.running:
        for into in rank.waiting:
            change = into.blocks - out.blocks
            if change <= 0 if heavier else change >= 0:
                continue
            after = abs(rank.blocks + change - (average + change / len(ranks)))
            if after < distance or (after == distance and out.added and not added):
                distance, best, added = after, (out, into), out.added
    if best is None:
        return False
    rank.swap(*best)
    return True


def _pause_for_throughput(ranks: Sequence[_Rank]) -> bool:
    """Pause a request of the heaviest rank where fewer requests in a shorter step mean more requests in a time."""
    requests = sum(len(rank.running) for rank in ranks)
    if requests <= 1:
        return False
    heaviest, next_blocks = ranks[0], max((rank.blocks for rank in ranks[1:]), default=0)
    best: _Item | None = None
    throughput, added = requests / (STEP_OVERHEAD + STEP_PER_BLOCK * heaviest.blocks), False
    for item in heaviest.running:
        blocks = max(heaviest.blocks - item.blocks, next_blocks)
        after = (requests - 1) / (STEP_OVERHEAD + STEP_PER_BLOCK * blocks)
        if after > throughput or (after == throughput and item.added and not added):
            throughput, best, added = after, item, item.added
    if best is None:
        return False
    heaviest.pause(best)
    return True


def _cancel(rank: RankPlan) -> None:
    """Drop pairs of equal blocks, then freeze the rank if nobody enters."""
    kept = []
    for blocks in rank.into:
        if blocks in rank.out:
            rank.out.remove(blocks)
        else:
            kept.append(blocks)
    rank.into = kept
    rank.freeze = not kept
