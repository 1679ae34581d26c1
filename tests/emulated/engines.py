"""Engines for tests: each distinct job is run once per test session, in a process of its own, on the emulated NPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("engine_child.py")
ENGINE_SECONDS = 420

#: Sizes for tiny models: pages of 128 tokens, a KV cache small enough to be allocated at once, eager mode.
ENGINE_DEFAULTS: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 256 << 20,
    "block_size": 128,
    "enable_prefix_caching": True,
}

#: Variables of the machine that must not decide about a test's engine.
FOREIGN_PREFIXES = ("VLLM_", "NPU_EMU_", "VLLMHUST_")



def graph_mode(mode: str, sizes: list[int], **others: Any) -> dict[str, Any]:
    """Arguments for `Engines.run(engine=...)`: an engine that captures graphs.

    Args:
        mode: `cudagraph_mode`, such as "FULL_DECODE_ONLY"; "NONE" compiles only. sizes: the capture sizes.
        others: further entries of `compilation_config`, as vLLM names them.
    """
    config = {"cudagraph_mode": mode, "cudagraph_capture_sizes": sizes} | others
    return {"enforce_eager": False, "compilation_config": config}


@dataclass(frozen=True)
class Batch:
    """Prompts that run together, and how many tokens each continues.

    `sampling` holds, per prompt, arguments of `SamplingParams` as (name, value) pairs, `max_tokens` among them where
    requests are to end one after the other; without it all are greedy, and the likelihoods of their tokens are
    returned, too.
    """

    prompts: tuple[tuple[int, ...], ...]
    tokens: int
    sampling: tuple[tuple[tuple[str, Any], ...], ...] = ()


@dataclass
class Result:
    """What one engine did.

    Attributes:
        tokens: [batch][request] -> generated ids.
        logprobs: likewise, of the generated ids.
        reports: the engine reports that processes wrote.
        counters: the emulated NPU's counters per process.
        oplog: the emulated NPU's attention calls, all processes, in order per process.
        log: the engine's whole output.
    """

    tokens: list[list[list[int]]]
    logprobs: list[list[list[float]]]
    reports: list[dict[str, Any]]
    counters: list[dict[str, Any]]
    oplog: list[dict[str, Any]]
    log: str

    def carrier(self, name: str) -> dict[str, Any]:
        """The report of the process in which carrier `name` was asked most."""
        found = [carrier for report in self.reports for carrier in report["carriers"] if carrier["name"] == name]
        assert found, f"no process reported {name}; the log ends with\n{self.log[-2000:]}"
        return max(found, key=lambda carrier: carrier["calls"])

    def graphs(self) -> dict[str, int]:
        """Captures, replays and task updates of all processes together."""
        total = {"captures": 0, "replays": 0, "task_updates": 0}
        for process in self.counters:
            for name in total:
                total[name] += process["graphs"][name]
        return total

    def worker(self, name: str) -> dict[str, Any]:
        """The report of carrier `name` in the process that runs the model: the one that went beyond waiting."""
        found = [
            carrier
            for report in self.reports
            for carrier in report["carriers"]
            if carrier["name"] == name and carrier["state"] != "armed"
        ]
        assert len(found) == 1, f"{len(found)} processes bound {name}; the log ends with\n{self.log[-2000:]}"
        return found[0]


class EngineFailed(AssertionError):
    """The engine's process ended with an error; the message holds the end of its log."""


@dataclass
class Engines:
    """Runs jobs and remembers their results. `folder` holds jobs, results, reports and logs."""

    folder: Path
    results: dict[str, Result] = field(default_factory=dict)
    started: int = 0

    def run(
        self,
        model: Path,
        batches: list[Batch],
        *,
        env: dict[str, str] | None = None,
        engine: dict[str, Any] | None = None,
        mutant: str | None = None,
    ) -> Result:
        """The result of a job, from an earlier run of the same job in this session if there was one.

        Args:
            env: variables on top of the emulated NPU's. engine: arguments of `LLM` on top of the defaults.
            mutant: a fault from `planted_faults.py` to plant first, or `"module:fault"` from another file beside it.
        """
        job = {
            "model": str(model),
            "mutant": mutant,
            "engine": ENGINE_DEFAULTS | (engine or {}),
            "batches": [
                {
                    "prompts": [list(p) for p in batch.prompts],
                    "tokens": batch.tokens,
                    "sampling": [dict(arguments) for arguments in batch.sampling],
                }
                for batch in batches
            ],
        }
        key = json.dumps([job, sorted((env or {}).items())])
        if key not in self.results:
            self.results[key] = self._start(job, env or {})
        return self.results[key]

    def _start(self, job: dict[str, Any], env: dict[str, str]) -> Result:
        import torch_npu_emulator

        self.started += 1
        place = self.folder / f"engine-{self.started}"
        for name in ("reports", "counters", "oplog"):
            (place / name).mkdir(parents=True)
        (place / "job.json").write_text(json.dumps(job))
        base = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_PREFIXES)}
        base |= {
            "NPU_EMU_TOTAL_GIB": "4",
            "NPU_EMU_COUNTERS": str(place / "counters"),
            "NPU_EMU_OPLOG": str(place / "oplog"),
            "VLLM_HUST_EXT_REPORT_DIR": str(place / "reports"),
        }
        if job["engine"]["dtype"] == "float32":
            base["NPU_EMU_FLOAT32_ATTENTION"] = "1"
        environment = torch_npu_emulator.environment(base | env)
        log = place / "log.txt"
        command = [sys.executable, str(CHILD), str(place / "job.json"), str(place / "result.json")]
        with log.open("w") as output:
            try:
                code = subprocess.run(
                    command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=ENGINE_SECONDS
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
        text = log.read_text(errors="replace")
        if code != 0:
            raise EngineFailed(f"the engine ended with code {code}:\n{text[-6000:]}")
        result = json.loads((place / "result.json").read_text())
        return Result(
            tokens=[batch["tokens"] for batch in result["batches"]],
            logprobs=[batch["logprobs"] for batch in result["batches"]],
            reports=[json.loads(path.read_text()) for path in sorted((place / "reports").glob("*.json"))],
            counters=[json.loads(path.read_text()) for path in sorted((place / "counters").glob("*.json"))],
            oplog=[
                json.loads(line)
                for path in sorted((place / "oplog").glob("*.jsonl"))
                for line in path.read_text().splitlines()
            ],
            log=text,
        )
