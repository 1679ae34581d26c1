"""ShortRequestFirst: three lanes; short prompts go ahead of long ones until the longest-waiting long one has aged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from vllm_ascend_split_batch.host_model.admission.queues import FcfsQueue
from vllm_ascend_split_batch.host_model.request import Request, RequestStatus

WARNING_STREAK = 3


@dataclass(frozen=True)
class ShortRequestFirstSettings:
    """`short_request_first_config` of the host.

    Attributes:
        threshold: the longest prompt, in tokens, that counts as short.
        long_max_wait_ms: a long request that has waited this long goes ahead of short ones; 0: never.

    Raises:
        ValueError: a number is negative.
    """

    threshold: int = 256
    long_max_wait_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.threshold < 0 or self.long_max_wait_ms < 0:
            raise ValueError(f"threshold and long_max_wait_ms must not be negative: {self}")


class Lane(Enum):
    """The lanes, in the order in which the queue lists them."""

    IMMEDIATE = "immediate"
    SHORT = "short"
    LONG = "long"


@dataclass
class LaneCounters:
    """What the host counts and logs.

    Attributes:
        prepended, dispatched: requests taken back and popped, by lane.
        promotions: long requests popped because they had aged, while short ones waited.
        streak: of those, in a row.
        warned: the host warned that it degrades towards serving long requests first (it does once).
    """

    prepended: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))
    dispatched: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))
    promotions: int = 0
    streak: int = 0
    warned: bool = False


def is_recovering(request: Request) -> bool:
    """Whether a request ran before, or has keys and values already: it goes ahead of fresh ones."""
    return request.status is RequestStatus.PREEMPTED or request.computed > 0 or request.outputs > 0


class ShortRequestFirstQueue:
    """The waiting queue of the policy. Times are seconds of the caller's clock.

    A request's lane is fixed when it enters. What `peek` showed stays the choice until it is popped, its lane's head
    changes, or any request enters or leaves; so ageing between the two calls does not change it.
    """

    def __init__(self, settings: ShortRequestFirstSettings) -> None:
        self.settings = settings
        self.counters = LaneCounters()
        self._lanes = {lane: FcfsQueue() for lane in Lane}
        self._lane_of: dict[Request, Lane] = {}
        self._waiting_since: dict[Request, float] = {}  # long requests alone
        self._pinned: tuple[Lane, Request] | None = None

    def lane_for(self, request: Request) -> Lane:
        """The lane that the request would enter now."""
        if is_recovering(request):
            return Lane.IMMEDIATE
        return Lane.SHORT if request.prompt_tokens <= self.settings.threshold else Lane.LONG

    def lane_lengths(self) -> dict[Lane, int]:
        """How many requests wait in each lane."""
        return {lane: len(queue) for lane, queue in self._lanes.items()}

    def add(self, request: Request, now: float) -> None:
        lane = self._enter(request, now)
        self._lanes[lane].add(request)

    def prepend(self, request: Request, now: float) -> None:
        """Take a request back: to the front of its lane, not of the queue.

        A long request waits anew from here on: popping it forgot since when it waited.
        """
        lane = self._enter(request, now)
        self._lanes[lane].prepend(request)
        self.counters.prepended[lane] += 1

    def prepend_all(self, requests: Iterable[Request], now: float) -> None:
        """Take several back, one by one: the last one ends up in front."""
        self._pinned = None
        for request in list(requests):
            self.prepend(request, now)

    def peek(self, now: float) -> Request:
        lane = self._choice(now)
        if lane is None:
            raise IndexError("peek from an empty queue")
        request = self._lanes[lane].peek()
        self._pinned = (lane, request)
        return request

    def pop(self, now: float) -> Request:
        lane = self._choice(now)
        if lane is None:
            raise IndexError("pop from an empty queue")
        request = self._lanes[lane].pop()
        self._pinned = None
        del self._lane_of[request]
        since = self._waiting_since.pop(request, None)
        self._count_dispatch(lane, since, now)
        return request

    def remove_one(self, request: Request) -> None:
        """Drop one request. ValueError where it is not here."""
        self._pinned = None
        if request not in self._lane_of:
            raise ValueError(f"{request.request_id} does not wait here")
        self.remove((request,))

    def remove(self, requests: Iterable[Request]) -> None:
        self._pinned = None
        found = [request for request in requests if request in self._lane_of]
        for lane, queue in self._lanes.items():
            queue.remove(request for request in found if self._lane_of[request] is lane)
        for request in found:
            self._lane_of.pop(request, None)
            self._waiting_since.pop(request, None)
        if found:
            self._end_streak_without_shorts()

    def __bool__(self) -> bool:
        return bool(self._lane_of)

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, request: object) -> bool:
        return request in self._lane_of

    def __iter__(self) -> Iterator[Request]:
        for queue in self._lanes.values():
            yield from queue

    def _enter(self, request: Request, now: float) -> Lane:
        self._pinned = None
        lane = self.lane_for(request)
        self._lane_of[request] = lane
        if lane is Lane.LONG:
            self._waiting_since.setdefault(request, now)
        return lane

    def _choice(self, now: float) -> Lane | None:
        if self._pinned is not None:
            lane, request = self._pinned
            if self._lanes[lane] and self._lanes[lane].peek() is request:
                return lane
            self._pinned = None
        if self._lanes[Lane.IMMEDIATE]:
            return Lane.IMMEDIATE
        short, long = self._lanes[Lane.SHORT], self._lanes[Lane.LONG]
        # Only the head ages: one that waited longer behind it does not count.
        if short and long and self._has_aged(self._waiting_since.get(long.peek()), now):
            return Lane.LONG
        if short:
            return Lane.SHORT
        return Lane.LONG if long else None

    def _has_aged(self, since: float | None, now: float) -> bool:
        limit = self.settings.long_max_wait_ms
        return limit > 0 and since is not None and (now - since) * 1000.0 >= limit

    def _count_dispatch(self, lane: Lane, since: float | None, now: float) -> None:
        counters, shorts_wait = self.counters, bool(self._lanes[Lane.SHORT])
        counters.dispatched[lane] += 1
        if lane is Lane.LONG and shorts_wait and self._has_aged(since, now):
            counters.promotions += 1
            counters.streak += 1
            counters.warned |= counters.streak >= WARNING_STREAK
        elif lane is Lane.SHORT:
            counters.streak = 0
        self._end_streak_without_shorts()

    def _end_streak_without_shorts(self) -> None:
        if not self._lanes[Lane.SHORT]:
            self.counters.streak = 0
