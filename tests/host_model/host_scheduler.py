"""The host's own scheduler classes, on the little configuration that they read; requests, outputs and a connector.

Imported by `host_admission_child.py` on the emulated NPU, never by the tests' own process.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import vllm_ascend.ascend_config as ascend_config
import vllm_ascend.core.recompute_scheduler as recompute_scheduler

# Before the host's other modules: it breaks their import cycle.
import vllm_ascend.ops
import vllm_ascend.patch.platform  # noqa: F401
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request as HostRequest
from vllm.v1.request import RequestStatus as HostStatus

from vllm_ascend_split_batch.host_model.admission import EngineSettings, Policy, Request


def modules_of(*names: str) -> list[ModuleType]:
    """Those of the host's modules that this release has."""
    return [importlib.import_module(name) for name in names if importlib.util.find_spec(name) is not None]


init_none_hash(sha256)
CONFIGURED = [ascend_config, recompute_scheduler, *modules_of("vllm_ascend.patch.platform.patch_balance_schedule")]

STOP, OTHER = 2, 7


class Configuration(SimpleNamespace):
    """A configuration object in which what a release asks for beyond the known is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def vllm_config(settings: EngineSettings, connector: bool) -> Any:
    """What the scheduler's constructor reads of the engine's configuration."""
    concurrent = 2 if settings.asynchronous else 1
    transfer = None
    if connector:
        transfer = Configuration(
            kv_load_failure_policy="recompute",
            is_kv_producer=False,
            is_kv_consumer=settings.recompute or settings.kv_consumer,
            kv_role="kv_consumer" if settings.recompute else "kv_both",
        )
    return Configuration(
        scheduler_config=Configuration(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            long_prefill_token_threshold=settings.long_prefill_token_threshold,
            policy="priority" if settings.policy is Policy.PRIORITY else "fcfs",
            scheduler_reserve_full_isl=settings.reserve_full_prompt,
            enable_chunked_prefill=settings.chunked_prefill,
            watermark=settings.watermark,
            async_scheduling=settings.asynchronous,
        ),
        cache_config=Configuration(
            num_gpu_blocks=settings.num_blocks,
            block_size=settings.block_size,
            enable_prefix_caching=settings.prefix_caching,
        ),
        model_config=Configuration(max_model_len=settings.max_model_len),
        parallel_config=Configuration(
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            data_parallel_size=1,
            data_parallel_index=0,
        ),
        observability_config=Configuration(),
        kv_transfer_config=transfer,
        ec_manager_config=Configuration(get_encoder_cache_manager_obj=lambda: None),
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        max_concurrent_batches=concurrent,
        max_in_flight_tokens=settings.max_num_batched_tokens * concurrent,
        additional_config={},
    )


def scheduler_class(settings: EngineSettings, balanced: bool) -> type:
    """The class that the host would make of these settings."""
    if balanced:
        from vllm_ascend.core import dyntra_lb_scheduler

        return (
            recompute_scheduler.DyntraLBRecomputeScheduler
            if settings.recompute
            else dyntra_lb_scheduler.DyntraLBScheduler
        )
    if settings.recompute:
        name = "AsyncRecomputeScheduler" if settings.asynchronous else "RecomputeScheduler"
        found: type = getattr(recompute_scheduler, name)
        return found
    if settings.policy is Policy.BATCH_JOB_AWARE:
        from vllm_ascend.core import batch_job_aware_scheduler as batch

        return batch.BatchJobAwareAsyncScheduler if settings.asynchronous else batch.BatchJobAwareScheduler
    if settings.asynchronous and settings.policy is Policy.SHORT_REQUEST_FIRST:
        from vllm_ascend.core.short_request_first_scheduler import ShortRequestFirstAsyncScheduler

        return ShortRequestFirstAsyncScheduler
    return AsyncScheduler if settings.asynchronous else scheduler_module.Scheduler


def extension_config(settings: EngineSettings) -> Any:
    """vllm-ascend's own configuration, as its schedulers find it."""
    short, batch = settings.short_request_first, settings.batch_job
    return Configuration(
        scheduler_config=Configuration(
            enable_balance_scheduling=False,
            short_request_first_config=Configuration(
                enabled=settings.policy is Policy.SHORT_REQUEST_FIRST,
                threshold=short.threshold,
                long_max_wait_ms=short.long_max_wait_ms,
            ),
            batch_job_sched_config=Configuration(**vars(batch)),
        ),
        finegrained_tp_config=Configuration(
            oproj_tensor_parallel_size=2 if settings.split_projections else 1, mlp_tensor_parallel_size=1
        ),
    )


