"""Rotten files, foreign permissions, closed streams, unknown homes: each costs what it is about, and is said."""

from __future__ import annotations

import errno
import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest
from vllm_hust_ext import launch_folders, versions
from vllm_hust_ext.cli.output import one_line, printable
from vllm_hust_ext.manifest.loading import InvalidManifest, parse_manifest

from .scratch import Scratch, manifest

ONE = "org.example.one"
LONG = "9" * 5000
"""A number with more digits than Python converts."""


def bound_by_permissions(command: list[str]) -> list[str]:
    """``command`` so that file permissions hold for it, also where the tests run as root."""
    if os.geteuid() != 0:
        return command
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root without setpriv cannot be kept from reading a file")
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", *command]


# Metadata and manifests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("direct_url.json", "[" * 100_000),
        ("direct_url.json", '{"url": "file:///x/%00y", "dir_info": {"editable": true}}'),
        ("METADATA", f"Name: rotten\nVersion: 1.{LONG}\nRequires-Dist: x=={LONG}; extra == 'y'\n"),
    ],
)
def test_rotten_metadata_cost_no_other_extension(scratch: Scratch, file: str, text: str) -> None:
    scratch.site.host()
    scratch.site.extension()
    rotten = scratch.site.extension(manifest("org.example.rotten"), distribution="rotten", record=False)
    (rotten / file).write_text(text)
    listed = scratch.extension("list", "--json").json["extensions"]
    assert ONE in [e["bundle_id"] for e in listed if (e.get("verdict") or {}).get("status") == "compatible"]
    assert scratch.run("doctor", "--json").code in (0, 1)


def test_a_number_too_long_for_python_is_no_version() -> None:
    assert versions.parse(f"1.{LONG}") is None
    for version, specifier in (("1.0", f">=0,<{LONG}"), (f"1.{LONG}", ">=0"), ("1.0", f"<1,<{LONG}")):
        assert versions.in_range(version, specifier).inside is None
    document = manifest(host={"provider": "vllm", "name": "vllm-ascend", "version_range": f">=0,<{LONG}"})
    with pytest.raises(InvalidManifest, match=r"host\.version_range: .* is not a PEP 440 version range"):
        parse_manifest(json.dumps(document).encode())


def test_faults_of_a_registered_manifest_keep_their_places(scratch: Scratch) -> None:
    scratch.site.extension(b'{"a": 1, "a": 2}', entry_name=ONE)
    (fault,) = scratch.extension("validate", ONE, "--json").json["faults"]
    assert fault == {"location": "key 'a'", "message": "appears more than once in one object"}


@pytest.mark.parametrize(
    ("folder", "code", "said"),
    [("one", 4, "you may not read"), ("vllm_ascend", 0, "compatible"), ("vllm", 0, "compatible")],
)
def test_a_package_that_may_not_be_read(scratch: Scratch, folder: str, code: int, said: str) -> None:
    scratch.site.host()
    scratch.site.extension()
    scratch.site.extension(manifest("org.example.two"), distribution="two")
    closed = scratch.site.path / folder
    closed.chmod(0)
    try:
        answers = [
            subprocess.run(
                bound_by_permissions(scratch.command("extension", *verb)),
                capture_output=True,
                text=True,
                env=scratch.environment(),
                timeout=60,
                check=False,
            )
            for verb in (["check", ONE], ["check", "org.example.two"], ["list", "--json"])
        ]
    finally:
        closed.chmod(0o755)
    assert answers[0].returncode == code
    assert said in answers[0].stdout + answers[0].stderr
    assert [a.returncode for a in answers[1:]] == [0, 0]
    assert json.loads(answers[2].stdout)["schema"] == "vllm-hust-ext.extension-list/1"


# Homes and files of intents ------------------------------------------------------------------------------------------


def test_without_a_home_a_launch_starts_and_says_what_is_lost(scratch: Scratch, tmp_path: Path) -> None:
    nobody = tmp_path / "nobody"
    nobody.mkdir()
    (nobody / "sitecustomize.py").write_text(
        "import pwd\ndef none(uid): raise KeyError(uid)\npwd.getpwuid = none\n"  # a process without an account
    )
    unknown = {"HOME": None, "VLLM_HUST_EXT_STATE_DIR": None, "PYTHONPATH": f"{nobody}:{scratch.site.path}"}
    started = scratch.run("run", "--", "sh", "-c", "echo ${VLLM_HUST_EXT_REPORT_DIR-none}", env=unknown)
    assert (started.code, started.out) == (0, "none\n")
    assert "state folder is not known" in started.err
    assert "VLLM_HUST_EXT_STATE_DIR" in started.err
    for verb in (["extension", "status"], ["extension", "list"], ["doctor"]):
        answer = scratch.run(*verb, "--json", env=unknown)
        assert answer.json["schema"]
        assert "fault of the manager" not in answer.err
    assert not (scratch.root / "~").exists()


