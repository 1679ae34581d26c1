"""The engine settings on which admission depends."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from vllm_ascend_split_batch.host_model.admission.job_predictor import BatchJobSettings
from vllm_ascend_split_batch.host_model.admission.releases import AdmissionRules, admission_rules
from vllm_ascend_split_batch.host_model.admission.short_request_first import ShortRequestFirstSettings
from vllm_ascend_split_batch.host_model.padding.releases import HostRelease


class Policy(str, Enum):
    """Who is admitted next."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    SHORT_REQUEST_FIRST = "short-request-first"
    BATCH_JOB_AWARE = "batch-job-aware"


@dataclass(frozen=True)
class EngineSettings:
    """One engine's settings, as resolved by the host.

    Attributes:
        release: the host.
        policy: "fcfs" and "priority" are vLLM's own; the others are vllm-ascend's, on top of "fcfs".
        max_num_seqs: most running requests.
        max_num_batched_tokens: most tokens of a step.
        max_model_len: most tokens of a request, prompt and output.
        num_blocks: key/value blocks as the host reports them; one is never handed out.
        block_size: tokens of a block.
        asynchronous: a step is scheduled before the outputs of the one before it are known.
        chunked_prefill: prompts may be computed in parts.
        long_prefill_token_threshold: most prompt tokens of a request in a step; 0: no such limit.
        reserve_full_prompt: admit a request only where its whole prompt fits into free blocks
            (`scheduler_reserve_full_isl`).
        watermark: share of all blocks that admission leaves free while others run (from 0.25.1 on).
        prefix_caching: a preempted request finds those of its blocks again that nobody took.
        kv_consumer: the engine takes keys and values from others (`kv_role` "kv_consumer" or "kv_both").
        recompute: the recompute scheduler of a decode instance (`recompute_scheduler_enable` on a KV consumer): what a
            lack of blocks does to the victim is decided by `Connector.offload`.
        split_projections: output projection or MLP have a tensor-parallel size of their own; read by the recompute
            scheduler of 0.30.
        short_request_first: of that policy.
        batch_job: of that policy.

    Raises:
        ValueError: the host refuses these settings at start-up.
    """

    release: HostRelease = HostRelease.V0_27_1
    policy: Policy | str = Policy.FCFS
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 8192
    num_blocks: int = 2048
    block_size: int = 128
    asynchronous: bool = False
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    reserve_full_prompt: bool = True
    watermark: float = 0.0
    prefix_caching: bool = True
    kv_consumer: bool = False
    recompute: bool = False
    split_projections: bool = False
    short_request_first: ShortRequestFirstSettings = field(default_factory=ShortRequestFirstSettings)
    batch_job: BatchJobSettings = field(default_factory=BatchJobSettings)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "policy", Policy(self.policy))
        except ValueError:
            known = ", ".join(policy.value for policy in Policy)
            raise ValueError(f"unknown policy {self.policy!r}; known are {known}") from None
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.long_prefill_token_threshold < 0 or self.watermark < 0:
            raise ValueError("long_prefill_token_threshold and watermark must not be negative")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs})"
            )
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_model_len ({self.max_model_len})"
            )
        if (self.num_blocks - 1) * self.block_size < self.max_model_len:
            raise ValueError(
                f"{self.num_blocks - 1} blocks of {self.block_size} tokens cannot hold one request of max_model_len "
                f"({self.max_model_len}) tokens"
            )
        rules = self.rules
        ascend_policy = self.policy in (Policy.SHORT_REQUEST_FIRST, Policy.BATCH_JOB_AWARE)
        if ascend_policy and not rules.has_policies:
            raise ValueError(f"vllm-ascend {self.release.value} has no policy {Policy(self.policy).value!r}")
        if ascend_policy and self.recompute:
            raise ValueError(f"policy {Policy(self.policy).value!r} excludes the recompute scheduler")
        if self.watermark and not rules.has_watermark:
            raise ValueError(f"vllm-ascend {self.release.value} runs on a vLLM without a watermark")

    @property
    def defers_frees(self) -> bool:
        """Whether blocks become free only when no step under way can write them any more."""
        return self.asynchronous and (self.kv_consumer or self.recompute) and self.rules.defers_frees

    @property
    def rules(self) -> AdmissionRules:
        """What this release does differently from others."""
        return admission_rules(self.release)
