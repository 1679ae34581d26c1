"""The demo: stock, cascade by the manager, cascade by environment variables, asked the same; what happened."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import report, traffic
from .client import Answer, RequestFailed, ask, prompt_token_ids
from .compare import differences
from .prompts import Conversation, conversations
from .server import SERVED_NAME, Arm, Running, ServerFailed, serve

EXTENSION = "org.vllm-hust.split-batch-full-graph"
CARRIER = "cascade-attention"
PAGE = 128
DEFAULT_OUTPUT = Path("out/demo")
#: Marks a folder as the demo's, to be emptied by its next run.
OUTPUT_MARK = ".written-by-the-demo"
#: Gates a user exports beside the manager's: the defaults (8192 tokens, 32 requests) suit a 14B model on hardware.
THRESHOLDS = {"VLLM_ASCEND_CASCADE_MIN_PREFIX": "1024", "VLLM_ASCEND_CASCADE_MIN_REQS": "4"}
GATE = {"VLLM_ASCEND_ENABLE_CASCADE_DECODE": "1"}


class DemoFailed(Exception):
    """The demo's own verdict: something it promises did not happen."""


@dataclass(frozen=True)
class Settings:
    """What the command line chose."""

    model: Path
    output: Path
    requests: int
    tokens: int
    max_model_len: int
    kv_cache_bytes: int
    kernels: str


@dataclass
class ArmResult:
    """What one arm showed."""

    name: str
    answers: list[Answer]
    reordered: list[Answer]
    marker: str
    carrier: dict[str, Any] | None
    calls: list[traffic.DecodeCall]
    seconds_to_health: float
    seconds_of_requests: float
    log: str


def parse(argv: list[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="a model folder with a chat template (default: SmolLM2-135M-Instruct)"
    )
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, help="logs, engine reports and result.json go here"
    )
    parser.add_argument("--requests", type=int, default=16, help="concurrent requests (default 16)")
    parser.add_argument("--tokens", type=int, default=40, help="most tokens of an answer (default 40)")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--kv-cache-mib", type=int, default=768)
    parser.add_argument(
        "--kernels", choices=("reference", "none"), default="reference", help="none: leave the kernel wheel out"
    )
    options = parser.parse_args(argv)
    if not 1 <= options.requests <= 64:
        parser.error(f"--requests {options.requests}: choose 1 to 64")
    if options.model is not None and not (options.model / "config.json").is_file():
        parser.error(f"--model {options.model}: no model folder there (it has no config.json)")
    model = options.model.resolve() if options.model else default_model()
    return Settings(
        model,
        options.output,
        options.requests,
        options.tokens,
        options.max_model_len,
        options.kv_cache_mib << 20,
        options.kernels,
    )


def default_model() -> Path:
    from tools.demo_model import ModelError, ensure_model

    try:
        return ensure_model()
    except ModelError as error:
        raise DemoFailed(str(error)) from None


def layers_of(model: Path) -> int:
    try:
        return int(json.loads((model / "config.json").read_text())["num_hidden_layers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DemoFailed(
            f"--model {model}: its config.json does not say num_hidden_layers ({type(error).__name__}: {error}); "
            "name the folder of a text model"
        ) from None


def manager(*arguments: str, env: dict[str, str]) -> list[str]:
    """The manager's command line, run in this environment."""
    import subprocess

    command = [str(Path(sys.executable).with_name("vllm-hust-ext")), *arguments]
    result = subprocess.run(command, env=os.environ | env, capture_output=True, text=True)
    print("  $ vllm-hust-ext " + " ".join(arguments))
    for line in result.stdout.splitlines() + result.stderr.splitlines():
        print(f"    {line}")
    if result.returncode != 0:
        raise DemoFailed(f"vllm-hust-ext {' '.join(arguments)} ended with code {result.returncode}")
    return command


def marker_line(log: str) -> str:
    """The line with which the plugin says in a serve log that it was loaded."""
    lines = [line for line in log.splitlines() if "cascade plugin loaded" in line]
    return lines[0].strip() if lines else "(no line of the plugin in the log)"


def carrier_report(folder: Path) -> dict[str, Any] | None:
    """The cascade carrier's own account, of the process that runs the model; None if none reported.

    The API server's process arms the carrier too, but never imports the host's runner.
    """
    found = [
        carrier
        for path in sorted(folder.glob("*.json"))
        for carrier in json.loads(path.read_text())["carriers"]
        if carrier["name"] == CARRIER
    ]
    return max(found, key=lambda carrier: (carrier["state"] != "armed", int(carrier["calls"])), default=None)


def run_arm(
    arm: Arm, settings: Settings, requests: list[Conversation], *, reorder: bool
) -> tuple[ArmResult, list[list[int]]]:
    """Serve, warm the shared prompt, ask, and read what the arm's processes wrote."""
    folder = settings.output / arm.name
    print(f"\n== {arm.name}: {' '.join([*arm.launcher[-3:], 'vllm serve', settings.model.name])}")
    for name, value in arm.environment.items():
        if name.startswith(("VLLM_ASCEND_", "NPU_EMU_")):
            print(f"  {name}={value}")
    with serve(
        arm,
        settings.model,
        folder,
        requests=settings.requests,
        max_model_len=settings.max_model_len,
        kv_cache_bytes=settings.kv_cache_bytes,
    ) as server:
        print(f"  healthy after {server.seconds_to_health:.0f} s", flush=True)
        prompts = prompt_token_ids(server.base_url, SERVED_NAME, requests)
        longest = max(map(len, prompts)) + settings.tokens
        if longest > settings.max_model_len:
            raise DemoFailed(
                f"a request needs {longest} tokens of context, --max-model-len is {settings.max_model_len}"
            )
        _timed("one request alone, which fills the prefix cache", server, requests[:1], 1)
        answers, seconds = _timed(f"{len(requests)} requests at once", server, requests, settings.tokens)
        reordered: list[Answer] = []
        if reorder:
            backwards, _ = _timed(
                "the same in another order (how far stock differs from itself)", server, requests[::-1], settings.tokens
            )
            reordered = backwards[::-1]
        time.sleep(2.5)  # reports and counters are written once a second
    result = ArmResult(
        name=arm.name,
        answers=answers,
        reordered=reordered,
        marker=marker_line(server.log),
        carrier=carrier_report(folder / "reports"),
        calls=traffic.decode_calls(traffic.read_calls(folder / "oplog")),
        seconds_to_health=server.seconds_to_health,
        seconds_of_requests=seconds,
        log=server.log,
    )
    return result, prompts


def _timed(what: str, server: Running, requests: list[Conversation], tokens: int) -> tuple[list[Answer], float]:
    print(f"  {what} ...", end="", flush=True)
    begin = time.monotonic()
    answers = ask(server.base_url, SERVED_NAME, requests, tokens)
    seconds = time.monotonic() - begin
    print(f" {seconds:.1f} s", flush=True)
    return answers, seconds


def prepare_output(folder: Path) -> None:
    """Make `folder`, empty; only what an earlier run of the demo left is removed.

    Raises:
        DemoFailed: the folder holds something else, or cannot be made.
    """
    try:
        if folder.is_dir() and any(folder.iterdir()):
            if folder != DEFAULT_OUTPUT and not (folder / OUTPUT_MARK).is_file():
                raise DemoFailed(f"--output {folder}: it holds files of others; name an empty or new folder")
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / OUTPUT_MARK).touch()
    except OSError as error:
        raise DemoFailed(
            f"--output {folder}: it cannot be written ({error.strerror or error}); name another folder"
        ) from None


