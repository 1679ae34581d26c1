"""The arguments of ``vllm serve`` that advice comes to."""

from __future__ import annotations

import json
from typing import Any

from vllm_ascend_split_batch.host_model.admission import EngineSettings, Policy
from vllm_ascend_split_batch.host_model.padding import GraphMode
from vllm_ascend_split_batch.planning.simulation import Setup


def lane_settings(settings: EngineSettings) -> dict[str, Any]:
    """What to put into `additional_config` for a policy's lanes."""
    if settings.policy is Policy.SHORT_REQUEST_FIRST:
        lanes = settings.short_request_first
        configuration = {"enabled": True, "threshold": lanes.threshold, "long_max_wait_ms": lanes.long_max_wait_ms}
        return {"scheduler_config": {"short_request_first_config": configuration}}
    if settings.policy is Policy.BATCH_JOB_AWARE:
        jobs = settings.batch_job
        return {
            "batch_job_sched_config": {
                "enabled": True,
                "max_jobs": jobs.max_jobs,
                "reserve_margin_blocks": jobs.reserve_margin_blocks,
                "reserve_max_blocks": jobs.reserve_max_blocks,
                "low_available_tokens_threshold": jobs.low_available_tokens_threshold,
                "short_decode_token_threshold": jobs.short_decode_token_threshold,
            }
        }
    return {}


def serve_arguments(setup: Setup) -> list[list[str]]:
    """Options with their values, in the order of a command line: what is advised, and the settings it rests on.

    Capture sizes that the host takes by itself are left to it.
    """
    engine, host = setup.engine, setup.host
    options = [
        ["--max-num-seqs", str(engine.max_num_seqs)],
        ["--max-num-batched-tokens", str(engine.max_num_batched_tokens)],
    ]
    if host.tensor_parallel_size > 1:
        options.append(["--tensor-parallel-size", str(host.tensor_parallel_size)])
    if not engine.chunked_prefill:
        options.append(["--no-enable-chunked-prefill"])
    if engine.long_prefill_token_threshold:
        options.append(["--long-prefill-token-threshold", str(engine.long_prefill_token_threshold)])
    if engine.policy is Policy.PRIORITY:
        options.append(["--scheduling-policy", "priority"])
    lanes = lane_settings(engine)
    if lanes:
        options.append(["--additional-config", json.dumps(lanes)])
    if host.mode_in_force is GraphMode.NONE:
        return [*options, ["--enforce-eager"]]
    graphs: dict[str, Any] = {"cudagraph_mode": host.graph_mode.name}
    if host.capture_sizes is not None:
        graphs["cudagraph_capture_sizes"] = list(host.capture_sizes)
    return [*options, ["--compilation-config", json.dumps(graphs)]]
