"""What `simulate` and `advise` share: the engine that the trace goes through."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vllm_ascend_split_batch.command_group import CommandError, not_negative, positive, sizes
from vllm_ascend_split_batch.host_model.admission import (
    BatchJobSettings,
    EngineSettings,
    HostRelease,
    Policy,
    ShortRequestFirstSettings,
)
from vllm_ascend_split_batch.host_model.padding import GraphMode, HostFailure, HostSettings
from vllm_ascend_split_batch.planning.simulation import Setup, Simulation, StepTime
from vllm_ascend_split_batch.planning.traces import TraceRequest

_GIB = 1 << 30
_ASSUMED_KV_TOKENS = 1 << 18


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the engine and of its steps."""
    engine = parser.add_argument_group("engine")
    engine.add_argument("--policy", choices=[one.value for one in Policy], default="fcfs", help="default fcfs")
    engine.add_argument("--max-num-seqs", type=positive, default=256, metavar="N", help="default 256")
    engine.add_argument("--max-num-batched-tokens", type=positive, default=8192, metavar="N", help="default 8192")
    engine.add_argument(
        "--max-model-len", type=positive, metavar="N", help="default: the model's, else what the trace needs"
    )
    engine.add_argument(
        "--kv-cache-tokens",
        type=positive,
        metavar="N",
        help=f"the KV cache size that the server logs at its start, in tokens; assumed: {_ASSUMED_KV_TOKENS}",
    )
    engine.add_argument("--block-size", type=positive, default=128, metavar="N", help="default 128")
    engine.add_argument("--model", metavar="DIR", help="a model folder: its length, and with --kv-cache-gib its cache")
    engine.add_argument(
        "--kv-cache-gib", type=float, metavar="N", help="memory of the KV cache per device (needs --model)"
    )
    engine.add_argument("--tensor-parallel", type=positive, default=1, metavar="N", help="default 1")
    engine.add_argument("--release", default="0.27.1rc1", metavar="VERSION", help="vllm-ascend's; default 0.27.1rc1")
    engine.add_argument("--no-chunked-prefill", action="store_true", help="prompts are computed whole")
    engine.add_argument("--long-prefill-token-threshold", type=not_negative, default=0, metavar="N", help="default 0")
    engine.add_argument("--async-scheduling", action="store_true", help="a step is scheduled before the last one ends")
    graphs = parser.add_argument_group("graphs")
    graphs.add_argument(
        "--graph-mode",
        choices=[mode.name.lower() for mode in GraphMode],
        default="full_decode_only",
        help="cudagraph_mode; none: as with --enforce-eager; default full_decode_only",
    )
    graphs.add_argument("--capture-sizes", type=sizes, metavar="N,N,...", help="default: what the host takes")
    graphs.add_argument("--sequence-parallel", action="store_true", help="tokens are rounded for sequence parallelism")
    lanes = parser.add_argument_group("policies")
    lanes.add_argument("--short-threshold", type=not_negative, default=256, metavar="N", help="tokens; default 256")
    lanes.add_argument("--long-max-wait-ms", type=float, default=0.0, metavar="MS", help="default 0: no ageing")
    lanes.add_argument("--max-jobs", type=not_negative, default=20, metavar="N", help="default 20")
    lanes.add_argument(
        "--low-available-tokens-threshold", type=positive, default=4096, metavar="N", help="default 4096"
    )
    lanes.add_argument("--short-decode-token-threshold", type=positive, default=32, metavar="N", help="default 32")
    assumed = StepTime()
    times = parser.add_argument_group("time of a step", "assumptions until you measure them: see docs/planning.md")
    for name, what in (
        ("graph-us", "fixed part of a step in graphs"),
        ("eager-us", "fixed part of a step without"),
        ("row-us", "each decoding row, padding included"),
        ("prompt-token-us", "each prompt token"),
    ):
        value = getattr(assumed, name.replace("-", "_"))
        times.add_argument(f"--{name}", type=float, default=value, metavar="US", help=f"{what}; assumed {value:g}")


def setup_of(options: argparse.Namespace, requests: Sequence[TraceRequest]) -> Setup:
    """The engine that the options describe.

    Raises:
        CommandError: the host would refuse it, or the model folder cannot be used.
    """
    positions, kv_tokens = _of_model(options)
    longest = max(one.prompt_tokens + one.output_tokens for one in requests)
    kv_tokens = options.kv_cache_tokens or kv_tokens or _ASSUMED_KV_TOKENS
    try:
        release = HostRelease.of(options.release)
        shared = {
            "release": release,
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": options.max_num_batched_tokens,
        }
        setup = Setup(
            EngineSettings(
                policy=options.policy,
                max_model_len=options.max_model_len or positions or longest,
                # One block is never handed out; the server's figure counts it.
                num_blocks=kv_tokens // options.block_size,
                block_size=options.block_size,
                asynchronous=options.async_scheduling,
                chunked_prefill=not options.no_chunked_prefill,
                long_prefill_token_threshold=options.long_prefill_token_threshold,
                short_request_first=ShortRequestFirstSettings(options.short_threshold, options.long_max_wait_ms),
                batch_job=BatchJobSettings(
                    max_jobs=options.max_jobs,
                    low_available_tokens_threshold=options.low_available_tokens_threshold,
                    short_decode_token_threshold=options.short_decode_token_threshold,
                ),
                **shared,
            ),
            HostSettings(
                graph_mode=GraphMode[options.graph_mode.upper()],
                capture_sizes=options.capture_sizes,
                tensor_parallel_size=options.tensor_parallel,
                sequence_parallel=options.sequence_parallel,
                **shared,
            ),
            StepTime(options.graph_us, options.eager_us, options.row_us, options.prompt_token_us),
        )
        Simulation(setup)
    except (ValueError, HostFailure) as error:
        raise CommandError(str(error)) from None
    return setup


def _of_model(options: argparse.Namespace) -> tuple[int | None, int | None]:
    """The model's length, and the tokens that its cache holds in the given memory."""
    if options.model is None:
        if options.kv_cache_gib is not None:
            raise CommandError("--kv-cache-gib needs --model: how much a token takes depends on the model")
        return None, None
    from vllm_ascend_split_batch.cascade.commands.model_config import read_positions, read_shape

    positions = read_positions(options.model)
    if options.kv_cache_gib is None:
        return positions, None
    shape = read_shape(options.model, tensor_parallel=options.tensor_parallel)
    token = 2 * shape.layers * shape.kv_heads * shape.head_size * shape.element_bytes
    kv_tokens = int(options.kv_cache_gib * _GIB) // token if options.kv_cache_gib > 0 else 0
    if kv_tokens < options.block_size:
        raise CommandError(f"--kv-cache-gib {options.kv_cache_gib:g} holds no block of {options.block_size} tokens")
    return positions, kv_tokens