def demo(settings: Settings) -> dict[str, Any]:
    """Run the three arms and return everything that was found."""
    layers = layers_of(settings.model)
    prepare_output(settings.output)
    requests = conversations(settings.requests)
    private = {"VLLM_HUST_EXT_CONFIG": str((settings.output / "intents.json").resolve())}
    kernels = {"NPU_EMU_KERNELS": settings.kernels}

    stock, prompts = run_arm(Arm("stock", (), dict(kernels)), settings, requests, reorder=True)
    print("\n-- the manager")
    manager("extension", "inspect", EXTENSION, env=private)
    command = manager("extension", "enable", EXTENSION, env=private)
    launcher = (command[0], "run", "--")
    cascade, _ = run_arm(Arm("cascade", launcher, THRESHOLDS | kernels | private), settings, requests, reorder=False)
    by_hand, _ = run_arm(Arm("by-hand", (), GATE | THRESHOLDS | kernels), settings, requests, reorder=False)
    shared = traffic.shared_pages(prompts, PAGE)
    return {
        "settings": {key: str(value) for key, value in asdict(settings).items() if key != "output"}
        | {"model": settings.model.name},
        "layers": layers,
        "shared_tokens": shared,
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "stock": stock,
        "arms": [cascade, by_hand],
        "traffic": report.traffic_table(stock, cascade, settings.requests, layers, shared),
    }


def judge(found: dict[str, Any], kernels: str) -> list[str]:
    """What the demo promises and did not see; empty when all is well."""
    faults = []
    stock: ArmResult = found["stock"]
    for arm in found["arms"]:
        carrier = arm.carrier
        if carrier is None:
            faults.append(f"{arm.name}: no process reported the carrier {CARRIER}")
            continue
        if carrier["failures"]:
            faults.append(f"{arm.name}: the carrier fell back on {carrier['failures']} ({carrier['last_failure']})")
        found_differences = differences(stock.answers, arm.answers)
        if kernels == "none":
            if carrier["engaged"]:
                faults.append(f"{arm.name}: {carrier['engaged']} steps ran two-stage without the kernel wheel")
            warnings = [line for line in arm.log.splitlines() if "WARNING" in line and "kernel wheel" in line]
            if len(warnings) != 1:
                faults.append(f"{arm.name}: {len(warnings)} warnings about the missing kernel wheel instead of one")
            faults += [f"{arm.name}: an answer differs from stock ({difference})" for difference in found_differences]
        else:
            if not carrier["engaged"]:
                faults.append(f"{arm.name}: cascade never engaged (reasons: {carrier['reasons']})")
            faults += [
                f"{arm.name}: an answer left stock where it was no near tie ({difference})"
                for difference in found_differences
                if not difference.near_tie
            ]
    if min(found["prompt_tokens"]) < 2000:
        faults.append(f"the prompts hold only {min(found['prompt_tokens'])} tokens with this model's tokenizer")
    return faults


def main(argv: list[str] | None = None) -> int:
    begin = time.monotonic()
    try:
        settings = parse(argv)
        found = demo(settings)
    except (DemoFailed, ServerFailed, RequestFailed) as error:
        print(f"\ndemo stopped: {error}")
        return 1
    except KeyboardInterrupt:
        print("\ndemo interrupted")
        return 130
    faults = judge(found, settings.kernels)
    report.show(found)
    path = settings.output / "result.json"
    path.write_text(json.dumps(report.as_json(found, faults), indent=1) + "\n")
    print(f"\nraw figures: {path}; logs and engine reports: {settings.output}/  ({time.monotonic() - begin:.0f} s)")
    if faults:
        print("\nDEMO FAILED\n" + "\n".join(f"  - {fault}" for fault in faults))
        return 1
    print("\ndemo passed")
    return 0
