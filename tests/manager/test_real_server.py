"""A real ``vllm serve`` on the emulated NPU, launched with two extensions: what it did, its metrics, its signals, its
end.

One extension is this project's cascade decode, the other one is written here: it counts the engine's steps.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .scratch import Site, manifest

CASCADE = "org.vllm-hust.split-batch-full-graph"
COUNTER = "org.example.step-counter"
HEALTHY_SECONDS = 300
STOP_SECONDS = 180
REPORTED_SECONDS = 60


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


pytestmark = [
    pytest.mark.emulated,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(_has, ("vllm", "vllm-ascend", "torch-npu-emulator", "vllm-ascend-split-batch"))),
        reason="needs vllm, vllm-ascend, the emulated NPU and the project's own extension",
    ),
]

# The test's own extension: a real vLLM plugin. It wraps the engine's step and reports what it counted.
STEP_COUNTER = """
import json, os, socket, sys
counted = 0
def report():
    folder = os.environ.get("VLLM_HUST_EXT_REPORT_DIR")
    if not folder:
        return
    fields = open(f"/proc/{os.getpid()}/stat").read().rsplit(")", 1)[1].split()
    process = {
        "pid": os.getpid(),
        "start_ticks": int(fields[19]),
        "boot_id": open("/proc/sys/kernel/random/boot_id").read().strip(),
        "hostname": socket.gethostname(),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "role": "engine-core",
        "argv0": sys.argv[0],
    }
    carrier = {
        "name": "step-counter", "extension_id": "org.example.step-counter", "state": "installed", "state_reason": "",
        "gates": [], "seams": [], "engaged": counted, "calls": counted, "counters": {}, "reasons": {},
        "failures": {}, "last_failure": None,
    }
    document = {
        "schema": "vllm-hust-ext.engine-report/1",
        "distribution": {"name": "step-counter", "version": "1.0"},
        "launch_id": os.environ.get("VLLM_HUST_EXT_LAUNCH_ID"),
        "process": process,
        "started_at": "",
        "written_at": "",
        "host": {},
        "carriers": [carrier],
    }
    path = os.path.join(folder, f"{os.getpid()}-step-counter.json")
    with open(path + ".part", "w") as stream:
        json.dump(document, stream)
    os.replace(path + ".part", path)
def counting(original):
    def step(self, *args, **kwargs):
        global counted
        counted += 1
        report()
        return original(self, *args, **kwargs)
    return step
def load():
    core = sys.modules.get("vllm.v1.engine.core")
    if os.environ.get("STEP_COUNTER") != "1" or core is None or hasattr(core.EngineCore, "_step_counter"):
        return
    for name in ("step", "step_with_batch_queue"):  # the engine takes one of them
        setattr(core.EngineCore, name, counting(getattr(core.EngineCore, name)))
    core.EngineCore._step_counter = True
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """A ``vllm serve`` behind ``vllm-hust-ext run``, and the manager beside it."""

    process: subprocess.Popen[bytes]
    url: str
    env: dict[str, str]
    log: Path

    def manager(self, *arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "vllm_hust_ext", *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done

    def status(self) -> dict[str, Any]:
        document = json.loads(self.manager("extension", "status", "--json").stdout)
        assert isinstance(document, dict)
        return document

    def reported(self) -> dict[str, Any]:
        """The status, once it counts no more: reports are written once a second, when something changed."""
        counts: Any = None
        end = time.monotonic() + REPORTED_SECONDS
        while True:
            time.sleep(2.5)
            document, before = self.status(), counts
            carriers = [c for launch in document["launches"] for r in launch["reports"] for c in r["carriers"]]
            counts = [(carrier["name"], carrier["engaged"], carrier["calls"]) for carrier in carriers]
            if (counts == before and len(document["runtime_effective"]) == 2) or time.monotonic() > end:
                return document

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def complete(self, prompt: list[int], tokens: int) -> None:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=180) as answer:
            assert answer.status == 200

    def wait_until_healthy(self) -> None:
        begin = time.monotonic()
        while True:
            tail = self.log.read_text(errors="replace")[-2000:]
            assert self.process.poll() is None, (
                f"the server ended with {self.process.returncode}; its log ends with\n{tail}"
            )
            assert time.monotonic() - begin < HEALTHY_SECONDS, f"not healthy in time; its log ends with\n{tail}"
            try:
                self.get("/health")
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the process that the manager was started as, and wait for the server's end."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


