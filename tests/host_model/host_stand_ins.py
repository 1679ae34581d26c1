"""Stand-ins for the host's objects: the host's own functions, on the little configuration that they read.

Imported by `host_padding_child.py` on the emulated NPU, never by the tests' own process.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

# The first import of the host's runner meets an import cycle unless its operators were imported before.
import vllm_ascend.ops  # isort: skip
import vllm_ascend.patch.worker.patch_cudagraph  # noqa: F401
from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.utils import CpuGpuBuffer
from vllm_ascend.worker import model_runner_v1
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from vllm_ascend_split_batch.host_model.padding import HostSettings


def borrowed(owner: type, *names: str) -> dict[str, Any]:
    """Functions of a host class, for a stand-in class of the same role."""
    return {name: inspect.getattr_static(owner, name) for name in names if hasattr(owner, name)}


Compilation = type(
    "Compilation",
    (SimpleNamespace,),
    borrowed(
        CompilationConfig,
        "post_init_cudagraph_sizes",
        "resolve_cudagraph_mode_and_sizes",
        "adjust_cudagraph_sizes_for_spec_decode",
    )
    | {
        "is_attention_compiled_piecewise": lambda self: True,
        "set_splitting_ops_for_v1": lambda self, **_: setattr(self, "splitting_ops", []),
    },
)
Config = type(
    "Config", (SimpleNamespace,), borrowed(VllmConfig, "_set_cudagraph_sizes", "update_sizes_for_sequence_parallelism")
)
Runner = type(
    "Runner",
    (SimpleNamespace,),
    borrowed(
        NPUModelRunner,
        "_determine_batch_execution_and_padding",
        "_pad_for_sequence_parallelism",
        "_pad_query_start_loc_for_fia",
        "_sync_metadata_across_dp",
        "_check_and_update_cudagraph_mode",
        "_should_align_cudagraph_capture_sizes",
        "use_dcp",
    ),
)


def config(settings: HostSettings, ladder: tuple[int, ...] | None = None) -> Any:
    """The configuration that the host's functions read, of one engine."""
    speculative = None
    if settings.num_speculative_tokens:
        speculative = SimpleNamespace(
            num_speculative_tokens=settings.num_speculative_tokens,
            uses_dynamic_speculative_decoding=lambda: False,
            use_eagle=lambda: False,
            parallel_drafting=False,
            method="ngram",
            uses_extract_hidden_states=lambda: False,
        )
    lora = None
    if settings.max_loras is not None:
        lora = SimpleNamespace(max_loras=settings.max_loras, specialize_active_lora=settings.graphs_per_lora_count)
    compilation = Compilation(
        # vLLM itself resets the mode of an eager engine, before any function called here.
        cudagraph_mode=CUDAGraphMode["NONE" if settings.enforce_eager else settings.graph_mode.name],
        cudagraph_capture_sizes=list(ladder) if ladder is not None else None,
        max_cudagraph_capture_size=ladder[-1] if ladder else None,
        cudagraph_specialize_lora=settings.graphs_without_lora,
        compile_sizes=None,
        splitting_ops=[],
        mode=model_runner_v1.CompilationMode.VLLM_COMPILE,
        pass_config=SimpleNamespace(enable_sp=settings.sequence_parallel_pass),
    )
    if ladder is None:
        compilation.cudagraph_capture_sizes = None if settings.capture_sizes is None else list(settings.capture_sizes)
        compilation.max_cudagraph_capture_size = settings.max_capture_size
    return Config(
        compilation_config=compilation,
        lora_config=lora,
        speculative_config=speculative,
        num_speculative_tokens=settings.num_speculative_tokens,
        uniform_decode_query_len=settings.uniform_query_length,
        kv_transfer_config=None,
        performance_mode="interactivity" if settings.interactivity else "balanced",
        scheduler_config=SimpleNamespace(
            max_num_seqs=settings.max_num_seqs, max_num_batched_tokens=settings.max_num_batched_tokens
        ),
        model_config=SimpleNamespace(
            enforce_eager=settings.enforce_eager,
            use_mla=settings.is_mla,
            is_hybrid=settings.is_hybrid,
            is_encoder_decoder=settings.is_encoder_decoder,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=settings.tensor_parallel_size,
            data_parallel_size=settings.data_parallel_size,
            data_parallel_rank=0,
            use_sequence_parallel_moe=settings.sequence_parallel,
            all2all_backend=None,
        ),
        observability_config=SimpleNamespace(cudagraph_metrics=False),
        additional_config={
            "ascend_compilation_config": {},
            "refresh": True,
            "enable_flashcomm1": settings.sequence_parallel,
        },
    )


@contextmanager
def surroundings(settings: HostSettings) -> Iterator[None]:
    """The facts that the host's functions read from global state instead of their configuration."""
    facts = {
        "enable_dsa_cp": settings.dsa_context_parallel,
        "enable_sp_by_pass": settings.sequence_parallel_pass,
        "oproj_tp_enable": settings.finegrained_tensor_parallel,
        "embedding_tp_enable": False,
        "is_pd_decode_recompute_scheduler_enabled": settings.recompute_decode_instance,
    }
    with mock.patch.multiple(
        model_runner_v1, **{n: (lambda *_, v=v: v) for n, v in facts.items() if hasattr(model_runner_v1, n)}
    ):
        yield


def runner(settings: HostSettings, ladder: tuple[int, ...]) -> Any:
    """A runner with the host's own dispatcher, its graphs' keys in place."""
    vllm_config = config(settings, ladder)
    dispatcher = CudagraphDispatcher(vllm_config)
    dispatcher.initialize_cudagraph_keys(vllm_config.compilation_config.cudagraph_mode, settings.uniform_query_length)
    # One buffer entry more than requests, and one for the dummy request: as the host allocates it.
    query_start_loc = CpuGpuBuffer(
        settings.max_num_seqs + 2, dtype=torch.int32, device=torch.device("cpu"), pin_memory=False
    )
    return Runner(
        vllm_config=vllm_config,
        model_config=vllm_config.model_config,
        parallel_config=vllm_config.parallel_config,
        compilation_config=vllm_config.compilation_config,
        speculative_config=vllm_config.speculative_config,
        cudagraph_dispatcher=dispatcher,
        uniform_decode_query_len=settings.uniform_query_length,
        max_num_reqs=settings.max_num_seqs,
        dcp_size=settings.decode_context_parallel_size,
        pcp_size=1,  # prefill context parallelism, in 0.23 alone
        dp_size=settings.data_parallel_size,
        dp_rank=0,
        query_start_loc=query_start_loc,
        arange_np=np.arange(4096, dtype=np.int64),
        ascend_config=SimpleNamespace(
            dp_allreduce_on_npu=False,
            finegrained_tp_config=SimpleNamespace(
                oproj_tensor_parallel_size=2 if settings.finegrained_tensor_parallel else 1,
                lmhead_tensor_parallel_size=1,
                embedding_tensor_parallel_size=1,
                mlp_tensor_parallel_size=1,
            ),
        ),
    )
