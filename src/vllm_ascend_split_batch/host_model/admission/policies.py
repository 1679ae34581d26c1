"""The waiting queues of each policy, and what a policy learns from the scheduler."""

from __future__ import annotations

from vllm_ascend_split_batch.host_model.admission.batch_job_aware import BatchJobAwareQueue
from vllm_ascend_split_batch.host_model.admission.block_reserve import RunningReserve
from vllm_ascend_split_batch.host_model.admission.job_predictor import JobPredictor
from vllm_ascend_split_batch.host_model.admission.kv_blocks import KvBlocks
from vllm_ascend_split_batch.host_model.admission.queues import FcfsQueue, PriorityQueue, WaitingQueue
from vllm_ascend_split_batch.host_model.admission.running import RunningRequests
from vllm_ascend_split_batch.host_model.admission.settings import EngineSettings, Policy
from vllm_ascend_split_batch.host_model.admission.short_request_first import ShortRequestFirstQueue
from vllm_ascend_split_batch.host_model.request import Request


class Waiting:
    """A policy's queues.

    Attributes:
        waiting: the policy's own queue, of requests that arrived or lost their place.
        skipped: requests that were passed over for another reason than blocks or places.
    """

    def __init__(self, waiting: WaitingQueue, skipped: WaitingQueue) -> None:
        self.waiting = waiting
        self.skipped = skipped

    def step_begins(self) -> None:
        """A step is about to be scheduled."""

    def stopped(self, request: Request) -> None:
        """A request stopped by itself."""


class BatchJobs(Waiting):
    """BatchJobAware learns from requests that stop, and counts blocks anew at each step."""

    def __init__(self, settings: EngineSettings, running: RunningRequests, blocks: KvBlocks) -> None:
        self.predictor = JobPredictor(settings.batch_job)
        self.reserve = RunningReserve(
            settings.batch_job,
            block_size=settings.block_size,
            max_tokens=settings.max_num_batched_tokens,
            lookahead_tokens=0,
            running=running,
        )
        queue = BatchJobAwareQueue(settings.batch_job, self.predictor, lambda: self.reserve.budget_tokens(blocks.free))
        super().__init__(queue, FcfsQueue())

    def step_begins(self) -> None:
        self.reserve.forget()

    def stopped(self, request: Request) -> None:
        self.predictor.observe(request.job, request.outputs)


def waiting_queues(settings: EngineSettings, running: RunningRequests, blocks: KvBlocks) -> Waiting:
    """The queues of the engine's policy."""
    if settings.policy is Policy.PRIORITY:
        return Waiting(PriorityQueue(), PriorityQueue())
    if settings.policy is Policy.SHORT_REQUEST_FIRST:
        return Waiting(ShortRequestFirstQueue(settings.short_request_first), FcfsQueue())
    if settings.policy is Policy.BATCH_JOB_AWARE:
        return BatchJobs(settings, running, blocks)
    return Waiting(FcfsQueue(), FcfsQueue())
