"""One arm of the demo: a `vllm serve` process on the emulated NPU, from start to a clean end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEALTHY_SECONDS = 300
STOP_SECONDS = 30
SERVED_NAME = "demo"


class ServerFailed(Exception):
    """The server did not come up or died; the text holds the end of its log."""


@dataclass(frozen=True)
class Arm:
    """How one arm is started.

    Attributes:
        name: shown, and the name of its folder.
        launcher: put before `vllm serve ...` (empty, or the manager's `run --`).
        environment: variables on top of the emulated NPU's.
    """

    name: str
    launcher: tuple[str, ...]
    environment: dict[str, str]


@dataclass(frozen=True)
class Running:
    """A healthy server. Its folder holds log.txt and what its processes wrote: reports/, counters/, oplog/."""

    base_url: str
    folder: Path
    seconds_to_health: float

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text(errors="replace")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_command(model: Path, port: int, requests: int, max_model_len: int, kv_cache_bytes: int) -> list[str]:
    return [
        "vllm",
        "serve",
        str(model),
        "--served-model-name",
        SERVED_NAME,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--enforce-eager",
        "--dtype",
        "bfloat16",
        "--max-model-len",
        str(max_model_len),
        "--max-num-seqs",
        str(requests),
        "--kv-cache-memory-bytes",
        str(kv_cache_bytes),
        "--max-logprobs",
        "20",
    ]


def arm_environment(arm: Arm, folder: Path) -> dict[str, str]:
    """The arm's environment: the emulated NPU's, what the demo measures with, and the arm's own."""
    import torch_npu_emulator

    base = {
        name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "NPU_EMU_", "VLLMHUST_"))
    }
    base |= {
        "NPU_EMU_TOTAL_GIB": "6",
        "NPU_EMU_COUNTERS": str(folder / "counters"),
        "NPU_EMU_OPLOG": str(folder / "oplog"),
        "VLLM_HUST_EXT_REPORT_DIR": str(folder / "reports"),
        # Opens /pause and /resume, with which a batch is released at once; the server listens on loopback only.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", os.defpath),
    }
    return torch_npu_emulator.environment(base | arm.environment)


@contextlib.contextmanager
def serve(
    arm: Arm, model: Path, folder: Path, *, requests: int, max_model_len: int, kv_cache_bytes: int
) -> Iterator[Running]:
    """Start the arm, yield when it is healthy, and end it by SIGINT, then SIGKILL.

    Raises:
        ServerFailed: it ended or was not healthy in time.
    """
    for name in ("reports", "counters", "oplog"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [*arm.launcher, *serve_command(model, port, requests, max_model_len, kv_cache_bytes)]
    base_url = f"http://127.0.0.1:{port}"
    begin = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        # A session of its own: Ctrl-C reaches the demo, which then stops the server in order.
        process = subprocess.Popen(
            command, env=arm_environment(arm, folder), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait_for_health(process, base_url, folder / "log.txt", begin)
            yield Running(base_url, folder, time.monotonic() - begin)
        finally:
            _stop(process)


def _wait_for_health(process: subprocess.Popen[bytes], base_url: str, log: Path, begin: float) -> None:
    terminal = sys.stdout.isatty()
    while True:
        elapsed = time.monotonic() - begin
        if process.poll() is not None:
            raise ServerFailed(f"the server ended with code {process.returncode} while starting:\n{_tail(log)}")
        if elapsed > HEALTHY_SECONDS:
            raise ServerFailed(f"the server is not healthy after {HEALTHY_SECONDS} s:\n{_tail(log)}")
        if _healthy(base_url):
            break
        if terminal:
            print(f"\r  starting the server ... {elapsed:3.0f} s (about 30)", end="", flush=True)
        time.sleep(0.5)
    if terminal:
        print("\r" + " " * 60 + "\r", end="", flush=True)


def _healthy(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _tail(log: Path, lines: int = 25) -> str:
    text = "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    return f"{text}\n(the whole log: {log})"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    # Whatever the server started ends with it, also where it was killed.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
