"""Builds the backend with g++, once, into a cache folder.

The compiled file depends on the torch it was compiled against, on the sources, on the compiler and on the machine it
was tuned for; all four are in its name, so that several environments share one cache folder and an upgrade of any
of them builds anew. A build happens in a temporary folder and is moved into place when it is complete.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import filelock
import platformdirs

# Files of one unit are compiled together: most of a compilation is reading torch's headers.
UNITS = {
    "attention": ("attention.cpp", "attention_plan.cpp", "linear.cpp"),
    "rows": ("row_operators.cpp", "direct_rows.cpp", "direct_merge.cpp", "argmax.cpp"),
    "device": ("npu_backend.cpp", "fallback.cpp", "direct.cpp"),
    "graphs": (
        "memory_block.cpp",
        "graph_pool.cpp",
        "streams.cpp",
        "tape.cpp",
        "replay.cpp",
        "capture.cpp",
        "captured_call.cpp",
        "task_update.cpp",
        "graph_api.cpp",
    ),
}
COMPILER_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fopenmp", "-march=native", "-fno-math-errno", "-fno-trapping-math")
# The compiler's default for many x86 processors are half as wide vectors as they have.
MACHINE_FLAGS = {"x86_64": ("-mprefer-vector-width=512",)}
LIBRARIES = ("-ltorch", "-ltorch_cpu", "-lc10")

CACHE_VARIABLE = "NPU_EMU_CACHE"


class BuildError(RuntimeError):
    """The backend cannot be built here; the message is one line that says what to do."""


@dataclass(frozen=True)
class Torch:
    """The torch of this environment, found without importing it (which would take seconds)."""

    folder: Path
    version: str

    @classmethod
    def find(cls) -> Torch:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            raise BuildError(f"torch is not installed for {sys.executable}: pip install 'torch>=2.13,<2.14'")
        return cls(Path(spec.origin).parent, importlib.metadata.version("torch"))


def cache_folder() -> Path:
    """Where compiled backends are kept: ``NPU_EMU_CACHE``, or the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("torch-npu-emulator"))


def ensure_backend(report: Callable[[str], None] | None = None) -> Path:
    """Returns the compiled backend for this environment; builds it first where the cache has none.

    Processes that start at the same time wait for the one that builds. ``report`` receives progress lines
    (default: to standard error). Raises `BuildError`.
    """
    say = report or _to_stderr
    torch = Torch.find()
    compiler = os.environ.get("CXX") or "g++"
    folder = cache_folder()
    target = folder / f"npu_backend-{_key(torch, compiler)}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(
            f"the cache folder {folder} cannot be made ({error.strerror}): set {CACHE_VARIABLE}"
        ) from error
    with filelock.FileLock(target.with_suffix(".lock")):
        if not target.exists():
            say(
                f"building the emulated NPU backend with {compiler} for torch {torch.version}, about 40 s, "
                f"once (kept in {folder})"
            )
            start = time.monotonic()
            _build(torch, compiler, target)
            say(f"built the emulated NPU backend in {time.monotonic() - start:.0f} s")
    return target


def _to_stderr(line: str) -> None:
    print(f"torch-npu-emulator: {line}", file=sys.stderr, flush=True)


def _source_folder() -> Path:
    return Path(__file__).parent


def _key(torch: Torch, compiler: str) -> str:
    digest = hashlib.sha256()
    for source in sorted(_source_folder().glob("*")):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    digest.update(" ".join((*_flags(), _compiler_version(compiler))).encode())
    digest.update(_processor_features().encode())
    return f"torch{torch.version}-{platform.machine()}-{digest.hexdigest()[:16]}".replace("+", "_")


def _flags() -> tuple[str, ...]:
    return COMPILER_FLAGS + MACHINE_FLAGS.get(platform.machine(), ())


def _compiler_version(compiler: str) -> str:
    """Name, size and age of the compiler's file: as telling as its --version, without starting it."""
    path = shutil.which(compiler)
    if path is None:
        return "none"
    status = os.stat(path)
    return f"{os.path.realpath(path)} {status.st_size} {int(status.st_mtime)}"


def _processor_features() -> str:
    """What -march=native depends on."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return line
    except OSError:
        pass
    return platform.processor()


def _build(torch: Torch, compiler: str, target: Path) -> None:
    if shutil.which(compiler) is None:
        raise BuildError(
            f"{compiler} was not found, the emulated NPU backend is built with it: "
            "install it (Debian and Ubuntu: apt install g++; Fedora and openEuler: dnf install gcc-c++)"
        )
    include = [f"-I{torch.folder}/include", f"-I{torch.folder}/include/torch/csrc/api/include"]
    # No rpath: the backend is loaded into a process that has torch's libraries already, so that copies of an
    # environment share one build.
    link = [f"-L{torch.folder}/lib", *LIBRARIES, "-Wl,--no-undefined"]
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as work:
        objects, compiles = [], []
        for unit, sources in UNITS.items():
            whole = Path(work) / f"{unit}.cpp"
            includes = [f'#include "{_source_folder() / source}"\n' for source in sources]
            whole.write_text("".join(includes), encoding="utf-8")
            objects.append(f"{work}/{unit}.o")
            compiles.append([compiler, *_flags(), *include, "-c", str(whole), "-o", objects[-1]])
        _run_all(compiles, work)
        library = f"{work}/npu_backend.so"
        _run_all([[compiler, "-shared", "-fopenmp", *objects, *link, "-o", library]], work)
        os.replace(library, target)


def _run_all(commands: list[list[str]], work: str) -> None:
    """Runs the commands side by side, at most one per core; none outlives an error or an interrupt."""
    waiting = list(commands)
    running: list[subprocess.Popen[bytes]] = []
    log_path = f"{work}/compiler.log"
    try:
        with open(log_path, "ab") as log:
            while waiting or running:
                while waiting and len(running) < (os.cpu_count() or 1):
                    command = waiting.pop(0)
                    running.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
                for process in list(running):
                    if process.poll() is not None:
                        running.remove(process)
                        if process.returncode != 0:
                            raise BuildError(_failure(log_path, process))
                time.sleep(0.02)
    finally:
        for process in running:
            process.kill()
            process.wait()


def _failure(log_path: str, process: subprocess.Popen[bytes]) -> str:
    kept = Path(tempfile.gettempdir()) / f"torch-npu-emulator-build-{os.getpid()}.log"
    shutil.copyfile(log_path, kept)
    first = next(
        (line for line in kept.read_text(errors="replace").splitlines() if "error" in line.lower()),
        f"exit status {process.returncode}",
    )
    return f"the compiler failed: {first.strip()} (whole output: {kept})"
