"""Who runs when: the host's waiting queues, its scheduler's frame, and an engine to drive step by step.

Every rule is the observable behaviour of the host's own classes, per release, and is held equal to them by tests that
run both in lockstep. Where the host behaves oddly the model does too.
"""

from vllm_ascend_split_batch.host_model.admission.batch_job_aware import BatchJobAwareQueue
from vllm_ascend_split_batch.host_model.admission.block_reserve import RunningReserve
from vllm_ascend_split_batch.host_model.admission.engine import Engine
from vllm_ascend_split_batch.host_model.admission.job_predictor import BatchJobSettings, JobPredictor, TooManyJobs
from vllm_ascend_split_batch.host_model.admission.queues import FcfsQueue, PriorityQueue, WaitingQueue
from vllm_ascend_split_batch.host_model.admission.releases import AdmissionRules, admission_rules
from vllm_ascend_split_batch.host_model.admission.settings import EngineSettings, Policy
from vllm_ascend_split_batch.host_model.admission.short_request_first import (
    Lane,
    ShortRequestFirstQueue,
    ShortRequestFirstSettings,
)
from vllm_ascend_split_batch.host_model.admission.step_result import StepResult
from vllm_ascend_split_batch.host_model.padding.releases import HostRelease
from vllm_ascend_split_batch.host_model.request import Request, RequestStatus

__all__ = [
    "AdmissionRules",
    "BatchJobAwareQueue",
    "BatchJobSettings",
    "Engine",
    "EngineSettings",
    "FcfsQueue",
    "HostRelease",
    "JobPredictor",
    "Lane",
    "Policy",
    "PriorityQueue",
    "Request",
    "RequestStatus",
    "RunningReserve",
    "ShortRequestFirstQueue",
    "ShortRequestFirstSettings",
    "StepResult",
    "TooManyJobs",
    "WaitingQueue",
    "admission_rules",
]
