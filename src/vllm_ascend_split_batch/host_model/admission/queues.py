"""The host's own waiting queues: first come first served, and by priority."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from vllm_ascend_split_batch.host_model.request import Request


class WaitingQueue(Protocol):
    """What the scheduler asks of a waiting queue. A queue that holds requests may be false: it offers none now."""

    def add(self, request: Request, now: float) -> None:
        """Take a request that arrives."""

    def prepend(self, request: Request, now: float) -> None:
        """Take a request back that ran or was passed over."""

    def peek(self, now: float) -> Request:
        """The request to admit next. IndexError where there is none."""

    def pop(self, now: float) -> Request:
        """Take the request to admit next out of the queue. IndexError where there is none."""

    def remove(self, requests: Iterable[Request]) -> None:
        """Drop requests; those that are not here are passed over."""

    def __bool__(self) -> bool:
        """Whether `peek` would find a request."""

    def __len__(self) -> int:
        """How many requests wait here."""

    def __iter__(self) -> Iterator[Request]:
        """The requests in the queue's own order."""


class FcfsQueue:
    """First come, first served; a request taken back goes to the front."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add(self, request: Request, now: float = 0.0) -> None:
        self._requests.append(request)

    def prepend(self, request: Request, now: float = 0.0) -> None:
        self._requests.appendleft(request)

    def peek(self, now: float = 0.0) -> Request:
        return self._requests[0]

    def pop(self, now: float = 0.0) -> Request:
        return self._requests.popleft()

    def remove(self, requests: Iterable[Request]) -> None:
        dropped = set(requests)
        if dropped:
            self._requests = deque(request for request in self._requests if request not in dropped)

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityQueue:
    """Smallest (priority, arrival, id) first. A request taken back is ordered as any other."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add(self, request: Request, now: float = 0.0) -> None:
        heapq.heappush(self._heap, request)

    def prepend(self, request: Request, now: float = 0.0) -> None:
        self.add(request)

    def peek(self, now: float = 0.0) -> Request:
        return self._heap[0]

    def pop(self, now: float = 0.0) -> Request:
        return heapq.heappop(self._heap)

    def remove(self, requests: Iterable[Request]) -> None:
        dropped = set(requests)
        if dropped:
            self._heap = [request for request in self._heap if request not in dropped]
            heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._heap))