def test_a_place_where_no_file_can_be_made_is_said_at_once(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    answer = scratch.extension("enable", ONE, env={"VLLM_HUST_EXT_CONFIG": "/proc/self/none"})
    assert answer.code == 4
    assert "cannot be written: No such file or directory" in answer.err


def test_a_folder_in_place_of_the_file_is_not_called_a_matter_of_permissions(scratch: Scratch) -> None:
    scratch.site.extension()
    scratch.config.mkdir()
    answer = scratch.extension("enable", ONE)
    assert answer.code == 4
    assert "a regular file belongs there" in answer.err
    assert "permissions" not in answer.err


def test_damaged_intents_are_not_taken_for_an_empty_configuration(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    scratch.config.write_text("{")
    for verb in (["plan", ONE], ["render", ONE]):
        assert scratch.extension(*verb).code == 4
    for verb in ("check", "why", "inspect"):
        answer = scratch.extension(verb, ONE)
        assert answer.code == 0
        assert "stored configuration is not known" in answer.out


def test_stored_values_of_a_wrong_type_are_said_to_be_ignored(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    stored = scratch.run(
        "extension", "configure", ONE, "--file", "-", stdin='{"host_version": 7, "protocol_versions": {"p": 1}}'
    )
    checked = " ".join(scratch.extension("check", ONE).out.split())
    for said in ("host_version in its stored configuration is not a string", "protocol_versions.p in its stored"):
        assert said in stored.err
        assert said in checked


def test_a_mask_for_what_can_never_be_an_id_is_refused(scratch: Scratch) -> None:
    for name in ("", "Org.Example.One", "../../x", "a b"):
        assert scratch.extension("mask", "--", name).code == 2
    assert scratch.extension("mask", "org.example.later").code == 0


# Commands ------------------------------------------------------------------------------------------------------------


def test_json_of_the_command_is_not_json_of_the_manager(scratch: Scratch) -> None:
    ours = scratch.run("run", "--json", "nosuchcommand")
    assert ours.json["error"]["exit_code"] == 2
    theirs = scratch.run("run", "nosuchcommand", "--json")
    assert (theirs.code, theirs.out) == (2, "")


def test_faults_of_the_manager_and_the_system_are_documents_too(scratch: Scratch, tmp_path: Path) -> None:
    breaking = tmp_path / "breaking"
    breaking.mkdir()
    for error, name in (("KeyError('x')", "internal"), ("OSError(28, 'No space left', '/x')", "broken-state")):
        (breaking / "sitecustomize.py").write_text(
            f"import vllm_hust_ext.session as s\ndef fail(self): raise {error}\ns.Session.inventory = property(fail)\n"
        )
        answer = scratch.extension("list", "--json", env={"PYTHONPATH": f"{breaking}:{scratch.site.path}"})
        assert answer.code == 4
        assert answer.json["error"]["name"] == name


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ([""], 2, "empty word"),
        (["./" + "a" * 300], 2, "does not exist"),
    ],
)
def test_commands_that_cannot_be(scratch: Scratch, command: list[str], code: int, said: str) -> None:
    answer = scratch.run("run", "--", *command)
    assert answer.code == code
    assert said in answer.err


def test_an_interpreter_that_is_gone_is_said_to_be_gone(scratch: Scratch) -> None:
    script = scratch.root / "moved"
    script.write_text("#!/nonexistent/bin/python3\n")
    script.chmod(0o755)
    answer = scratch.run("run", "--", str(script))
    assert answer.code == 4
    assert "/nonexistent/bin/python3" in answer.err
    assert "--python" not in answer.err


@pytest.mark.parametrize(
    "text",
    ["additional-config: {k: 2020-01-01}\n", "additional-config: {k: !!set {a}}\n", "additional-config: &a {k: *a}\n"],
)
def test_yaml_that_is_no_json_is_the_users_fault(scratch: Scratch, text: str) -> None:
    scratch.site.host()
    scratch.site.extension(manifest(activation={"environment": {}, "additional_config": {"one": 1}}))
    scratch.extension("enable", ONE)
    (scratch.root / "c.yaml").write_text(text)
    answer = scratch.run("run", "--dry-run", "--json", "--", "vllm", "serve", "m", "--config", "c.yaml")
    assert answer.code == 3
    assert "JSON cannot hold" in answer.json["plan"]["conflicts"][0]["text"]


def test_a_fifo_holds_nobody_up(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension(manifest(activation={"environment": {}, "additional_config": {"one": 1}}))
    scratch.extension("enable", ONE)
    launch = scratch.state / "launches" / "20260101T000000Z-00000000"
    launch.mkdir(parents=True)
    for path in (scratch.root / "c.yaml", scratch.root / "1-x.json", launch / "launch.json"):
        os.mkfifo(path)
    assert scratch.run("run", "--dry-run", "--", "vllm", "serve", "m", "--config", "c.yaml").code == 3
    answer = scratch.extension("status", "--all", "--report-dir", str(scratch.root))
    assert answer.code == 0
    assert "1-x.json cannot be read: it is not a regular file" in answer.out


def test_a_named_report_folder_is_never_passed_over(scratch: Scratch) -> None:
    missing = scratch.extension("status", "--report-dir", str(scratch.root / "missspelt"))
    assert "missspelt" in missing.out
    assert "does not exist" in missing.out
    assert "finished launch" not in missing.out


def test_a_launch_that_cannot_be_recorded_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv(launch_folders.STATE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(launch_folders.json, "dump", full)
    with pytest.raises(OSError, match="No space left"):
        launch_folders.create("one", tmp_path, ["true"], [])
    assert list((tmp_path / "launches").iterdir()) == []


def test_an_interrupt_while_starting_is_no_traceback(scratch: Scratch) -> None:
    early = scratch.root / "early"
    early.mkdir()
    (early / "click.py").write_text("raise KeyboardInterrupt\n")
    answer = scratch.run("doctor", env={"PYTHONPATH": str(early)})
    assert (answer.code, answer.out, answer.err) == (130, "", "")


def test_an_exported_report_folder_that_is_none_is_said(scratch: Scratch) -> None:
    answer = scratch.run("run", "--", "true", env={"VLLM_HUST_EXT_REPORT_DIR": str(scratch.root / "none")})
    assert answer.code == 0
    assert "is no folder: engines will write no reports" in answer.err


def test_a_working_folder_that_is_gone_is_named(scratch: Scratch) -> None:
    gone = scratch.root / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$0" -m vllm_hust_ext run --  ./x', str(scratch.python)],
        env=scratch.environment(),
        cwd=gone,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 4
    assert "working folder: it does not exist any more" in done.stderr


def test_an_empty_python_is_not_the_managers_own(scratch: Scratch) -> None:
    answer = scratch.extension("list", "--python", "")
    assert answer.code == 2
    assert "could not be run" in answer.err


def test_a_missing_verb_shows_the_help_and_no_error(scratch: Scratch) -> None:
    answer = scratch.run("extension")
    assert answer.code == 2
    assert answer.err.startswith("Usage: ")


# Streams and terminals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("extension configure org.example.one --file - <&-", 2),
        ("extension status --watch >&-", 141),
        ("extension why nosuch 2>/dev/full", 1),
        ("extension list >/dev/full", 4),
    ],
)
def test_closed_and_full_streams(scratch: Scratch, line: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m vllm_hust_ext {line}', str(scratch.python)],
        env=scratch.environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "fault of the manager" not in done.stderr


def test_one_variable_is_one_line(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension(manifest(activation={"environment": {"EXAMPLE_ONE": "a\nPATH=/evil"}}))
    scratch.extension("enable", ONE)
    lines = scratch.extension("env").out.splitlines()
    assert "EXAMPLE_ONE=a\\nPATH=/evil" in lines
    assert "PATH=/evil" not in lines


def test_bytes_that_are_no_text_are_shown_as_bytes() -> None:
    assert printable("a\udcffb") == "a\\xffb"
    assert one_line("a\n\tb") == "a\\n\\tb"


@pytest.mark.parametrize("columns", [1, 20, 40])
def test_narrow_terminals_get_lists_that_can_be_read(scratch: Scratch, columns: int) -> None:
    scratch.site.host()
    scratch.site.extension(manifest(host={"provider": "vllm", "name": "vllm-ascend", "version_range": ">=0.99"}))
    child, terminal = pty.fork()
    if child == 0:
        command = scratch.command("extension", "list")
        os.execve(command[0], command, scratch.environment({"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(columns)}))
    text = ""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece.decode()
    os.waitpid(child, 0)
    os.close(terminal)
    assert ONE in text
    assert "incompatible:" in text
    assert "excludes it" in text