@contextmanager
def surroundings(settings: EngineSettings, connector: Any = None) -> Iterator[None]:
    """vllm-ascend's configuration and the engine's connector, where the host looks for them."""
    extension = extension_config(settings)
    wanted = {"get_ascend_config": lambda: extension, "init_ascend_config": lambda _: extension}
    with ExitStack() as stack:
        for module in CONFIGURED:
            found = {name: value for name, value in wanted.items() if hasattr(module, name)}
            if found:
                stack.enter_context(mock.patch.multiple(module, **found))
        stack.enter_context(mock.patch.object(KVConnectorFactory, "create_connector", return_value=connector))
        yield


def make_scheduler(settings: EngineSettings, connector: Any = None, *, balanced: bool = False) -> Any:
    """A scheduler of the host, to be used within its `surroundings`."""
    spec = {"block_size": settings.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**spec))]
    return scheduler_class(settings, balanced)(
        vllm_config=vllm_config(settings, connector is not None),
        kv_cache_config=KVCacheConfig(num_blocks=settings.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=Configuration(
            should_advance=lambda *_, **__: False, accept_tokens=lambda *_, **__: True
        ),
        block_size=settings.block_size,
        mm_registry=Configuration(supports_multimodal_inputs=lambda _: False),
    )


def make_request(request: Request, number: int, block_size: int) -> HostRequest:
    """The host's request of the same lengths; its prompt shares no token with another one's."""
    prompt = [1_000_000 * (number + 1) + position for position in range(request.prompt_tokens)]
    most = request.max_tokens if request.max_tokens is not None else 1_000_000
    arguments: dict[str, Any] = {
        "request_id": request.request_id,
        "prompt_token_ids": prompt,
        "sampling_params": SamplingParams(max_tokens=most, ignore_eos=True, stop_token_ids=[STOP]),
        "pooling_params": None,
        "arrival_time": request.arrival,
        "priority": request.priority,
        "block_hasher": get_request_block_hasher(block_size, sha256),
    }
    known = inspect.signature(HostRequest.__init__).parameters
    host = HostRequest(**{name: value for name, value in arguments.items() if name in known})
    host.status = HostStatus[request.status.name]
    return host


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):
    """A connector whose answers are a script's.

    Args:
        matched: (request id, local tokens) -> (tokens or None, asynchronous).
        offload: (request id, computed tokens) -> saved; None: without the hook.
    """

    def __init__(
        self, matched: Callable[[str, int], tuple[int | None, bool]], offload: Callable[[str, int], bool] | None
    ) -> None:
        self.matched = matched
        self.started: list[str] = []  # loads that began since this was emptied
        self._asynchronous = False
        self._kv_transfer_config = Configuration(is_kv_producer=False)
        if offload is not None:
            self.update_state_before_preempt = lambda request, _, computed: offload(request.request_id, computed)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tokens, self._asynchronous = self.matched(request.request_id, num_computed_tokens)
        return tokens, self._asynchronous

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens and self._asynchronous:
            self.started.append(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return None

    def request_finished(self, *_: Any) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(self, *_: Any) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, *_: Any, **__: Any) -> None: ...

    def wait_for_layer_load(self, *_: Any) -> None: ...

    def save_kv_layer(self, *_: Any, **__: Any) -> None: ...

    def wait_for_save(self) -> None: ...


class Outputs:
    """What a model runner would return: every request's last token is a stop token, all others are not."""

    def __init__(self, output_tokens: dict[str, int]) -> None:
        self._output_tokens = output_tokens
        self._sampled: dict[str, int] = {}

    def of(self, scheduler: Any, scheduled: Any) -> dict[str, list[int]]:
        """The tokens that a step samples; to be asked right after it was scheduled."""
        tokens: dict[str, list[int]] = {}
        for request_id in scheduled.num_scheduled_tokens:
            request = scheduler.requests[request_id]
            known = request.num_tokens + request.num_output_placeholders
            in_flight = 1 if isinstance(scheduler, AsyncScheduler) and not request.is_prefill_chunk else 0
            if request.num_computed_tokens < known - in_flight:
                tokens[request_id] = []
                continue
            count = self._sampled[request_id] = self._sampled.get(request_id, 0) + 1
            tokens[request_id] = [STOP if count == self._output_tokens[request_id] else OTHER]
        return tokens


def runner_output(tokens: dict[str, list[int]], received: set[str] | None, invalid: set[int]) -> ModelRunnerOutput:
    """A model runner's output, with the connector's report if there is any."""
    report = None
    if received or invalid:
        report = KVConnectorOutput(finished_recving=received or None, invalid_block_ids=invalid)
    return ModelRunnerOutput(
        req_ids=list(tokens),
        req_id_to_index={request_id: index for index, request_id in enumerate(tokens)},
        sampled_token_ids=[list(sampled) for sampled in tokens.values()],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=report,
    )