def launch_environment(root: Path) -> dict[str, str]:
    import torch_npu_emulator

    site = Site(root / "site")
    carrier = [{"type": "python_module", "module": "step_counter", "object": "load", "status": "active"}]
    host = {"provider": "vllm", "name": "vllm-ascend", "version_range": ">=0.20"}
    document = manifest(COUNTER, implementation=carrier, host=host, activation={"environment": {"STEP_COUNTER": "1"}})
    site.install(
        "step-counter",
        files={
            "step_counter.py": STEP_COUNTER,
            "step_counter_manifest/vllm-hust-extension-v0.2.json": json.dumps(document),
        },
        entry_points={
            "vllm_hust.extension_bundles": {COUNTER: "step_counter_manifest"},
            "vllm.general_plugins": {"step-counter": "step_counter:load"},
        },
    )
    foreign = ("VLLM_", "NPU_EMU_", "VLLMHUST_")
    base = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    base |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(site.path),
        "VLLM_HUST_EXT_CONFIG": str(root / "config.json"),
        "VLLM_HUST_EXT_STATE_DIR": str(root / "state"),
        "VLLM_ASCEND_CASCADE_MIN_PREFIX": "128",
        "VLLM_ASCEND_CASCADE_MIN_REQS": "2",
        "VLLM_ASCEND_CASCADE_PROFILE": "floors",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "NPU_EMU_TOTAL_GIB": "4",
    }
    return dict(torch_npu_emulator.environment(base))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny_models = pytest.importorskip("tests.emulated.tiny_models")
    built: Path = tiny_models.build(tiny_models.QWEN3, tmp_path_factory.mktemp("model"), "bfloat16")
    return built


@pytest.fixture
def server(tmp_path: Path, model: Path) -> Iterator[Server]:
    env = launch_environment(tmp_path)
    port = free_port()
    for extension_id in (CASCADE, COUNTER):
        subprocess.run(
            [sys.executable, "-m", "vllm_hust_ext", "extension", "enable", extension_id], env=env, check=True
        )
    command = ["vllm", "serve", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port),
               "--enforce-eager", "--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", "8",
               "--kv-cache-memory-bytes", str(256 << 20)]  # fmt: skip
    log = tmp_path / "log.txt"
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm_hust_ext", "run", "--metrics", "--", *command],
            env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    running = Server(process, f"http://127.0.0.1:{port}", env, log)
    try:
        running.wait_until_healthy()
        yield running
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ask_together(server: Server, requests: int, tokens: int) -> None:
    """Concurrent requests that share a prefix of 400 tokens."""
    prefix = [(7 * i) % 500 + 5 for i in range(400)]
    server.complete(prefix, 2)
    threads = [
        threading.Thread(target=server.complete, args=([*prefix, k + 10, k + 11], tokens)) for k in range(requests)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_status_metrics_and_sigterm(server: Server) -> None:
    ask_together(server, 6, 24)
    document = server.reported()
    (launch,) = document["launches"]
    assert launch["pid"] == server.process.pid  # exec: the server is the process that was started
    assert launch["extensions"] == sorted([CASCADE, COUNTER])
    engines = {extension_id: processes[0]["pid"] for extension_id, processes in document["runtime_effective"].items()}
    assert set(engines) == {CASCADE, COUNTER}
    assert engines[CASCADE] == engines[COUNTER] != server.process.pid
    carriers = {
        (r["process"]["pid"], c["extension_id"]): c
        for r in launch["reports"]
        for c in r["carriers"]
        if c["name"] != "cascade-graph"  # the bundle's second carrier; this server runs in eager mode
    }
    cascade = carriers[(engines[CASCADE], CASCADE)]
    assert 0 < cascade["engaged"] <= cascade["calls"]
    front = carriers[(server.process.pid, CASCADE)]
    assert not front["effective"]  # the front end has it armed at most, and is not said to be effective
    text = server.manager("extension", "status", CASCADE)
    assert text.returncode == 0
    assert (f"cascade-attention engaged {cascade['engaged']:,} of {cascade['calls']:,} calls") in " ".join(
        text.stdout.split()
    )
    # the same numbers on vLLM's own /metrics
    line = next(
        line for line in server.get("/metrics").splitlines()
        if line.startswith("vllm_hust_ext_engaged_total") and f'pid="{engines[CASCADE]}"' in line and CASCADE in line
    )  # fmt: skip
    assert float(line.split()[-1]) >= cascade["engaged"]
    assert "vllm:" in server.get("/metrics")
    # SIGTERM reaches the server itself, its exit code comes back, and nothing is said of it any more
    assert server.end(signal.SIGTERM) == 0
    after, end = server.status(), time.monotonic() + REPORTED_SECONDS
    while after["launches"] and time.monotonic() < end:
        time.sleep(0.5)
        after = server.status()
    assert after["launches"] == []
    assert after["runtime_effective"] == {}


def test_sigint(server: Server) -> None:
    assert server.end(signal.SIGINT) == 0


def test_a_failing_start_has_vllms_own_exit_code(tmp_path: Path) -> None:
    env = launch_environment(tmp_path)
    command = ["vllm", "serve", str(tmp_path / "no-such-model"), "--port", str(free_port())]
    plain = subprocess.run(
        [str(Path(sys.executable).parent / "vllm"), *command[1:]], env=env, capture_output=True, check=False
    )
    launched = subprocess.run(
        [sys.executable, "-m", "vllm_hust_ext", "run", "--", *command], env=env, capture_output=True, check=False
    )
    assert plain.returncode != 0
    assert launched.returncode == plain.returncode
