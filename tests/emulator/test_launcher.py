"""``python -m torch_npu_emulator``: exec, exit codes, refusals, and what it sets."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import torch_npu_emulator
from torch_npu_emulator.environment import SITE, EmulatorRefused, refuse_real_npu, refuse_settings

COMMAND = [sys.executable, "-m", "torch_npu_emulator"]


def launch(*arguments, **env):
    return subprocess.run(
        [*COMMAND, *arguments], env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False
    )


def one_line(result, status):
    assert result.returncode == status
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    return lines[-1]


def test_the_commands_exit_status_is_its_own():
    assert launch("--", "sh", "-c", "exit 7").returncode == 7
    assert launch("--", "true").returncode == 0


def test_the_command_replaces_the_launcher():
    """The same process id: signals reach the command."""
    script = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    child = subprocess.Popen([*COMMAND, "--", sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert int(child.stdout.readline()) == child.pid
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=30) == -signal.SIGTERM
    child.stdout.close()


def test_arguments_are_passed_as_they_are():
    result = launch("--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--", "-x", "a b")
    assert result.stdout.strip() == "['--', '-x', 'a b']"


def test_no_command():
    line = one_line(launch(), 2)
    assert line == "torch-npu-emulator: no command given: put it after '--', as in: -- vllm serve MODEL --enforce-eager"


def test_commands_of_the_same_environment_come_first(tmp_path):
    """An environment that is not activated is not on the PATH."""
    (tmp_path / "python").write_text("#!/bin/sh\necho another\n")
    (tmp_path / "python").chmod(0o755)
    result = launch("--", "python", "-c", "import sys; print(sys.executable)", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert os.path.dirname(result.stdout.strip()) == os.path.dirname(sys.executable)



def test_a_command_that_does_not_exist():
    assert one_line(launch("--", "made-up-command"), 127) == "torch-npu-emulator: command not found: made-up-command"


def test_a_command_that_cannot_be_run(tmp_path):
    path = tmp_path / "tool"
    path.write_text("\0 no program")
    path.chmod(0o755)
    assert "tool cannot be run: Exec format error" in one_line(launch("--", str(path)), 127)


def test_an_unknown_option_is_a_wrong_use():
    assert launch("--made-up").returncode == 2


def test_version():
    assert launch("--version").stdout.strip() == f"torch-npu-emulator {torch_npu_emulator.__version__}"


class TestEnvironment:
    def test_sets_what_loads_the_emulator_and_keeps_the_rest(self):
        result = torch_npu_emulator.environment({"PYTHONPATH": "/mine", "OTHER": "x"})
        paths = result["PYTHONPATH"].split(os.pathsep)
        assert paths[0].endswith("site")
        assert paths[1].endswith("site_kernels")
        assert paths[2:] == ["/mine"]
        assert result["OTHER"] == "x"
        assert result["TORCHINDUCTOR_AUTOGRAD_CACHE"] == "0"
        assert result["TORCH_NPU_EMULATOR"] == torch_npu_emulator.__version__
        assert pathlib.Path(result["NPU_EMU_BACKEND"]).is_file()

    def test_twice_is_once(self):
        once = torch_npu_emulator.environment({})
        assert torch_npu_emulator.environment(once) == once

    def test_the_kernels_can_be_left_out(self):
        for result in (
            torch_npu_emulator.environment({}, kernels=False),
            torch_npu_emulator.environment({"NPU_EMU_KERNELS": "none"}),
        ):
            assert "site_kernels" not in result["PYTHONPATH"]
            assert result["NPU_EMU_KERNELS"] == "none"

    def test_the_given_mapping_is_not_changed(self):
        base = {"A": "1"}
        torch_npu_emulator.environment(base)
        assert base == {"A": "1"}

    def test_printed_for_a_shell_and_as_json(self):
        printed = launch("--print-env", PYTHONPATH="/with space")
        expected = json.loads(launch("--print-env", "--format", "json", PYTHONPATH="/with space").stdout)
        shell = subprocess.run(
            ["sh", "-c", 'eval "$1"; printf "%s\\n" "$PYTHONPATH" "$NPU_EMU_BACKEND"', "sh", printed.stdout],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shell.stdout.splitlines() == [expected["PYTHONPATH"], expected["NPU_EMU_BACKEND"]]


class TestRefusals:
    @pytest.mark.parametrize("name", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
    def test_cann_in_the_environment(self, name):
        line = one_line(launch("--", "true", **{name: "/opt/cann"}), 1)
        assert line.startswith(f"torch-npu-emulator: {name}=/opt/cann points at a CANN toolkit")

    def test_cann_in_its_usual_place(self, tmp_path):
        with pytest.raises(EmulatorRefused, match=f"CANN is installed in {tmp_path}"):
            refuse_real_npu({}, cann_folder=tmp_path)
        refuse_real_npu({}, cann_folder=tmp_path / "absent")

    def test_a_real_torch_npu(self, tmp_path):
        metadata = tmp_path / "torch_npu-2.10.0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.10.0\n")
        line = one_line(launch("--", "true", PYTHONPATH=str(tmp_path)), 1)
        assert line.startswith("torch-npu-emulator: torch-npu 2.10.0 is installed here")

    def test_autoload_switched_off(self):
        line = one_line(launch("--", "true", TORCH_DEVICE_BACKEND_AUTOLOAD="0"), 1)
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set" in line

    def test_a_wrong_choice_of_kernels(self):
        line = one_line(launch("--", "true", NPU_EMU_KERNELS="fast"), 1)
        assert line.endswith("NPU_EMU_KERNELS='fast': accepted are 'reference', 'triton' and 'none'")


def test_nothing_of_the_site_folder_is_installed_at_the_top_level():
    """In a process that the launcher did not start there is no torch_npu."""
    code = "import importlib.util as u; print([u.find_spec(n) for n in ('torch_npu', 'acl', 'torchair')])"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[None, None, None]"


def test_the_site_folders_own_distribution_has_the_packages_version():
    folders = list(SITE.glob("*.dist-info"))
    assert [f.name for f in folders] == [f"torch_npu_emulator-{torch_npu_emulator.__version__}.dist-info"]
    metadata = (folders[0] / "METADATA").read_text().splitlines()
    assert f"Version: {torch_npu_emulator.__version__}" in metadata
    assert "Name: torch-npu-emulator" in metadata


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NPU_EMU_DEVICES", "zero"),
        ("NPU_EMU_TOTAL_GIB", "-1"),
        ("NPU_EMU_TRITON", "x"),
        ("NPU_EMU_FAULT", "nope"),
        ("NPU_EMU_DEVICE_LIMITS", "yes"),
        ("NPU_EMU_FLOAT32_ATTENTION", "true"),
    ],
)
def test_an_unreadable_setting_is_refused_before_the_command_starts(name, value):
    """Every process would refuse it at `import torch`, behind torch's own traceback."""
    with pytest.raises(EmulatorRefused, match=f"{name}.*{value}"):
        refuse_settings({name: value})


@pytest.mark.parametrize("name", ["NPU_EMU_COUNTERS", "NPU_EMU_OPLOG"])
def test_a_place_that_cannot_be_written_to_is_refused(name, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EmulatorRefused, match=f"{name}=.*file/x.*cannot be written to .Not a directory"):
        refuse_settings({name: str(tmp_path / "file" / "x" / "y")})


def test_readable_settings_are_accepted(tmp_path):
    refuse_settings({"NPU_EMU_DEVICES": "2", "NPU_EMU_FAULT": "lse_shift", "NPU_EMU_COUNTERS": str(tmp_path / "new")})
    refuse_settings({})
