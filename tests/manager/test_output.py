"""What reaches the user: clean JSON, 80 columns, colours on a terminal only, exit codes, never a traceback."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from typing import Any

import pytest

from .scratch import Scratch, manifest

ID = "org.example.one"

COMMANDS: list[list[str]] = [
    ["extension", "list"],
    ["extension", "inspect", ID],
    ["extension", "validate", ID],
    ["extension", "check", ID],
    ["extension", "why", ID],
    ["extension", "status"],
    ["extension", "status", ID],
    ["extension", "enable", ID],
    ["extension", "plan", ID],
    ["extension", "render", ID],
    ["extension", "render", "--format", "dotenv"],
    ["extension", "env"],
    ["run", "--dry-run"],
    ["doctor"],
    ["extension", "disable", ID],
    ["extension", "mask", ID],
    ["extension", "disable", ID],
    ["extension", "forget", ID],
    ["completion", "bash"],
]


@pytest.fixture
def full(scratch: Scratch) -> Scratch:
    scratch.site.host()
    scratch.site.extension(
        manifest(activation={"environment": {"EXAMPLE_ONE": "1"}, "additional_config": {"k": {"deep": [1]}}})
    )
    scratch.site.extension(b"{", distribution="bad", entry_name="org.bad")
    scratch.site.install("bare", entry_points={"vllm.general_plugins": {"bare": "bare:load"}})
    return scratch


def complete(command: list[str]) -> list[str]:
    return [*command, "--", "python", "-c", "pass"] if command[0] == "run" else command


def test_every_command_prints_one_json_document(full: Scratch) -> None:
    seen = set()
    for command in COMMANDS:
        with_json = [*command, "--json"] if command[0] != "run" else ["run", "--json", "--dry-run"]
        done = full.run(*complete(with_json))
        document = done.json  # the whole of stdout is one document
        assert next(iter(document)) == "schema"
        assert re.fullmatch(r"vllm-hust-ext\.[a-z-]+/1", document["schema"])
        assert "\x1b" not in done.out
        assert done.code in (0, 1), (command, done.err)
        seen.add(document["schema"])
    assert len(seen) >= 13
    assert full.run("schema", "manifest-0.2", "--json").out.startswith("{")


def test_errors_are_documents_too(full: Scratch) -> None:
    for command, code in (
        (["extension", "inspect", "nope", "--json"], 1),
        (["extension", "inspect", "--json"], 2),
        (["extension", "nonsense", "--json"], 2),
        (["extension", "inspect", "org.bad", "--json"], 4),
        (["run", "--json", "--dry-run", "--with", "org.bad", "--", "true"], 4),
    ):
        done = full.run(*command)
        assert done.code == code, done.err
        error = done.json["error"]
        assert error["exit_code"] == code
        assert error["message"]
        assert done.err.startswith("error: ")


def test_text_is_legible_at_80_columns(full: Scratch) -> None:
    """No line is longer than 80 columns, but for names, paths and commands that must stay whole to be copied."""
    full.extension("enable", ID)
    for command in (
        ["extension", "inspect", ID],
        ["extension", "why", ID],
        ["extension", "check", ID],
        ["extension", "status"],
        ["doctor"],
    ):
        done = full.run(*command)
        for line in done.out.splitlines():
            longest = max((len(word) for word in line.split()), default=0)
            assert len(line) <= 80 or longest > 40, line


def terminal(scratch: Scratch, *arguments: str, columns: int = 80) -> str:
    """Run the manager on a pseudo terminal of so many columns."""
    controller, side = pty.openpty()
    env = scratch.environment({"COLUMNS": None, "TERM": "xterm"})
    import fcntl
    import struct
    import termios

    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(scratch.command(*arguments), env=env, stdout=side, stderr=subprocess.PIPE, stdin=side)
    os.close(side)
    data = b""
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:
            break
        if not chunk:
            break
        data += chunk
    process.wait(30)
    os.close(controller)
    return data.decode().replace("\r\n", "\n")


def test_on_a_terminal_there_are_colours_and_tables_that_fit(full: Scratch) -> None:
    text = terminal(full, "extension", "list")
    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "org.example.one" in plain.replace("\n", "")
    assert all(len(line) <= 80 or len(line.strip().split(" ")[0]) > 40 for line in plain.splitlines()), plain
    assert "\x1b[" in terminal(full, "extension", "check", ID)
    assert "\x1b[" not in terminal(full, "extension", "list", "--json")
    assert "\x1b" not in full.extension("list").out


def test_nothing_hostile_reaches_the_terminal(scratch: Scratch) -> None:
    """Control characters in foreign documents are shown, not sent."""
    document = manifest(runtime={"type": "python", "process_scope": "\x1b[31mred\x07", "isolation": "x"})
    scratch.site.extension(document)
    done = scratch.extension("inspect", ID)
    assert "\x1b" not in done.out
    assert "\\x1b[31mred\\x07" in done.out.replace("\n", "")


@pytest.mark.parametrize("command", [["extension", "list"], ["doctor"], ["--help"], ["extension", "list", "--json"]])
def test_a_reader_that_goes_away(full: Scratch, command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        full.command(*command), env=full.environment(), stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + 13
    assert err == ""


def test_a_full_disk_and_closed_streams(full: Scratch) -> None:
    with open("/dev/full", "w") as sink:
        done = subprocess.run(
            full.command("extension", "list"),
            env=full.environment(),
            stdout=sink,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 4
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    quoted = " ".join(f"'{part}'" for part in full.command("extension", "list"))
    for closing in (">&-", "2>&-", ">&- 2>&-", "<&-"):
        closed = subprocess.run(
            ["sh", "-c", f"{quoted} {closing}"], env=full.environment(), capture_output=True, text=True, check=False
        )
        assert closed.returncode == 0, closing
        assert "Traceback" not in closed.stderr


def test_an_ascii_world(full: Scratch) -> None:
    full.site.extension(
        manifest("org.umlaut", host={"provider": "vllm", "name": "höst", "version_range": ">=0"}), distribution="umlaut"
    )
    for env in ({"LANG": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, {"LANG": "C", "LC_ALL": "POSIX"}):
        assert full.extension("inspect", "org.umlaut", env=env).code == 1
        assert full.extension("inspect", "org.nö", env=env).code == 1
        json.loads(full.extension("list", "--json", env=env).out)


@pytest.mark.parametrize(
    "env",
    [
        {"HOME": "/nonexistent"},
        {"HOME": ""},
        {"HOME": None, "XDG_CONFIG_HOME": None},
        {"XDG_STATE_HOME": "/dev/null/x", "VLLM_HUST_EXT_STATE_DIR": None},
        {"VLLM_HUST_EXT_CONFIG": "/dev/null/x/config.json"},
        {"VLLM_HUST_EXT_CONFIG": ""},
        {"VLLM_HUST_EXT_STATE_DIR": "/proc/1/no"},
        {"COLUMNS": "1"},
        {"COLUMNS": "x"},
        {"TERM": "dumb"},
        {"PATH": ""},
        {"VLLM_PLUGINS": ",,"},
        {"VLLM_HUST_EXT_REPORT_DIR": "/proc/self/mem"},
    ],
)
def test_strange_worlds(full: Scratch, env: dict[str, Any]) -> None:
    for command in (
        ["extension", "list"],
        ["extension", "status"],
        ["doctor"],
        ["extension", "env"],
        ["run", "--", "python", "-c", "pass"],
    ):
        assert full.run(*command, env=env).code in (0, 1, 4), command


def test_a_deleted_working_folder(full: Scratch) -> None:
    quoted = " ".join(f"'{part}'" for part in full.command("extension", "list"))
    done = subprocess.run(
        ["sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && {quoted}"],
        cwd=full.root, env=full.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_usage_errors_are_2_and_suggest(scratch: Scratch) -> None:
    assert scratch.run("extensoin").code == 2
    assert "did you mean 'extension'" in scratch.run("extensoin").err
    assert "did you mean 'inspect'" in scratch.extension("inspct").err
    assert scratch.run("--nope").code == 2
    assert scratch.extension("inspect").code == 2
    assert scratch.extension("render", "--format", "word").code == 2


def test_version_and_help(scratch: Scratch) -> None:
    assert scratch.run("--version").out.startswith("vllm-hust-ext")
    assert "Exit codes" in scratch.run("--help").out
    for verb in (
        "list",
        "inspect",
        "validate",
        "check",
        "status",
        "why",
        "enable",
        "disable",
        "mask",
        "forget",
        "configure",
        "plan",
        "render",
        "env",
    ):
        assert verb in scratch.run("extension", "--help").out
        assert scratch.extension(verb, "--help").code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(full: Scratch, shell: str) -> None:
    done = full.run("completion", shell)
    assert done.code == 0
    assert "_VLLM_HUST_EXT_COMPLETE" in done.out


def test_completion_completes_ids(full: Scratch) -> None:
    words = "vllm-hust-ext extension inspect org.ex"
    env = {"_VLLM_HUST_EXT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
    assert "plain,org.example.one" in full.run(env=env).out


def test_internal_faults_are_one_message(full: Scratch) -> None:
    """Even a fault of the manager itself is a sentence; the variable that it names shows the rest."""
    broken = full.root / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import vllm_hust_ext.discovery as d\ndef boom(*a): raise"
        " ZeroDivisionError('boom')\nd.discover = boom\nimport"
        " vllm_hust_ext.session as s\ns.discover = boom\n"
    )
    env = {"PYTHONPATH": f"{broken}:{full.site.path}"}
    done = full.extension("list", env=env)
    assert done.code == 4
    assert "this is a fault of the manager" in done.err
    assert "ZeroDivisionError: boom" in done.err


def test_render(full: Scratch, tmp_path: Any) -> None:
    full.site.extension(
        manifest(activation={"environment": {"EXAMPLE_ONE": ('a\'b "c" $d %e\\f')}, "additional_config": {"k": 1}})
    )
    full.extension("enable", ID)
    script = tmp_path / "launch.sh"
    script.write_text(full.extension("render", "--format", "shell").out + "printf '%s' \"$EXAMPLE_ONE\"\n")
    shown = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True)
    assert shown.stdout == 'a\'b "c" $d %e\\f'
    assert "add to your command: --additional-config" in script.read_text()
    assert "EXAMPLE_ONE=a'b" in full.extension("render", "--format", "dotenv").out
    unit = full.extension("render", "--format", "systemd").out
    assert "[Service]" in unit
    assert 'Environment="EXAMPLE_ONE=a\'b \\"c\\" $d %%e\\\\f"' in unit
    full.site.extension(manifest(activation={"environment": {"EXAMPLE_ONE": "a\nb"}}))
    assert full.extension("render", "--format", "dotenv").code == 3
    script.write_text(full.extension("render", "--format", "shell").out + "printf '%s' \"$EXAMPLE_ONE\"\n")
    assert subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True).stdout == "a\nb"
