"""BatchJobAware: requests grouped by job, jobs ordered by predicted decode length, admitted within a block budget."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from vllm_ascend_split_batch.host_model.admission.job_predictor import BatchJobSettings, JobPredictor, TooManyJobs
from vllm_ascend_split_batch.host_model.request import Request

COLD_START_ADDITIONS = 3


class PromptLengths:
    """The waiting requests of one job, by prompt length; first come, first served within a length."""

    def __init__(self) -> None:
        self._by_length: dict[int, deque[Request]] = {}  # in the order in which lengths came up
        self._lengths: list[int] = []  # ascending
        self._count = 0

    def add(self, request: Request) -> None:
        """Take a request."""
        length = request.prompt_tokens
        if length not in self._by_length:
            self._by_length[length] = deque()
            insort(self._lengths, length)
        self._by_length[length].append(request)
        self._count += 1

    def remove(self, request: Request) -> bool:
        """Drop a request; whether it was here."""
        length = request.prompt_tokens
        queue = self._by_length.get(length)
        if queue is None or request not in queue:
            return False
        queue.remove(request)
        self._count -= 1
        if not queue:
            del self._by_length[length]
            self._lengths.remove(length)
        return True

    def best_fit(self, budget_tokens: int) -> Request:
        """A request of the longest prompt within the budget; where none is, of the shortest prompt above it."""
        position = bisect_right(self._lengths, budget_tokens)
        return self._by_length[self._lengths[max(position - 1, 0)]][0]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        for queue in self._by_length.values():
            yield from queue


class BatchJobAwareQueue:
    """The waiting queue of the policy. It offers a request only while the block budget is above zero.

    Args:
        settings: of the policy.
        predictor: of decode lengths.
        budget_tokens: tokens for which blocks are free beyond the reserve; see `RunningReserve`.
    """

    def __init__(self, settings: BatchJobSettings, predictor: JobPredictor, budget_tokens: Callable[[], int]) -> None:
        self._settings = settings
        self._predictor = predictor
        self._budget_tokens = budget_tokens
        self._jobs: dict[str, PromptLengths] = {}
        self._cold: dict[str, set[Request]] = {}  # in the order in which jobs last became cold
        self._additions: dict[str, int] = {}
        self._count = 0
        self._peeked: Request | None = None

    def add(self, request: Request, now: float = 0.0) -> None:
        """Take a request. The first three of a job since none of it waited are cold-start requests.

        Raises:
            TooManyJobs: a new job beyond `max_jobs` (0: no limit).
        """
        job = request.job
        if job not in self._jobs:
            if self._settings.max_jobs and len(self._jobs) >= self._settings.max_jobs:
                raise TooManyJobs(f"more than {self._settings.max_jobs} jobs wait; {job!r} is one too many")
            self._jobs[job] = PromptLengths()
        self._jobs[job].add(request)
        self._count += 1
        self._additions[job] = self._additions.get(job, 0) + 1
        if self._additions[job] <= COLD_START_ADDITIONS:
            self._cold.setdefault(job, set()).add(request)

    def prepend(self, request: Request, now: float = 0.0) -> None:
        """As `add`: a request taken back goes to the end and counts as an addition."""
        self.add(request)

    def peek(self, now: float = 0.0) -> Request:
        """The request to admit next: what an earlier peek found, until it is popped, even if it was removed since."""
        if self._peeked is None:
            self._peeked = self._find()
        if self._peeked is None:
            raise IndexError("no request can be admitted")
        return self._peeked

    def pop(self, now: float = 0.0) -> Request:
        request = self._peeked if self._peeked is not None else self._find()
        if request is None:
            raise IndexError("no request can be admitted")
        self.remove((request,))
        self._peeked = None
        return request

    def remove(self, requests: Iterable[Request]) -> None:
        for request in requests:
            job = request.job
            waiting = self._jobs.get(job)
            if waiting is None or not waiting.remove(request):
                continue
            self._count -= 1
            if job in self._cold:
                self._cold[job].discard(request)
                if not self._cold[job]:
                    del self._cold[job]
            if not len(waiting):
                del self._jobs[job]
                del self._additions[job]

    def __bool__(self) -> bool:
        return self._find() is not None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        for waiting in self._jobs.values():
            yield from waiting

    def _find(self) -> Request | None:
        budget = self._budget_tokens()
        if budget == 0:
            return None
        # However small the budget is.
        for job, cold in self._cold.items():
            for request in self._jobs.get(job, ()):
                if request in cold:
                    return request
        for job in self._order(budget):
            return self._jobs[job].best_fit(budget)
        return None

    def _order(self, budget: int) -> list[str]:
        """Jobs, best first."""
        long: list[tuple[int, str]] = []
        short: list[tuple[int, str]] = []
        for job in self._jobs:
            tokens = self._predictor.predict(job)
            (long if tokens > self._settings.short_decode_token_threshold else short).append((tokens, job))
        long_first = budget > self._settings.low_available_tokens_threshold
        # With jobs of both kinds the longest decode goes first within each; else the budget decides that too.
        descending = bool(long and short) or long_first
        for jobs in (long, short):
            jobs.sort(key=lambda job: job[0], reverse=descending)
        ordered = long + short if long_first else short + long
        return [job for _, job in ordered]
