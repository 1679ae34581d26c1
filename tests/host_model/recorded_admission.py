"""What the installed host answered to all generated cases: recorded once a test run, in one process."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.host_model.admission_kinds import GENERATORS, model_answers
from tests.host_model.host_parts import require
from vllm_ascend_split_batch.host_model.admission import HostRelease

CHILD = Path(__file__).with_name("host_admission_child.py")
ROOT = Path(__file__).parents[2]
SEED = 20_271_129
COUNTS = {
    "short first": 1200,
    "batch jobs": 1500,
    "plans": 3000,
    "activations": 150,
    "document": 2,
    "engines": 700,
    "connected engines": 700,
    "balanced engines": 250,
}
CHILD_SECONDS = 800


class Recorded:
    """The cases and what the host answered."""

    def __init__(self, answers: dict[str, Any], release: HostRelease, version: str) -> None:
        self.answers, self.release, self.version = answers, release, version
        self.cases = {kind: GENERATORS[kind](release, SEED, count) for kind, count in COUNTS.items()}

    def differing(self, kind: str, limit: int = 2) -> list[str]:
        """Up to `limit` cases of a kind in which the model answers otherwise than the host, from where on it does."""
        answer, found = model_answers()[kind], []
        for case, host in zip(self.cases[kind], self.of_host(kind), strict=True):
            try:
                said = json.loads(json.dumps(answer(case)))
            except Exception as error:  # a changed model may break anywhere
                said = [repr(error)]
            if said != host:
                step = next(
                    (step for step, (one, other) in enumerate(zip(said, host, strict=False)) if one != other), len(said)
                )
                told = [each[step : step + 1] for each in (host, said)]
                found.append(f"{case}\n  step {step}\n  host  {told[0]}\n  model {told[1]}")
                if len(found) == limit:
                    break
        return found

    def of_host(self, kind: str) -> list[Any]:
        """The host's answers of a kind; the test is not applicable where this release has nothing of the kind."""
        require(self.release, kind)
        answers: list[Any] | None = self.answers[kind]
        assert answers is not None, kind
        return answers


def record(folder: Path) -> Recorded:
    """Every case answered by the installed host, on the emulated NPU; files are left in `folder`."""
    emulator = pytest.importorskip("torch_npu_emulator")
    try:
        version = importlib.metadata.version("vllm-ascend")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm-ascend is not installed")
    release = HostRelease.of(version)
    result, log = folder / "answers.json", folder / "log.txt"
    environment = emulator.environment(dict(os.environ) | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": "ascend"})
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(ROOT)])
    arguments = [release.value, str(SEED), json.dumps(COUNTS), str(result)]
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, str(CHILD), *arguments],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=CHILD_SECONDS,
        )
    assert done.returncode == 0, log.read_text()[-4000:]
    return Recorded(json.loads(result.read_text()), release, version)
