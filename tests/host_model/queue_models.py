"""The model's queues, as `run_queue` drives them."""

from __future__ import annotations

from typing import Any

from tests.host_model.queue_cases import DrivenQueue, QueueCase, QueueRequest
from vllm_ascend_split_batch.host_model.admission import (
    BatchJobAwareQueue,
    BatchJobSettings,
    JobPredictor,
    Request,
    RequestStatus,
    RunningReserve,
    ShortRequestFirstQueue,
    ShortRequestFirstSettings,
    TooManyJobs,
)
from vllm_ascend_split_batch.host_model.admission.running import RunningRequests


def request_of(described: QueueRequest) -> Request:
    request = Request(described.request_id, described.prompt_tokens, 9)
    if described.kind == "preempted":
        request.status = RequestStatus.PREEMPTED
    elif described.kind == "computed":
        request.computed = 4
    elif described.kind == "started":
        request.outputs = 1
    return request


class ModelQueue(DrivenQueue):
    """The model's names for what both policies' queues do."""

    def __init__(self, case: QueueCase) -> None:
        self.requests = [request_of(described) for described in case.requests]
        self.now = 100.0

    @property
    def too_many_jobs(self) -> type[Exception]:
        return TooManyJobs  # looked up at each call: a mutant of its module brings its own

    def do_add(self, number: int) -> None:
        self.queue.add(self.requests[number], self.now)

    def do_prepend(self, number: int) -> None:
        self.queue.prepend(self.requests[number], self.now)

    def do_peek(self) -> Request:
        return self.queue.peek(self.now)

    def do_pop(self) -> Request:
        return self.queue.pop(self.now)

    def do_remove(self, number: int) -> None:
        self.queue.remove((self.requests[number],))

    def do_remove_all(self, numbers: list[int]) -> None:
        self.queue.remove([self.requests[number] for number in numbers])

    def do_prepend_all(self, numbers: list[int]) -> None:
        for number in numbers:
            self.queue.prepend(self.requests[number], self.now)


class ShortFirstModel(ModelQueue):
    def __init__(self, case: QueueCase) -> None:
        super().__init__(case)
        self.queue = ShortRequestFirstQueue(ShortRequestFirstSettings(**case.settings))

    def do_wait(self, milliseconds: float) -> None:
        self.now += milliseconds / 1000

    def do_remove(self, number: int) -> None:
        self.queue.remove_one(self.requests[number])

    def do_prepend_all(self, numbers: list[int]) -> None:
        self.queue.prepend_all([self.requests[number] for number in numbers], self.now)

    def state(self) -> Any:
        counters = self.queue.counters
        return [
            [request.request_id for request in self.queue],
            bool(self.queue),
            len(self.queue),
            list(self.queue.lane_lengths().values()),
            [[counters.prepended[lane], counters.dispatched[lane]] for lane in counters.prepended],
            counters.promotions,
            counters.streak,
            counters.warned,
        ]


class BatchJobsModel(ModelQueue):
    def __init__(self, case: QueueCase) -> None:
        super().__init__(case)
        settings = BatchJobSettings(**case.settings)
        self.free = 100
        self.running = RunningRequests(case.more["block_size"])
        self.predictor = JobPredictor(settings)
        self.reserve = RunningReserve(settings, running=self.running, **case.more)
        self.queue = BatchJobAwareQueue(settings, self.predictor, lambda: self.reserve.budget_tokens(self.free))

    def do_free(self, blocks: int) -> None:
        self.free = blocks

    def do_observe(self, job: str, tokens: int) -> None:
        self.predictor.observe(job, tokens)

    def do_run(self, prompt_tokens: int, computed: int) -> None:
        request = Request(f"running {len(self.running)}", prompt_tokens, 9)
        request.computed = computed
        self.running.append(request)

    def do_advance(self, place: int, tokens: int) -> None:
        for request in list(self.running)[place : place + 1]:
            request.computed += tokens

    def do_stop(self, place: int) -> None:
        for request in list(self.running)[place : place + 1]:
            self.running.remove(request)

    def do_step(self) -> int:
        self.reserve.forget()
        return self.reserve.blocks()

    def state(self) -> Any:
        return [
            [request.request_id for request in self.queue],
            bool(self.queue),
            len(self.queue),
            [[job, samples.count, samples.average] for job, samples in self.predictor.jobs.items()],
        ]
