"""Generated operations on waiting queues, and their run on any of them: the host's, or the model's."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

REQUESTS = 16
JOBS = ("", "a", "b", "c", "d")


@dataclass(frozen=True)
class QueueRequest:
    """A request that a queue is asked to hold.

    Attributes:
        kind: "fresh", "preempted", "computed" (it has keys and values) or "started" (it has outputs).
    """

    request_id: str
    prompt_tokens: int
    kind: str = "fresh"


@dataclass(frozen=True)
class QueueCase:
    """Operations on one queue: names with arguments, see `run_queue`.

    Attributes:
        settings: keyword arguments of the policy's settings.
        more: what else the queue's surroundings need.
    """

    settings: dict[str, Any]
    requests: tuple[QueueRequest, ...]
    operations: tuple[tuple[Any, ...], ...]
    more: dict[str, Any]


class DrivenQueue:
    """A queue that `run_queue` drives: the host's or the model's, in a subclass that has a method `do_NAME` for each
    operation and says what the queue looks like.

    Attributes:
        requests: those of the case, by number. queue: what is driven.
    """

    requests: list[Any]
    queue: Any

    @property
    def too_many_jobs(self) -> type[Exception]:
        """What the queue raises where a job is one too many."""
        raise NotImplementedError

    def holds(self, number: int) -> bool:
        """Whether a request is in the queue."""
        return self.requests[number] in list(self.queue)

    def do(self, name: str, *arguments: Any) -> Any:
        """What an operation gives: a request is told by its id, an error as a word."""
        try:
            found = getattr(self, f"do_{name}")(*arguments)
        except IndexError:
            return "none"
        except self.too_many_jobs:
            return "too many jobs"
        except ValueError:
            return "unknown"
        return getattr(found, "request_id", found)

    def state(self) -> Any:
        """The queue's order and its counters."""
        raise NotImplementedError


def run_queue(case: QueueCase, queue: DrivenQueue) -> list[Any]:
    """What each operation gave, and what the queue looks like after it."""
    told = []
    for name, *arguments in case.operations:
        if name in ("add", "prepend") and queue.holds(arguments[0]):
            name = "remove"
        if name == "prepend_all":
            arguments = [[number for number in arguments[0] if not queue.holds(number)]]
        told.append([queue.do(name, *arguments), queue.state()])
    return told


def generate_short_first(seed: int, count: int) -> list[QueueCase]:
    """Operations on ShortRequestFirst's queue."""
    source = random.Random(f"short first {seed}")
    cases = []
    for _ in range(count):
        threshold = source.choice([0, 16, 256])
        kinds = ["fresh"] * 5 + ["preempted", "computed", "started"]
        requests = tuple(
            QueueRequest(
                f"r{number}",
                max(1, threshold + source.choice([-5, 0, 0, 1, 5, 300])),
                source.choice(kinds),
            )
            for number in range(REQUESTS)
        )
        settings = {"threshold": threshold, "long_max_wait_ms": source.choice([0.0, 15.625, 15.625, 62.5])}
        cases.append(QueueCase(settings, requests, _operations(source, _waiting), {}))
    return cases


def generate_batch_jobs(seed: int, count: int) -> list[QueueCase]:
    """Operations on BatchJobAware's queue, its predictor, and the running requests that it reserves blocks for."""
    source = random.Random(f"batch jobs {seed}")
    cases = []
    for _ in range(count):
        requests, jobs = [], source.sample(JOBS, source.choice([1, 2, 3, 3, 4]))
        for number in range(REQUESTS):
            job = source.choice(jobs)
            name = f"#job_name[{job}]#{number}" if job else str(number)
            requests.append(QueueRequest(name, source.choice([10, 50, 50, 100, source.randint(1, 200)])))
        settings = {
            "max_jobs": source.choice([0, 2, 4, 20, 20]),
            "reserve_margin_blocks": source.choice([0, 2]),
            "reserve_max_blocks": source.choice([1, 8, 40]),
            "low_available_tokens_threshold": source.choice([64, 4096]),
            "short_decode_token_threshold": source.choice([4, 32]),
        }
        more = {
            "block_size": source.choice([4, 16]),
            "max_tokens": source.choice([16, 512]),
            "lookahead_tokens": source.choice([0, 0, 3]),
        }
        cases.append(QueueCase(settings, tuple(requests), _operations(source, _around), more))
    return cases


def _operations(source: random.Random, other: Any) -> tuple[tuple[Any, ...], ...]:
    operations: list[tuple[Any, ...]] = []
    if source.random() < 0.5:
        operations += [("add", number) for number in range(REQUESTS)]
    for _ in range(source.randint(30, 80)):
        number = source.randrange(REQUESTS)
        several = source.sample(range(REQUESTS), source.randint(0, 4))
        operations.append(
            source.choice(
                [
                    ("add", number),
                    ("add", number),
                    ("add", number),
                    ("add", number),
                    ("prepend", number),
                    ("peek",),
                    ("pop",),
                    ("pop",),
                    ("remove", number),
                    ("remove_all", several),
                    ("prepend_all", several),
                    other(source),
                    other(source),
                    other(source),
                ]
            )
        )
    return tuple(operations)


def _waiting(source: random.Random) -> tuple[Any, ...]:
    return ("wait", source.choice([1.0, 7.8125, 15.625, 62.5]))


def _around(source: random.Random) -> tuple[Any, ...]:
    return source.choice(
        [
            ("free", source.choice([0, 2, 5, source.randint(0, 300)])),
            ("observe", source.choice(JOBS) or "__default__", source.choice([0, 4, 10, 32, 33, 1000])),
            ("run", source.randint(1, 600), source.randint(0, 700)),
            ("advance", source.randint(0, 5), source.randint(1, 40)),
            ("stop", source.randint(0, 5)),
            ("step",),
        ]
    )
