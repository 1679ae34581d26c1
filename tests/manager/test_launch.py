"""``run`` replaces itself by the command: process id, signals, exit codes and streams are the command's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .scratch import Scratch, make_venv, manifest


def start(scratch: Scratch, *command: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        scratch.command("run", "--", *command),
        env=scratch.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("code", [0, 1, 3, 42, 255])
def test_exit_codes_are_the_commands_own(scratch: Scratch, code: int) -> None:
    assert scratch.run("run", "--", "python", "-c", f"raise SystemExit({code})").code == code


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGQUIT, signal.SIGUSR1]
)
def test_signals_reach_the_command_itself(scratch: Scratch, number: signal.Signals) -> None:
    """Unhandled, they end it as a signal does."""
    body = (
        "import signal, time, os; signal.signal(signal.SIGINT, signal.SIG_DFL); print(os.getpid(),"
        " flush=True); time.sleep(60)"
    )
    process = start(scratch, "python", "-c", body)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid  # exec: no process in between
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == -number


def test_a_handler_of_the_command_decides(scratch: Scratch) -> None:
    body = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: (os.write(1, b'drained\\n'), os._exit(7)))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = start(scratch, "python", "-c", body)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("drained\n", "", 7)


def test_streams_and_working_folder_pass_through(scratch: Scratch, tmp_path: Path) -> None:
    body = "import sys, os; print(sys.stdin.read(), os.getcwd()); print('e', file=sys.stderr)"
    done = scratch.run("run", "--", "python", "-c", body, stdin="hello", cwd=tmp_path)
    assert done.out == f"hello {tmp_path}\n"
    assert done.err == "e\n"


def test_ignored_signals_are_given_back(scratch: Scratch) -> None:
    """Python ignores SIGPIPE for itself; a command must not inherit that."""
    body = "import re; print(re.search('SigIgn:\\\\s*([0-9a-f]+)', open('/proc/self/status').read()).group(1))"
    shell = scratch.run("run", "--", "sh", "-c", "grep SigIgn /proc/$$/status")
    assert int(shell.out.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0, body


def test_own_commands_come_before_path(own_scratch: Scratch, tmp_path: Path) -> None:
    own_scratch.program("vllm", "import sys; print('mine', sys.prefix)")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "vllm").write_text("#!/bin/sh\necho theirs\n")
    (elsewhere / "vllm").chmod(0o755)
    env = {"PATH": f"{elsewhere}:/usr/bin:/bin"}
    done = own_scratch.run("run", "--", "vllm", "serve", env=env)
    assert done.out == f"mine {own_scratch.venv}\n"
    # a command that is no Python program and is only on PATH is taken from there
    (elsewhere / "tool").write_text("#!/bin/sh\necho tool\n")
    (elsewhere / "tool").chmod(0o755)
    assert own_scratch.run("run", "--", "tool", env=env).out == "tool\n"


@pytest.mark.parametrize("shape", ["plain", "long", "env"])
def test_a_command_of_another_interpreter_is_refused(
    scratch: Scratch, tmp_path: Path, shared_venv: Path, shape: str
) -> None:
    other = make_venv(tmp_path / "other")
    folder = tmp_path / "bin"
    folder.mkdir()
    python = other / "bin" / "python"
    head = {
        "plain": f"#!{python}\n",
        "long": f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "env": "#!/usr/bin/env python\n",
    }[shape]
    (folder / "vllm").write_text(head + "print('started')\n")
    (folder / "vllm").chmod(0o755)
    env = {"PATH": f"{folder}:{other / 'bin'}:/usr/bin:/bin"}
    for command in ("vllm", str(folder / "vllm")):
        done = scratch.run("run", "--", command, "serve", env=env)
        assert (done.code, done.out) == (3, ""), done.err
        assert f"--python {python}" in done.err
    # the way out that the message names works
    done = scratch.run("run", "--python", str(python), "--", "vllm", "serve", env=env)
    assert (done.code, done.out) == (0, "started\n"), done.err


def test_another_python_is_refused_by_path(scratch: Scratch, tmp_path: Path) -> None:
    other = make_venv(tmp_path / "other")
    assert scratch.run("run", "--", str(other / "bin" / "python"), "-c", "print(1)").code == 3
    assert scratch.run("run", "--", str(scratch.python), "-c", "print(1)").out == "1\n"


def test_python_means_the_inspected_environments(scratch: Scratch) -> None:
    done = scratch.run("run", "--", "python", "-c", "import sys; print(sys.prefix)", env={"PATH": "/usr/bin:/bin"})
    assert done.out == f"{scratch.venv}\n"


def test_commands_that_do_not_exist_or_cannot_run(scratch: Scratch, tmp_path: Path) -> None:
    assert scratch.run("run", "--", "no-such-command").code == 2
    assert scratch.run("run", "--", "./no/such/path").code == 2
    assert scratch.run("run").code == 2
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert scratch.run("run", "--", str(plain)).code == 2
    plain.chmod(0o755)
    assert scratch.run("run", "--", str(plain)).code == 4  # no interpreter line
    gone = tmp_path / "gone"
    gone.write_text("#!/no/such/interpreter\n")
    gone.chmod(0o755)
    assert scratch.run("run", "--", str(gone)).code == 4


def test_other_environment_is_inspected_and_launched(scratch: Scratch, tmp_path: Path) -> None:
    from .scratch import Site

    other = make_venv(tmp_path / "other")
    site = Site(next((other / "lib").glob("python*/site-packages")))
    site.host()
    site.extension(manifest("org.there"), distribution="there", package="one")
    scratch.site.extension()
    env = {"PYTHONPATH": None}
    done = scratch.run("extension", "list", "--json", "--python", str(other / "bin" / "python"), env=env)
    assert [e["bundle_id"] for e in done.json["extensions"]] == ["org.there"]
    assert done.json["environment"]["prefix"] == str(other)
    for wrong in ("/no/such/python", "/bin/true", "/bin/false", str(tmp_path)):
        assert scratch.run("extension", "list", "--python", wrong).code == 2


def test_dry_run_starts_nothing_and_shows_a_diff(scratch: Scratch, tmp_path: Path) -> None:
    scratch.site.host()
    scratch.site.extension(
        manifest(activation={"environment": {"EXAMPLE_ONE": "1", "MINE": "2"}, "additional_config": {"k": 1}})
    )
    scratch.extension("enable", "org.example.one")
    marker = tmp_path / "marker"
    command = ("python", "-c", f"open({str(marker)!r}, 'w')")
    done = scratch.run("run", "--dry-run", "--", *command, env={"MINE": "0"})
    assert done.code == 0
    assert not marker.exists()
    assert not scratch.state.exists()
    assert "+ EXAMPLE_ONE=1" in done.out
    assert "= MINE=0" in done.out
    assert "org.example.one asks for 2; left because you exported it" in " ".join(done.out.split())
    assert "not passed: --additional-config" in " ".join(done.out.split())


def test_dry_run_of_vllm(own_scratch: Scratch) -> None:
    own_scratch.site.host()
    own_scratch.program("vllm", "print('started')")
    own_scratch.site.extension(manifest(activation={"additional_config": {"k": 1}}))
    own_scratch.extension("enable", "org.example.one")
    done = own_scratch.run("run", "--dry-run", "--json", "--", "vllm", "serve", "m", "--additional_config.u", "2")
    assert done.code == 0
    document = done.json
    assert document["would_launch"]
    assert document["program"] == str(own_scratch.venv / "bin" / "vllm")
    assert document["plan"]["command"] == ["vllm", "serve", "m", "--additional-config", '{"k":1,"u":2}']
    conflict = own_scratch.run("run", "--dry-run", "--json", "--", "vllm", "serve", "m", "--additional-config.k", "2")
    assert conflict.code == 3
    assert not conflict.json["would_launch"]
    assert own_scratch.run("run", "--", "vllm", "serve", "m", "--additional-config.k", "2").out == ""


def test_strict_environ_validation_gets_no_unknown_names(own_scratch: Scratch) -> None:
    own_scratch.program("vllm", "import os; print(sorted(k for k in os.environ if k.startswith('VLLM_HUST_EXT_')))")
    done = own_scratch.run("run", "--", "vllm", "serve", "m", "--fail-on-environ-validation")
    assert done.out == "['VLLM_HUST_EXT_CONFIG', 'VLLM_HUST_EXT_STATE_DIR']\n"
    assert "--fail-on-environ-validation" in done.err


def test_json_goes_with_dry_run_only(scratch: Scratch) -> None:
    assert scratch.run("run", "--json", "--", "python", "-c", "pass").code == 2


def test_options_of_the_command_are_not_the_managers(scratch: Scratch) -> None:
    done = scratch.run(
        "run", "--", "python", "-c", ("import sys; print(sys.argv[1:])"), "--json", "--dry-run", "--with", "x"
    )
    assert done.out == "['--json', '--dry-run', '--with', 'x']\n"


def test_a_private_report_folder_per_launch(scratch: Scratch) -> None:
    body = (
        "import os; d = os.environ['VLLM_HUST_EXT_REPORT_DIR']; print(d);"
        " print(oct(os.stat(d).st_mode & 0o777)); print(os.environ['VLLM_HUST_EXT_LAUNCH_ID'])"
    )
    first, second = (scratch.run("run", "--", "python", "-c", body).out.splitlines() for _ in range(2))
    assert first[0] != second[0]
    assert first[0] == str(scratch.state / "launches" / first[2])
    assert first[1] == "0o700"
    mine = scratch.run(
        "run",
        "--",
        "python",
        "-c",
        "import os; print(os.environ['VLLM_HUST_EXT_REPORT_DIR'])",
        env={"VLLM_HUST_EXT_REPORT_DIR": "/x"},
    )
    assert mine.out == "/x\n"


def test_nested_run_works(scratch: Scratch) -> None:
    """A launch inside a launch gets an id of its own; the report folder that is exported stays."""
    inner = [str(scratch.python), "-m", "vllm_hust_ext", "run", "--", "python", "-c", "print('inner')"]
    done = scratch.run("run", "--", *inner)
    assert (done.code, done.out) == (0, "inner\n"), done.err


def test_interrupt_while_the_manager_itself_works(scratch: Scratch) -> None:
    process = subprocess.Popen(
        scratch.command("extension", "status", "--watch", "--interval", "30"), env=scratch.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == ""


def test_interpreters_of_one_base_are_told_apart() -> None:
    """All virtual environments of one Python link to one file: it is the folder that counts."""
    from vllm_hust_ext import environment, launch

    here = environment.current()
    assert launch.belongs(Path(sys.executable), here)
    base = Path(os.path.realpath(sys.executable))
    if here.prefix != here.base_prefix and base.parent != Path(sys.executable).parent:
        assert not launch.belongs(base, here)
