"""What is run in a release's environment: the live check, the proof tests, the host model beside the real classes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from tools.setup_environment import ROOT, Environment, SetupError
from vllm_ascend_split_batch.host_model.padding import HostRelease

CHILD = ROOT / "tools" / "hosts" / "live_child.py"
LIVE_SECONDS = 600
TESTS_SECONDS = 3600
GRACE_SECONDS = 30

#: Tests that run in one process of the emulated NPU, on the host's own classes, without an engine.
INSIDE = "tests/emulated/inside_host"
INSIDE_VARIABLES = {"NPU_EMU_FLOAT32_ATTENTION": "1", "VLLM_PLUGINS": "ascend"}

#: What a comparison test prints: "padding, vllm-ascend 0.27.1rc1: 5000 steps compared, all equal".
COMPARED = re.compile(r"(?P<model>[\w -]+), vllm-ascend [\w.]+: (?P<count>\d+) (?P<kind>[\w -]+?) compared, all equal")
#: Why a comparison test does not apply: "... not applicable: vllm-ascend 0.23 has no BatchJobAwareRequestQueue".
NOT_APPLICABLE = re.compile(r"SKIPPED \[(?P<count>\d+)\] .*not applicable: vllm-ascend \S+ has no (?P<part>\w+)$")
OUTCOMES = re.compile(r"(\d+) (passed|failed|skipped|error|errors|xfailed|xpassed)\b")


class Runner:
    """Runs the parts in one environment; their output goes to files in `folder`."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self.environment = environment
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def live(self, switched_on: dict[str, dict[str, str]]) -> dict[str, Any]:
        """What `live_child.py` found."""
        job, result = self.folder / "job.json", self.folder / "live.json"
        job.write_text(json.dumps({"switched_on": switched_on}))
        result.unlink(missing_ok=True)
        command = self._emulated(str(self.environment.python), str(CHILD), str(job), str(result))
        code, text = self._run("live", command, LIVE_SECONDS)
        if code != 0:
            raise SetupError(f"the host could not be looked at (exit code {code}):\n{_end(text)}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def proofs(self) -> dict[str, Any]:
        """The records of all proof tests, by test, and how many passed."""
        records = self.folder / "proofs"
        shutil.rmtree(records, ignore_errors=True)
        env = {"SPLIT_BATCH_PROOF_RECORDS": str(records)}
        engines = self._pytest("proofs", "-m", "proof", "tests/emulated", env=env)
        layers = self._pytest("proofs-inside", "-m", "proof", INSIDE, env=env | INSIDE_VARIABLES, inside=True)
        found = [json.loads(path.read_text()) for path in records.glob("*.json")]
        return {
            "outcomes": dict(Counter(engines["outcomes"]) + Counter(layers["outcomes"])),
            "not_passed": engines["not_passed"] + layers["not_passed"],
            "records": sorted(found, key=lambda record: str(record["test"])),
        }

    def host_model(self, release: str) -> dict[str, Any]:
        """The comparisons of the host model with the release's real classes, and how many cases were compared."""
        try:
            HostRelease.of(release)
        except ValueError as error:
            return {"outcomes": {}, "not_passed": [], "compared": {}, "not_modelled": str(error)}
        ran = self._pytest("host-model", "-m", "host", "tests/host_model")
        text = (self.folder / "host-model.log").read_text(errors="replace")
        compared: Counter[str] = Counter()
        for match in COMPARED.finditer(text):
            compared[f"{match['model'].strip()}: {match['kind']}"] += int(match["count"])
        return {**apart(ran), "compared": dict(sorted(compared.items()))}

    def _pytest(
        self, name: str, *arguments: str, env: dict[str, str] | None = None, inside: bool = False
    ) -> dict[str, Any]:
        """Run tests; `inside`: in one process of the emulated NPU."""
        scratch = self.folder / "tmp"
        command = [str(self.environment.python), "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider"]
        command += [f"--basetemp={scratch}", *arguments]
        if inside:
            command = self._emulated(*command)
        code, text = self._run(name, command, TESTS_SECONDS, env)
        shutil.rmtree(scratch, ignore_errors=True)
        # 1: tests failed, which the records say. Others: nothing was collected, or pytest itself could not run.
        if code not in (0, 1):
            raise SetupError(f"the tests could not be run (pytest's exit code {code}):\n{_end(text)}")
        last = text.strip().splitlines()[-1]
        outcomes = {what: int(count) for count, what in OUTCOMES.findall(last)}
        said = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR ", "SKIPPED "))]
        return {"outcomes": outcomes, "not_passed": said}

    def _emulated(self, *command: str) -> list[str]:
        """A command on the emulated NPU, with torch's compile cache as torch sets it (aot-cache-guard looks there)."""
        unset = ("env", "--unset=TORCHINDUCTOR_AUTOGRAD_CACHE")
        return [str(self.environment.python), "-m", "torch_npu_emulator", "--", *unset, *command]

    def _run(self, name: str, command: list[str], seconds: int, env: dict[str, str] | None = None) -> tuple[int, str]:
        log = self.folder / f"{name}.log"
        base = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "NPU_EMU_", "PYTHON"))}
        base |= {"NPU_EMU_TOTAL_GIB": "4", "VLLM_CACHE_ROOT": str(self.folder / "cache"), **(env or {})}
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=base, stdout=output, stderr=subprocess.STDOUT)
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                if process.poll() is None:
                    _end_process(process)
        return code, log.read_text(errors="replace")


def apart(ran: dict[str, Any]) -> dict[str, Any]:
    """The result of comparison tests with those set apart that do not apply: how many by each part the release lacks.

    `tests/host_model/host_parts.py` lists what each release lacks, and a test holds the list to the installed release.
    """
    lines: list[str] = ran["not_passed"]
    found = [NOT_APPLICABLE.fullmatch(line) for line in lines]
    lacking: Counter[str] = Counter()
    for match in found:
        if match:
            lacking[match["part"]] += int(match["count"])
    outcomes = dict(ran["outcomes"])
    skipped = outcomes.pop("skipped", 0) - lacking.total()
    outcomes |= {what: count for what, count in (("skipped", skipped), ("not applicable", lacking.total())) if count}
    return {
        **ran,
        "outcomes": outcomes,
        "not_passed": [line for line, match in zip(lines, found, strict=True) if not match],
        "not_applicable": dict(sorted(lacking.items())),
    }


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Ask pytest to stop, which ends the engine it runs; kill what does not stop."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end(text: str, lines: int = 12) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-lines:])
