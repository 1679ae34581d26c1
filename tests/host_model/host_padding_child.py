"""Answers generated cases by the host's own functions, on stand-ins for the objects that they read.

    python host_padding_child.py RELEASE SEED STEPS BOUNDARIES RANKS LADDERS SKIPS RESULT.json

Started by `test_padding_host.py` on the emulated NPU. Every decision comes from the host's code; what is replaced is
what surrounds it: configuration objects, the collective between ranks, and the device.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

# Before the host's other modules: it breaks their import cycle.
from tests.host_model.host_stand_ins import Runner, config, runner, surroundings  # isort: skip
import vllm_ascend.ascend_forward_context as forward_context
import vllm_ascend.platform as ascend_platform
import vllm_ascend.utils as ascend_utils
from vllm.config import CUDAGraphMode
from vllm.v1.utils import CpuGpuBuffer
from vllm_ascend.attention import attention_v1
from vllm_ascend.worker import model_runner_v1
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from tests.host_model.padding_cases import BoundaryCase, Cases, LadderCase, RanksCase, SkipCase, StepCase, generate
from vllm_ascend_split_batch.host_model.padding import Batch, HostRelease, HostSettings

FAILURES = (AssertionError, ValueError)
FAILED = "failure"
# Before 0.27 the host cuts its ladder in the middle of a function that needs a whole engine.
LADDER_FUNCTION = getattr(ascend_platform, "_setup_compile_backend", None)


def determine(host: Any, batch: Batch) -> tuple[Any, Any, Any]:
    """The host's decision of one step: mode, descriptor, tokens across ranks."""
    host.input_batch = SimpleNamespace(
        num_computed_tokens_cpu=np.array(batch.computed_tokens, dtype=np.int32),
        num_prompt_tokens=np.array(batch.prompt_tokens, dtype=np.int32),
        lora_id_to_lora_request=dict.fromkeys(range(batch.num_active_loras)),
    )
    scheduled = np.array(batch.scheduled_tokens, dtype=np.int32)
    mode, descriptor, micro_batches, across_ranks, _ = host._determine_batch_execution_and_padding(
        num_tokens=int(scheduled.sum()),
        num_reqs=len(scheduled),
        num_scheduled_tokens_np=scheduled,
        max_num_scheduled_tokens=int(scheduled.max()),
        use_cascade_attn=batch.cascade_attention,
        force_eager=host.model_config.enforce_eager,
        num_encoder_reqs=batch.encoder_requests,
    )
    assert not micro_batches
    return mode, descriptor, across_ranks


def described(mode: Any, descriptor: Any) -> list[Any]:
    return [
        mode.name,
        descriptor.num_tokens,
        descriptor.num_reqs,
        descriptor.uniform,
        descriptor.has_lora,
        descriptor.num_active_loras,
    ]


