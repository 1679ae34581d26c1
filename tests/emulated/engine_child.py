"""Runs one engine of the real vllm + vllm-ascend in this process's environment and writes what it generated.

    python engine_child.py JOB.json RESULT.json

The job names the model, the engine's arguments and batches of prompts (token ids). Every batch is one `generate` call;
requests of one batch run together. Started by `tests/emulated/engines.py` on the emulated NPU.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any


def main(job_path: str, result_path: str) -> None:
    job: dict[str, Any] = json.loads(Path(job_path).read_text())
    if job["mutant"]:
        module, _, fault = job["mutant"].rpartition(":")
        importlib.import_module(module or "planted_faults").plant(fault)
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    engine = LLM(model=job["model"], skip_tokenizer_init=True, seed=0, **job["engine"])
    batches = []
    for batch in job["batches"]:
        common = {"max_tokens": batch["tokens"], "ignore_eos": True, "detokenize": False}
        sampling: Any = [SamplingParams(**(common | arguments)) for arguments in batch["sampling"]]
        if not sampling:
            sampling = SamplingParams(temperature=0.0, logprobs=1, **common)
        outputs = engine.generate(
            [TokensPrompt(prompt_token_ids=prompt) for prompt in batch["prompts"]], sampling, use_tqdm=False
        )
        batches.append(
            {
                "tokens": [list(output.outputs[0].token_ids) for output in outputs],
                "logprobs": [
                    [
                        step[token].logprob
                        for step, token in zip(
                            output.outputs[0].logprobs or (), output.outputs[0].token_ids, strict=not batch["sampling"]
                        )
                    ]
                    for output in outputs
                ],
                "cached_prompt_tokens": sum(output.num_cached_tokens or 0 for output in outputs),
            }
        )
    Path(result_path).write_text(json.dumps({"batches": batches}))
    # Reports, counters and the operator log are written about once a second, and the core ends without a last word.
    time.sleep(1.5)


if __name__ == "__main__":
    main(*sys.argv[1:3])
