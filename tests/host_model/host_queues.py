"""The host's queues, as `run_queue` drives them. Imported on the emulated NPU alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import RequestStatus
from vllm_ascend.core import batch_job_aware_scheduler as batch
from vllm_ascend.core import short_request_first_scheduler as short

from tests.host_model.queue_cases import DrivenQueue, QueueCase, QueueRequest

CLOCK = SimpleNamespace(now=0.0)


def request_of(described: QueueRequest) -> Any:
    kind = described.kind
    return HostRequest(
        request_id=described.request_id,
        num_prompt_tokens=described.prompt_tokens,
        status=RequestStatus.PREEMPTED if kind == "preempted" else RequestStatus.WAITING,
        num_computed_tokens=4 if kind == "computed" else 0,
        num_output_tokens=1 if kind == "started" else 0,
    )


class HostRequest(SimpleNamespace):
    """The attributes of a request that queues read."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class HostQueue(DrivenQueue):
    """The host's names for what both policies' queues do."""

    def __init__(self, case: QueueCase) -> None:
        self.requests = [request_of(described) for described in case.requests]

    @property
    def too_many_jobs(self) -> type[Exception]:
        return RuntimeError

    def do_add(self, number: int) -> None:
        self.queue.add_request(self.requests[number])

    def do_prepend(self, number: int) -> None:
        self.queue.prepend_request(self.requests[number])

    def do_peek(self) -> Any:
        return self.queue.peek_request()

    def do_pop(self) -> Any:
        return self.queue.pop_request()

    def do_remove(self, number: int) -> None:
        self.queue.remove_request(self.requests[number])

    def do_remove_all(self, numbers: list[int]) -> None:
        self.queue.remove_requests([self.requests[number] for number in numbers])

    def do_prepend_all(self, numbers: list[int]) -> None:
        self.queue.prepend_requests([self.requests[number] for number in numbers])


class ShortFirstHost(HostQueue):
    def __init__(self, case: QueueCase) -> None:
        super().__init__(case)
        CLOCK.now = 100.0
        clock = SimpleNamespace(monotonic=lambda: CLOCK.now)
        mock.patch.object(short, "time", clock).start()
        self.warned = False
        mock.patch.object(short, "logger", mock.Mock(warning_once=self._warn)).start()
        self.queue = short.ShortRequestFirstRequestQueue(
            policy=SchedulingPolicy.FCFS, immediate_predicate=short.is_recovery_request, **case.settings
        )

    def _warn(self, *_: Any) -> None:
        self.warned = True

    def do_wait(self, milliseconds: float) -> None:
        CLOCK.now += milliseconds / 1000

    def state(self) -> Any:
        queue, lanes = self.queue, ("immediate", "short", "long")
        return [
            [request.request_id for request in queue],
            bool(queue),
            len(queue),
            [queue.num_immediate_requests, queue.num_short_requests, queue.num_long_requests],
            [[queue._prepend_counters[lane], queue._dispatch_counters[lane]] for lane in lanes],
            queue._aged_long_promotions,
            queue._consecutive_aged_long_promotions,
            self.warned,
        ]


class BatchJobsHost(HostQueue):
    def __init__(self, case: QueueCase) -> None:
        super().__init__(case)
        config, more = SimpleNamespace(**case.settings), case.more
        self.free = 100
        pool = SimpleNamespace(get_num_free_blocks=lambda: self.free)
        self.scheduler = SimpleNamespace(
            running=[],
            block_size=more["block_size"],
            max_num_scheduled_tokens=more["max_tokens"],
            num_lookahead_tokens=more["lookahead_tokens"],
            kv_cache_manager=SimpleNamespace(block_pool=pool),
        )
        self.estimator = batch.JobDecodeEstimator(config)
        self.reserver = batch.RunningBlockReserver(self.scheduler, config)
        self.queue = batch.BatchJobAwareRequestQueue(
            self.scheduler, self.estimator, self.reserver, batch.JobNameParser(), config
        )

    def do_free(self, blocks: int) -> None:
        self.free = blocks

    def do_observe(self, job: str, tokens: int) -> None:
        self.estimator.observe(job, tokens)

    def do_run(self, prompt_tokens: int, computed: int) -> None:
        self.scheduler.running.append(SimpleNamespace(num_prompt_tokens=prompt_tokens, num_computed_tokens=computed))

    def do_advance(self, place: int, tokens: int) -> None:
        for request in self.scheduler.running[place : place + 1]:
            request.num_computed_tokens += tokens

    def do_stop(self, place: int) -> None:
        del self.scheduler.running[place : place + 1]

    def do_step(self) -> int:
        self.reserver.invalidate_cache()
        return self.reserver.predict()

    def state(self) -> Any:
        return [
            [request.request_id for request in self.queue],
            bool(self.queue),
            len(self.queue),
            [[job, stat.sample_count, stat.ewma_average] for job, stat in self.estimator._job_stats.items()],
        ]
