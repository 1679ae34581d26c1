"""Set up `.venv` for the demo and the tests: once, resumable, with a line of progress for every step.

    python3 tools/setup_environment.py demo            what `make demo` needs
    python3 tools/setup_environment.py test            what `make test` needs (the demo's set and the test tools)
    python3 tools/setup_environment.py --status        which steps are done

Runs on the system's Python with the standard library alone. Every step has a stamp in `.venv/.setup/` that names the
inputs it was made from; a step whose inputs did not change is not run again, and a step that was interrupted has no
stamp and is simply run again. pip's own index settings (files and environment) are honoured: no index is named here.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PYTHON_VERSION = (3, 11)  # the pinned lists hold wheels of this version
NEEDED_DISK_BYTES = 4 << 30

#: How vllm-ascend's source distribution is built: for a chip it knows, without compiling kernels.
VLLM_ASCEND_BUILD = {"SOC_VERSION": "ascend910b1", "COMPILE_CUSTOM_KERNELS": "0"}

#: The four distributions of this repository, in the order they are installed.
OWN_PACKAGES = (".", "manager", "kernels", "emulator")


class SetupError(Exception):
    """A condition the user has to mend; its text is the whole message."""


@dataclass(frozen=True)
class Step:
    """One resumable step.

    Attributes:
        name: stamp name.
        what: shown to the user: what is done, how big, about how long.
        inputs: whatever decides whether the step has to run again.
        run: does the work; raises on failure.
    """

    name: str
    what: str
    inputs: tuple[str, ...]
    run: Callable[[], None]

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps([self.name, *self.inputs]).encode()).hexdigest()


class Environment:
    """The virtual environment at `path` and what is done in it."""

    def __init__(self, path: Path, log: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self.stamps = path / ".setup"
        self.log = log

    def run(self, *command: str, env: dict[str, str] | None = None, expect: str = "") -> None:
        """Run a command with its output in the log file; on failure show the end of that output."""
        environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
        environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off", "PYTHONUNBUFFERED": "1"}
        # A package that registers itself with torch must not be loaded while we build and install.
        environment |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} | (env or {})
        with self.log.open("ab") as log:
            log.write(("\n$ " + " ".join(command) + "\n").encode())
            log.flush()
            start = log.tell()
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
                raise
        if code != 0:
            with self.log.open("rb") as log_file:
                log_file.seek(start)
                tail = log_file.read().decode(errors="replace").strip().splitlines()[-12:]
            hint = f"\n{expect}" if expect else ""
            raise SetupError(
                f"this command failed with exit code {code}:\n    {' '.join(command)}\nIts last lines:\n    "
                + "\n    ".join(tail)
                + f"\nThe whole output: {self.log}{hint}\nRun the same command again to resume at this step."
            )

    def pip(self, *arguments: str, env: dict[str, str] | None = None, expect: str = "") -> None:
        self.run(str(self.python), "-m", "pip", "install", *arguments, env=env, expect=expect)

    def done(self, step: Step) -> bool:
        try:
            return bool(json.loads((self.stamps / f"{step.name}.json").read_text())["key"] == step.key)
        except (OSError, ValueError, KeyError):
            return False

    def mark(self, step: Step, seconds: float) -> None:
        self.stamps.mkdir(parents=True, exist_ok=True)
        stamp = self.stamps / f"{step.name}.json"
        temporary = stamp.with_suffix(".tmp")
        temporary.write_text(
            json.dumps({"key": step.key, "seconds": round(seconds, 1), "inputs": step.inputs}, indent=1)
        )
        temporary.replace(stamp)


def requirement_text(*names: str) -> tuple[str, ...]:
    """The contents of requirement files, without comments: the part of them that decides about a reinstall."""
    lines: list[str] = []
    for name in names:
        for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                lines.append(line.split("#")[0].strip())
    return tuple(lines)


def pinned(name: str, distribution: str) -> str:
    for line in requirement_text(name):
        if line.partition("==")[0] == distribution:
            return line
    raise SetupError(f"requirements/{name}.txt does not pin {distribution}")


@contextlib.contextmanager
def path_without(tool: str) -> Iterator[str]:
    """PATH without `tool`: directories that hold it are left out, system ones replaced by links to all else in them."""
    kept: list[str] = []
    with tempfile.TemporaryDirectory(prefix="split-batch-path-") as scratch:
        for number, entry in enumerate(os.environ.get("PATH", os.defpath).split(os.pathsep)):
            if not entry or not (Path(entry) / tool).exists():
                kept.append(entry)
            elif entry in {"/usr/bin", "/usr/local/bin", "/bin"}:
                mirror = Path(scratch) / str(number)
                mirror.mkdir()
                for program in Path(entry).iterdir():
                    if program.name != tool:
                        with contextlib.suppress(OSError):
                            (mirror / program.name).symlink_to(program)
                kept.append(str(mirror))
        yield os.pathsep.join(kept)


def install_torch(environment: Environment) -> None:
    """torch, without its dependencies where it is a CPU build, with them where only a CUDA build is offered."""
    requirement = pinned("torch", "torch")
    environment.pip("--no-deps", requirement)
    probe = (
        "import importlib.metadata as m; "
        "print(any(r.startswith(('nvidia-', 'cuda-')) for r in m.requires('torch') or ()))"
    )
    cuda = subprocess.run(
        [str(environment.python), "-c", probe], capture_output=True, text=True, check=True
    ).stdout.strip()
    if cuda == "True":
        say("      the package index offers torch only as a CUDA build: it works here too, but is several GB.")
        say("      For the CPU build (200 MB): configure pip with PyTorch's CPU index, remove .venv, run this again.")
        environment.pip(requirement)


def vllm_build(requirement: str) -> dict[str, str]:
    """How vLLM's source distribution is built: without device kernels, named as the release it is."""
    return {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": requirement.partition("==")[2]}


def install_vllm(environment: Environment, requirements: str = "host") -> None:
    """vLLM as `requirements/<requirements>.txt` pins it, from its source distribution, without device kernels."""
    requirement = pinned(requirements, "vllm")
    # With cargo on the path the build would compile vLLM's Rust front end, which nothing here uses.
    with path_without("cargo") as path:
        environment.pip(
            "--no-deps",
            "--no-build-isolation",
            "--no-binary",
            "vllm",
            requirement,
            env={
                "PATH": str(environment.path / "bin") + os.pathsep + path,
                **vllm_build(requirement),
            },
        )


def install_vllm_ascend(environment: Environment, requirements: str = "host") -> None:
    """vllm-ascend as `requirements/<requirements>.txt` pins it, built from its sources without custom kernels."""
    environment.pip(
        "--no-deps",
        "--no-build-isolation",
        "--no-binary",
        "vllm-ascend",
        pinned(requirements, "vllm-ascend"),
        env=VLLM_ASCEND_BUILD,
    )


def install_own(environment: Environment) -> None:
    arguments = [argument for package in OWN_PACKAGES for argument in ("-e", str(ROOT / package))]
    environment.pip("--no-deps", "--no-build-isolation", *arguments)


def create_environment(environment: Environment) -> None:
    if environment.path.exists():
        shutil.rmtree(environment.path)
    environment.path.mkdir()
    environment.run(sys.executable, "-m", "venv", str(environment.path))


def requirement_step(environment: Environment, name: str, what: str) -> Step:
    def run() -> None:
        environment.pip("--no-deps", "-r", str(REQUIREMENTS / f"{name}.txt"))

    return Step(name, what, requirement_text(name), run)


def plan(environment: Environment, target: str) -> list[Step]:
    """The steps of a target, in order."""
    own_metadata = tuple(
        hashlib.sha256((ROOT / package / "pyproject.toml").read_bytes()).hexdigest() for package in OWN_PACKAGES
    )
    backend_sources = sorted((ROOT / "emulator" / "src" / "torch_npu_emulator" / "backend").rglob("*.[ch]pp"))
    backend_key = tuple(hashlib.sha256(source.read_bytes()).hexdigest() for source in backend_sources)
    location = str(ROOT)  # scripts in .venv/bin and editable installs hold absolute paths: a moved checkout starts anew
    steps = [
        Step(
            "venv",
            "virtual environment (.venv), a few seconds",
            (location, sys.version),
            lambda: create_environment(environment),
        ),
        Step(
            "torch",
            "torch (CPU build where one is offered: 200 MB, about 15 s)",
            requirement_text("torch"),
            lambda: install_torch(environment),
        ),
        requirement_step(
            environment, "host-dependencies", "the host's own dependencies (77 packages, 100 MB, about 25 s)"
        ),
        requirement_step(environment, "build", "build tools (a few MB, a few seconds)"),
        Step(
            "vllm",
            "vLLM from its source distribution, without device kernels (39 MB, about 15 s)",
            (pinned("host", "vllm"),),
            lambda: install_vllm(environment),
        ),
        Step(
            "vllm-ascend",
            "vllm-ascend from its source distribution (18 MB, about 10 s)",
            (pinned("host", "vllm-ascend"),),
            lambda: install_vllm_ascend(environment),
        ),
        requirement_step(environment, "manager", "what the extension manager needs (6 packages, 4 MB, a few seconds)"),
        Step(
            "own",
            "this repository's four distributions, editable (about 5 s)",
            own_metadata,
            lambda: install_own(environment),
        ),
        Step(
            "backend",
            "the emulated NPU's backend, compiled with g++ once per torch version (about 40 s)",
            backend_key,
            lambda: environment.run(str(environment.python), "-m", "torch_npu_emulator", "--build"),
        ),
    ]
    if target in {"demo", "test"}:
        steps.append(
            requirement_step(
                environment, "model", "GGUF reader for the one-time model conversion (a few MB, a few seconds)"
            )
        )
    if target == "test":
        steps.append(
            requirement_step(
                environment, "test", "test tools and Triton's interpreter (15 packages, 250 MB, about 30 s)"
            )
        )
    # A new environment has no stamps left, and a changed step invalidates what was built on it.
    return steps


def check_tools() -> None:
    """Refuse early, in one line, when something is missing that cannot be installed by pip."""
    if sys.version_info[:2] != PYTHON_VERSION:
        found = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(
            f"the demo and the tests run on Python {'.'.join(map(str, PYTHON_VERSION))}, this is {found}: install "
            "python3.11 (Debian: apt-get install python3.11 python3.11-venv) and run `make PYTHON=python3.11 ...`"
        )
    if sys.platform != "linux":
        raise SetupError(f"the host (vllm-ascend) runs on Linux only, this is {sys.platform}")
    missing = [tool for tool in ("g++", "git") if shutil.which(tool) is None]
    if missing:
        raise SetupError(f"{' and '.join(missing)} not found: install it (Debian: apt-get install {' '.join(missing)})")
    try:
        import ensurepip  # noqa: F401  (Debian ships Python without it)
        import venv  # noqa: F401
    except ImportError:
        raise SetupError(
            "this Python has no venv module: install it (Debian: apt-get install python3.11-venv)"
        ) from None
    import sysconfig

    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise SetupError("Python's C headers are missing: install them (Debian: apt-get install python3.11-dev)")
    if not (ROOT / ".venv").exists() and shutil.disk_usage(ROOT).free < NEEDED_DISK_BYTES:
        raise SetupError(f"about {NEEDED_DISK_BYTES >> 30} GB of free disk space are needed in {ROOT}")


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def heartbeat(prefix: str) -> Iterator[None]:
    """Show that a long step lives: seconds in place on a terminal, a line every half minute elsewhere."""
    stop = threading.Event()
    begin = time.monotonic()
    terminal = sys.stdout.isatty()

    def beat() -> None:
        interval = 1.0 if terminal else 30.0
        while not stop.wait(interval):
            elapsed = time.monotonic() - begin
            if terminal:
                print(f"\r{prefix} ... {elapsed:4.0f} s", end="", flush=True)
            else:
                say(f"{prefix} ... still at it after {elapsed:.0f} s")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if terminal:
            print("\r" + " " * (len(prefix) + 16) + "\r", end="", flush=True)


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Two set-ups at once in one checkout would undo each other."""
    lock = ROOT / ".venv.lock"
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another set-up in this checkout to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="setup_environment", description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="?", choices=("demo", "test"), default="demo")
    parser.add_argument("--status", action="store_true", help="print which steps are done, and stop")
    options = parser.parse_args(argv)
    # Ended from outside, the command in progress must not live on: a second set-up would meet it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        check_tools()
        environment = Environment(ROOT / ".venv", ROOT / ".venv.log")
        with only_one():
            steps = plan(environment, options.target)
            if options.status:
                for step in steps:
                    say(f"{'done   ' if environment.done(step) else 'to do  '} {step.what}")
                return 0
            remake = False
            todo = []
            for step in steps:
                # Everything after a step that runs again may rest on it.
                remake = remake or not environment.done(step)
                if remake:
                    todo.append(step)
            if not todo:
                return 0
            say(f"set-up: {len(todo)} of {len(steps)} steps to do (output: {environment.log.name})")
            begin = time.monotonic()
            for number, step in enumerate(todo, 1):
                prefix = f"  [{number}/{len(todo)}] {step.what}"
                if not sys.stdout.isatty():
                    say(prefix)
                started = time.monotonic()
                with heartbeat(prefix):
                    step.run()
                seconds = time.monotonic() - started
                environment.mark(step, seconds)
                say(f"{prefix}: {seconds:.0f} s" if sys.stdout.isatty() else f"      done in {seconds:.0f} s")
            say(f"set-up done in {time.monotonic() - begin:.0f} s")
        return 0
    except SetupError as error:
        say(f"set-up stopped: {error}")
        return 1
    except KeyboardInterrupt:
        say("\nset-up interrupted: run the same command again to go on from here")
        return 130


if __name__ == "__main__":
    sys.exit(main())
