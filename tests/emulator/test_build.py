"""The build of the backend, with a compiler that is a script."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from torch_npu_emulator.backend import build

COMPILER = """#!/bin/sh
# Counts its calls, waits as asked, and writes its output file.
echo call >> "{log}"
sleep {seconds}
{failure}
while [ $# -gt 0 ]; do
  if [ "$1" = "-o" ]; then echo made > "$2"; fi
  shift
done
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes the fake compiler; returns where it logs its calls."""

    def make(seconds="0", failure=""):
        path, log = tmp_path / "g++-fake", tmp_path / "calls"
        path.write_text(COMPILER.format(log=log, seconds=seconds, failure=failure))
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        monkeypatch.setenv("NPU_EMU_CACHE", str(tmp_path / "cache"))
        return log

    return make


def files(cache: pathlib.Path) -> set[str]:
    return {path.name.split("-")[0] + path.suffix for path in cache.iterdir()}


COMMAND = [sys.executable, "-m", "torch_npu_emulator", "--build"]


def test_is_done_once_and_says_so(compiler, tmp_path):
    log, said = compiler(), []
    first = build.ensure_backend(said.append)
    assert first.read_text() == "made\n"
    assert len(said) == 2
    assert said[0].startswith("building the emulated NPU backend with ")
    assert f"once (kept in {tmp_path / 'cache'})" in said[0]
    calls = len(log.read_text().splitlines())
    assert calls == len(build.UNITS) + 1
    assert build.ensure_backend(said.append) == first
    assert len(log.read_text().splitlines()) == calls
    assert len(said) == 2


def test_a_changed_compiler_builds_anew(compiler):
    compiler()
    first = build.ensure_backend(lambda line: None)
    compiler(failure="true")
    assert build.ensure_backend(lambda line: None) != first


def test_processes_at_the_same_time_build_once(compiler, tmp_path):
    log = compiler(seconds="0.2")
    children = [subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {child.communicate(timeout=60)[0] for child in children}
    assert len(outputs) == 1
    assert len(log.read_text().splitlines()) == len(build.UNITS) + 1


def test_a_failure_is_one_line_and_leaves_nothing(compiler, tmp_path):
    compiler(failure='echo "source.cpp:1: error: something is wrong" >&2; exit 1')
    result = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "torch-npu-emulator: the compiler failed: source.cpp:1: error: something is wrong (whole output: "
    )
    pathlib.Path(last.split("whole output: ")[1].rstrip(")")).unlink()
    assert files(tmp_path / "cache") <= {"npu_backend.lock"}


def test_an_interrupt_leaves_nothing(compiler, tmp_path):
    log = compiler(seconds="30")
    child = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + 30
    while not log.exists() and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGINT)
    _, error = child.communicate(timeout=30)
    assert child.returncode == 130
    assert error.strip().splitlines()[-1] == "torch-npu-emulator: interrupted"
    assert files(tmp_path / "cache") <= {"npu_backend.lock"}


def test_no_compiler_is_one_line_that_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "made-up-compiler")
    monkeypatch.setenv("NPU_EMU_CACHE", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"made-up-compiler was not found.*apt install g\+\+"):
        build.ensure_backend(lambda line: None)


def test_a_cache_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NPU_EMU_CACHE", str(tmp_path / "file" / "folder"))
    with pytest.raises(build.BuildError, match=r"cannot be made .*: set NPU_EMU_CACHE"):
        build.ensure_backend(lambda line: None)


def test_the_default_cache_is_the_users(monkeypatch):
    monkeypatch.delenv("NPU_EMU_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert build.cache_folder() == pathlib.Path("/somewhere/torch-npu-emulator")


def test_the_key_names_torch_and_changes_with_the_sources(tmp_path, monkeypatch):
    torch = build.Torch(pathlib.Path("/torch"), "2.13.0+cpu")
    key = build._key(torch, "g++")
    assert key.startswith("torch2.13.0_cpu-")
    assert build._key(build.Torch(torch.folder, "2.13.1+cpu"), "g++") != key
    (tmp_path / "npu_backend.cpp").write_text("other")
    monkeypatch.setattr(build, "_source_folder", lambda: tmp_path)
    assert build._key(torch, "g++") != key
