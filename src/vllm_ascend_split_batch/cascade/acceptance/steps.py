"""The steps of the acceptance kit that need the device, each in a process of its own.

    python -m vllm_ascend_split_batch.cascade.acceptance.steps JOB.json RESULT.json

The job names the step and what it needs; the result is a JSON object. A step that cannot do its work ends with exit
status 1 and one sentence on standard error.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from . import folder

#: What begins the sentence of a step that cannot do its work.
SAID = "acceptance: "
#: Distributions whose versions say what was measured.
DISTRIBUTIONS = (
    "vllm-ascend-split-batch",
    "split-batch-kernels",
    "ascend-kernel",
    "vllm",
    "vllm-ascend",
    "torch",
    "torch-npu",
    "triton-ascend",
    "transformers",
    "numpy",
)


class StepError(Exception):
    """A step could not be done; the message is one sentence."""


def facts(job: dict[str, Any]) -> dict[str, Any]:
    """What this was measured on: device, versions, machine."""
    device = _device()
    import torch
    import torch_npu

    from vllm_ascend_split_batch.cascade import kernel_wheel
    from vllm_ascend_split_batch.cascade.profiles import device_key

    properties = torch.npu.get_device_properties(device)
    return {
        "device": device_key(torch_npu),
        "device_name": str(torch.npu.get_device_name(device)),
        "devices": torch.npu.device_count(),
        "memory_bytes": int(properties.total_memory),
        "emulated": hasattr(torch_npu, "emulator"),
        "cann": os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH"),
        "kernel_wheel": asdict(kernel_wheel.probe(job["fingerprint"])),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: version for name in DISTRIBUTIONS if (version := _version(name)) is not None},
    }


def kernels(job: dict[str, Any]) -> dict[str, Any]:
    """Every call form of the tier against attention in float64."""
    device = _device()
    import torch

    from vllm_ascend_split_batch.cascade import self_test, tiers
    from vllm_ascend_split_batch.cascade.two_stage import Heads

    shape = job["shape"]
    heads = Heads(shape["query_heads"], shape["kv_heads"], shape["head_size"], shape["head_size"] ** -0.5)
    try:
        tier = tiers.make(job["tier"], fp32_prefix=False, allowed_fingerprint=job["fingerprint"])
    except tiers.Unavailable as error:
        raise StepError(str(error)) from None
    outcome = self_test.run(tier, device, getattr(torch, job["dtype"]), heads, job["block_size"])
    return {"tier": job["tier"], "kernels": tier.detail, "problem": outcome.problem}


def identity(job: dict[str, Any]) -> dict[str, Any]:
    """Texts with cascade against texts without, in one engine."""
    from . import identity as texts

    # What is computed is asked here, not when it pays: the thresholds alone decide.
    engine = _engine(job, {"VLLM_ASCEND_CASCADE_PROFILE": "floors"})
    found = texts.check(engine, texts.rounds(job["prefix"], job["requests"]))
    return {"mode": job["mode"], **texts.as_json(found), "failures": engine.failures}


def serving(job: dict[str, Any]) -> dict[str, Any]:
    """Decode speed of both arms in one engine, by the decision of the measured profile."""
    from .serving import Cell, measure

    engine = _engine(job, {"VLLM_ASCEND_CASCADE_PROFILE": job["profile"]})
    cells = []
    for requests, prefix in job["cells"]:
        one = measure(engine, Cell(requests, prefix), rounds=job["rounds"], steps=job["steps"])
        cells.append(
            {
                **asdict(one),
                "stock_rate": one.stock_rate,
                "cascade_rate": one.cascade_rate,
                "speed_up": one.speed_up,
                "noise": one.noise,
                "slower": one.slower,
            }
        )
        print(
            f"{job['mode']}: {requests} requests, {prefix} shared: {one.stock_rate:.1f} tokens/s stock, "
            f"{one.cascade_rate:.1f} with cascade ({one.engaged} of {one.of} steps two-stage)",
            flush=True,
        )
    return {"mode": job["mode"], "cells": cells, "failures": engine.failures}


STEPS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "facts": facts,
    "kernels": kernels,
    "identity": identity,
    "serving": serving,
}


def _engine(job: dict[str, Any], more: dict[str, str]) -> Any:
    from .switched_engine import EngineError, Size, SwitchedEngine, prepare_environment

    graph = job["mode"] == "graph"
    prepare_environment(
        graph=graph,
        min_prefix=job["block_size"],
        min_requests=2,
        more={
            "VLLM_ASCEND_CASCADE_KERNELS": job["tier"],
            "VLLM_ASCEND_CASCADE_KERNEL_FINGERPRINT": job["fingerprint"],
            **more,
        },
    )
    size = Size(job["requests"], job["tokens"], job["kv_cache_bytes"])
    try:
        return SwitchedEngine(
            Path(job["model"]), size, graph=graph, capture_sizes=job["capture_sizes"], **job["engine_arguments"]
        )
    except EngineError as error:
        raise StepError(str(error)) from None


def _device() -> Any:
    """The NPU; it comes first in a step, so that its absence is what is said."""
    try:
        import torch
        import torch_npu  # noqa: F401 - gives torch its device

        if not torch.npu.is_available():
            raise RuntimeError("torch.npu.is_available() is false")
        torch.npu.set_device(torch.npu.current_device())
    except Exception as error:
        raise StepError(
            f"there is no usable NPU in this environment ({type(error).__name__}: {error}); run this where the engine "
            "will run, with the device free"
        ) from None
    return torch.device("npu", torch.npu.current_device())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def main(job_path: str, result_path: str) -> int:
    """Run one step."""
    job = json.loads(Path(job_path).read_text("utf-8"))
    try:
        result = STEPS[job["step"]](job)
    except StepError as error:
        print(f"{SAID}{error}", file=sys.stderr)
        return 1
    folder.write_json(Path(result_path), result)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
