"""Runs the tests of `inside_host/` in one child process on the emulated NPU: the host's own classes, no engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

INSIDE = Path(__file__).with_name("inside_host")
ROOT = INSIDE.parents[2]
FILES = sorted(path.stem for path in INSIDE.glob("test_*.py"))
CHILD_SECONDS = 600


@pytest.fixture(scope="module")
def child(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> tuple[dict[str, list[ElementTree.Element]], str]:
    """(test cases by file, the child's output)."""
    import torch_npu_emulator

    results = tmp_path_factory.mktemp("inside-host") / "results.xml"
    base = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "NPU_EMU_"))}
    # The platform, and no general plugin: carriers are loaded by the tests themselves.
    environment = torch_npu_emulator.environment(base | {"NPU_EMU_FLOAT32_ATTENTION": "1", "VLLM_PLUGINS": "ascend"})
    del environment["TORCHINDUCTOR_AUTOGRAD_CACHE"]  # the guard's tests need torch's own default
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}", str(INSIDE)]
    profile = pytestconfig.getoption("--hypothesis-profile")
    command += [f"--hypothesis-profile={profile}"] if profile else []
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
    )
    output = ran.stdout[-20000:] + ran.stderr[-4000:]
    assert results.exists(), f"the child pytest ended with code {ran.returncode}:\n{output}"
    cases: dict[str, list[ElementTree.Element]] = {name: [] for name in FILES}
    for case in ElementTree.parse(results).iter("testcase"):
        name = next((part for part in case.get("classname", "").split(".") if part in cases), None)
        assert name is not None, f"a test outside of the known files: {case.attrib}\n{output}"
        cases[name].append(case)
    return cases, output


@pytest.mark.parametrize("file", FILES)
def test_inside_the_host(file, child):
    cases, output = child
    assert cases[file], f"nothing ran:\n{output}"
    not_passed = [case.get("name") for case in cases[file] if len(case)]
    assert not_passed == [], output
