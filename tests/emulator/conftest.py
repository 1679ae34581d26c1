"""Runs the tests of ``inside/`` in one child process on the emulated NPU, and reports each of them here.

The process of this session must not load the emulator (nothing that pytest was started with may depend on it), so the
files of ``inside/`` are not imported here: a child pytest, started through ``python -m torch_npu_emulator``, collects
them, and runs those that were selected once the first of them is due. To run them directly:
``python -m torch_npu_emulator -- python -m pytest tests/emulator/inside``.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
INSIDE = HERE / "inside"
ON_EMULATED_NPU = "TORCH_NPU_EMULATOR" in os.environ
RESULTS = "EMULATED_TESTS_RESULTS"
CHILD_SECONDS = 600


class ChildPytest:
    """The child's pytest: collects once, runs once."""

    def __init__(self, hypothesis_profile: str | None) -> None:
        self._options = [f"--hypothesis-profile={hypothesis_profile}"] if hypothesis_profile else []
        self._collected: dict[str, list[str]] | None = None
        self._results: dict[str, dict[str, Any]] | None = None
        self._output = ""

    def tests_of(self, path: pathlib.Path) -> list[str]:
        """Node ids below a file, such as ``TestA::test_b[c]``."""
        if self._collected is None:
            lines = self._run(["--collect-only", str(INSIDE)])
            self._collected = {}
            for line in lines:
                file, _, name = line["collected"].partition("::")
                self._collected.setdefault(str(ROOT / file), []).append(name)
            if not lines:
                raise RuntimeError(f"nothing was collected on the emulated NPU:\n{self._output}")
        return self._collected.get(str(path), [])

    def result_of(self, node_id: str, selected: list[str]) -> dict[str, Any]:
        if self._results is None:
            self._results = {line["node_id"]: line for line in self._run(selected)}
        if node_id not in self._results:
            raise RuntimeError(f"the child process ended without running {node_id}:\n{self._output}")
        return self._results[node_id]

    def _run(self, arguments: list[str]) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "results.jsonl"
            # Node ids go through a file: there may be more than a command line takes.
            listed = pathlib.Path(folder) / "arguments"
            listed.write_text("\n".join(arguments), encoding="utf-8")
            # float32 attention lets references be compared closely; one test shows that it is off by default.
            env = {**os.environ, RESULTS: str(results), "NPU_EMU_FLOAT32_ATTENTION": "1"}
            command = [sys.executable, "-m", "torch_npu_emulator", "--", sys.executable, "-m", "pytest"]
            child = subprocess.run(
                [*command, "-q", "-p", "no:cacheprovider", *self._options, f"@{listed}"],
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=CHILD_SECONDS,
                check=False,
            )
            self._output = child.stdout[-20_000:]
            if not results.exists():
                return []
            return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


class EmulatedTest(pytest.Item):
    def runtest(self) -> None:
        child = self.config.stash[_CHILD]
        selected = [emulated_id(item) for item in self.session.items if isinstance(item, EmulatedTest)]
        result = child.result_of(emulated_id(self), selected)
        if result["outcome"] == "skipped":
            pytest.skip(result["text"])
        if result["outcome"] != "passed":
            raise EmulatedTestFailure(result["text"])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, EmulatedTestFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[pathlib.Path, None, str]:
        return self.path, None, self.name


class EmulatedTestFailure(Exception):
    """A test failed in the child; carries its report."""


class EmulatedFile(pytest.File):
    def collect(self) -> Iterator[EmulatedTest]:
        for name in self.config.stash[_CHILD].tests_of(self.path):
            yield EmulatedTest.from_parent(self, name=name)


_CHILD = pytest.StashKey[ChildPytest]()


def emulated_id(item: pytest.Item) -> str:
    return f"{item.path.relative_to(ROOT)}::{item.name}"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CHILD] = ChildPytest(config.getoption("--hypothesis-profile"))


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    if ON_EMULATED_NPU and collection_path.parent == HERE and collection_path.name.startswith("test_"):
        return True  # these start processes of their own
    return None


def pytest_pycollect_makemodule(module_path: pathlib.Path, parent: pytest.Collector) -> pytest.Collector | None:
    if module_path.parent == INSIDE and not ON_EMULATED_NPU:
        return EmulatedFile.from_parent(parent, path=module_path)
    return None


# ---- in the child: what the session above reads ---------------------------------------------------------------------


def _tell(line: dict[str, Any]) -> None:
    path = os.environ.get(RESULTS)
    if ON_EMULATED_NPU and path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        for item in session.items:
            _tell({"collected": item.nodeid})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        _tell({"node_id": report.nodeid, "outcome": report.outcome, "text": text})


@pytest.fixture
def run_emulated(tmp_path: pathlib.Path) -> Any:
    """Runs Python source in a process on the emulated NPU; returns the completed process."""

    def run(source: str, *, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(source, encoding="utf-8")
        return subprocess.run(
            [sys.executable, "-m", "torch_npu_emulator", "--", sys.executable, str(script)],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