def boundary_condition() -> Callable[[Any, Any, bool], bool]:
    """The host's own test, in the middle of its step, of whether to pad the query boundary: cut out of its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(NPUModelRunner.execute_model)))
    (test,) = (
        node.test
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and any("_pad_query_start_loc_for_fia" in ast.unparse(statement) for statement in node.body)
        and not any(isinstance(inner, ast.If) for inner in ast.walk(ast.Module(node.body, [])))
    )
    code = compile(ast.Expression(test), "execute_model", "eval")

    def pads(host: Any, mode: Any, sequence_parallel: bool) -> bool:
        names = {
            "self": host,
            "cudagraph_mode": mode,
            "CUDAGraphMode": CUDAGraphMode,
            "enable_sp": lambda *_: sequence_parallel,
        }
        return bool(eval(code, names))

    return pads


PADS_BOUNDARY = boundary_condition()


def attention(host: Any, settings: HostSettings, batch: Batch, mode: Any, descriptor: Any) -> list[Any]:
    """What the host calls attention with: its query boundary, then its metadata builder."""
    requests, most = batch.num_requests, settings.max_num_seqs
    buffer = host.query_start_loc
    buffer.np[:] = 0
    buffer.np[1 : requests + 1] = np.cumsum(batch.scheduled_tokens)
    rows = requests if descriptor.num_reqs is None else descriptor.num_reqs
    if PADS_BOUNDARY(host, mode, settings.sequence_parallel):
        rows = host._pad_query_start_loc_for_fia(
            buffer, descriptor.num_tokens, rows, requests, mode, descriptor.num_reqs
        )
    # The runner's buffers have a row for each of `max_num_seqs` requests; unused rows are zero.
    lengths, table = torch.zeros(most, dtype=torch.int32), torch.zeros((most, 2), dtype=torch.int32)
    lengths[:requests] = torch.tensor(batch.computed_tokens) + torch.tensor(batch.scheduled_tokens)
    table[:requests] = 7
    common = SimpleNamespace(
        num_reqs=rows,
        num_actual_tokens=batch.num_tokens,
        query_start_loc=buffer.gpu[: rows + 1],
        query_start_loc_cpu=buffer.cpu[: rows + 1],
        block_table_tensor=table[:rows],
        _seq_lens_cpu=lengths[:rows],
        seq_lens_cpu=lengths[:rows],
        seq_lens=lengths[:rows],
        slot_mapping=torch.zeros(descriptor.num_tokens, dtype=torch.int32),
        attn_state=None,
        kvcomp_metadata=None,
        causal=True,
        max_query_len=max(batch.scheduled_tokens),
    )
    builder = SimpleNamespace(
        pcp_enabled=False,
        decode_threshold=1,
        speculative_config=host.speculative_config,
        vllm_config=host.vllm_config,
        device="cpu",
        kv_cache_spec=None,
        model_config=SimpleNamespace(runner_type="generate"),
        attn_mask_builder=SimpleNamespace(get_attention_mask=lambda *_: None),
        metadata_cls=SimpleNamespace,
        _split_decodes_and_prefills=lambda *_: (0, 0, 0, 0),
        _build_backend_metadata=lambda *_, **__: {},
    )
    # Which rows are decodes is another matter, and until 0.23 a function of the builder's module.
    with mock.patch.object(attention_v1, "split_decodes_and_prefills", return_value=(0, 0, 0, 0)):
        built = attention_v1.AscendAttentionMetadataBuilder.build(builder, 0, common)
    return [
        built.actual_seq_lengths_q,
        built.seq_lens_list,
        int((built.block_tables[:, 0] == 7).sum()),
        int((built.block_tables[:, 0] == 0).sum()),
        len(built.slot_mapping),
    ]


def answer_step(case: StepCase) -> Any:
    with surroundings(case.settings):
        try:
            host = runner(case.settings, case.ladder)
            mode, descriptor, _ = determine(host, case.batch)
        except FAILURES:
            return FAILED
        try:
            return [described(mode, descriptor), attention(host, case.settings, case.batch, mode, descriptor)]
        except FAILURES:
            return [described(mode, descriptor), FAILED]


def answer_boundary(case: BoundaryCase) -> Any:
    settings, requests = case.settings, len(case.query_ends)
    buffer = CpuGpuBuffer(settings.max_num_seqs + 2, dtype=torch.int32, device=torch.device("cpu"), pin_memory=False)
    buffer.np[1 : requests + 1] = case.query_ends
    host = Runner(
        compilation_config=config(settings, (1,)).compilation_config,
        uniform_decode_query_len=settings.uniform_query_length,
        arange_np=np.arange(4096, dtype=np.int64),
    )
    rows = requests if case.graph_requests is None else case.graph_requests
    try:
        rows = host._pad_query_start_loc_for_fia(
            buffer, case.padded_tokens, rows, requests, CUDAGraphMode[case.mode.name], case.graph_requests
        )
    except FAILURES:
        return FAILED
    assert buffer.cpu.equal(buffer.gpu)
    return buffer.np[1 : rows + 1].tolist()


def answer_ranks(case: RanksCase) -> Any:
    alone = HostSettings(**{**vars(case.settings), "data_parallel_size": 1})
    with surroundings(case.settings):
        try:
            chosen = [determine(runner(alone, case.ladder), batch) for batch in case.batches]
            return [answer_rank(case, rank, chosen) for rank in range(len(case.batches))]
        except FAILURES:
            return FAILED


def answer_rank(case: RanksCase, rank: int, chosen: list[tuple[Any, Any, Any]]) -> Any:
    host = runner(case.settings, case.ladder)
    host.dp_rank = host.parallel_config.data_parallel_rank = rank

    def all_reduce(packed: torch.Tensor, group: object) -> None:
        del group
        for other, (mode, descriptor, _) in enumerate(chosen):
            if other != rank:
                packed[0][other] += descriptor.num_tokens
                packed[1][other] += mode.value

    experts = SimpleNamespace(ALLGATHER="allgather", MC2="mc2", FUSED_MC2="fused_mc2", ALLTOALL="alltoall")
    replaced = {
        "dist": SimpleNamespace(all_reduce=all_reduce),
        "get_dp_group": lambda: SimpleNamespace(cpu_group=None, device_group=None),
        "should_skip_allreduce_across_dp_group": lambda *_: case.skipped,
        "select_moe_comm_method": lambda *_, **__: "mc2" if case.needs_equal_tokens else "alltoall",
        "MoECommType": experts,
    }
    with mock.patch.multiple(model_runner_v1, **{n: v for n, v in replaced.items() if hasattr(model_runner_v1, n)}):
        mode, descriptor, across_ranks = determine(host, case.batches[rank])
    return [described(mode, descriptor), across_ranks.tolist()]


def answer_ladder(case: LadderCase) -> Any:
    settings = case.settings
    vllm_config = config(settings)
    compilation = vllm_config.compilation_config
    profile = SimpleNamespace(supports=lambda _: settings.few_graphs)
    host = Runner(
        vllm_config=vllm_config,
        parallel_config=vllm_config.parallel_config,
        compilation_config=compilation,
        speculative_config=None,
        drafter=None,
        uniform_decode_query_len=settings.uniform_query_length,
        kv_cache_config=None,
        max_num_reqs=settings.max_num_seqs,
        use_aclgraph=False,
        cudagraph_dispatcher=SimpleNamespace(initialize_cudagraph_keys=lambda *_: None, get_capture_descs=list),
    )
    try:
        with mock.patch.object(ascend_platform, "get_current_hardware_profile", return_value=profile):
            ascend_platform.NPUPlatform.apply_config_platform_defaults(vllm_config)
            vllm_config._set_cudagraph_sizes()
            LADDER_FUNCTION(
                vllm_config,
                "backend",
                enable_shared_expert_dp=settings.shared_expert_data_parallel,
                enable_dsa_cp=settings.dsa_context_parallel,
            )
        with surroundings(settings):
            host._check_and_update_cudagraph_mode([], [])
    except FAILURES:
        return FAILED
    return compilation.cudagraph_capture_sizes


def answer_skip(case: SkipCase) -> Any:
    facts = case.facts
    decode_tokens, prefill_tokens = 100, 8192
    by_mc2 = {decode_tokens: facts["decode_by_mc2"], prefill_tokens: facts["prefill_by_mc2"]}
    from vllm_ascend.ops.fused_moe.moe_comm_method import MoECommType

    ascend = SimpleNamespace(
        get_mc2_comm_alg=lambda: "hierarchy" if facts["hierarchical_mc2"] else "fullmesh",
        scheduler_config=SimpleNamespace(recompute_scheduler_enable=facts["recompute_scheduler"]),
        recompute_scheduler_enable=facts["recompute_scheduler"],
    )
    utils = {
        "get_ascend_config": lambda: ascend,
        "is_moe_model": lambda _: facts["is_moe"],
        "is_hierarchical_communication_enabled": lambda: facts["hierarchical_mc2"],
        "is_mega_moe_supported": lambda: facts["mega_moe"],
        "get_potential_max_tokens": lambda: decode_tokens,
    }
    context = {
        "select_moe_comm_method": lambda n, *_, **__: MoECommType.MC2 if by_mc2[n] else MoECommType.ALLTOALL,
        "use_cann_megamoe": lambda *_: facts["mega_moe"],
    }
    mode = CUDAGraphMode.FULL_DECODE_ONLY if facts["separates_decode"] else CUDAGraphMode.FULL
    vllm_config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(is_kv_consumer=facts["is_kv_consumer"]),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=prefill_tokens),
        compilation_config=SimpleNamespace(cudagraph_mode=mode),
    )
    with (
        mock.patch.multiple(ascend_utils, **{n: v for n, v in utils.items() if hasattr(ascend_utils, n)}),
        mock.patch.multiple(forward_context, **{n: v for n, v in context.items() if hasattr(forward_context, n)}),
    ):
        return ascend_utils.should_skip_allreduce_across_dp_group(vllm_config)


def main(release: str, seed: str, *counts_and_result: str) -> None:
    *counts, result = counts_and_result
    cases: Cases = generate(HostRelease(release), int(seed), *(int(count) for count in counts))
    assert isinstance(inspect.getattr_static(NPUModelRunner, "_pad_query_start_loc_for_fia"), types.FunctionType)
    # Start-up logs every cut of a ladder, thousands of times here.
    with (
        mock.patch.multiple(ascend_utils, logger=mock.Mock()),
        mock.patch.multiple(ascend_platform, logger=mock.Mock()),
    ):
        answers = {
            "steps": [answer_step(case) for case in cases.steps],
            "boundaries": [answer_boundary(case) for case in cases.boundaries],
            "ranks": [answer_ranks(case) for case in cases.ranks],
            "ladders": [answer_ladder(case) for case in cases.ladders] if LADDER_FUNCTION else None,
            "skips": [answer_skip(case) for case in cases.skips],
        }
    Path(result).write_text(json.dumps(answers))


if __name__ == "__main__":
    import logging

    logging.disable(logging.WARNING)
    main(*sys.argv[1:])
