"""Intents: one file per environment, migrated, locked, atomic, never silently replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_hust_ext import intents
from vllm_hust_ext.errors import BrokenState
from vllm_hust_ext.intents import Intent, Intents, IntentStore, Origin, State

from .scratch import Scratch

needs_user = pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")


def store(path: Path) -> IntentStore:
    return IntentStore(Origin(path, "variable"))


def test_round_trip_and_shape(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "config.json"
    store(path).change(lambda i: i.with_("b", State.ENABLED, {"k": [1]}).with_("a", State.MASKED))
    assert store(path).read().entries == {"a": Intent(State.MASKED), "b": Intent(State.ENABLED, {"k": [1]})}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    text = path.read_text()
    assert text.endswith("}\n")
    assert text.index('"a"') < text.index('"b"')


NAMES = st.text(min_size=1, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=2), max_leaves=3
)


@settings(max_examples=200)
@given(st.dictionaries(NAMES, st.tuples(st.sampled_from(State), st.dictionaries(NAMES, JSON, max_size=2)), max_size=4))
def test_what_is_written_is_read(entries: dict[str, tuple[State, dict[str, object]]]) -> None:
    wanted = Intents({k: Intent(s, c) for k, (s, c) in entries.items()}, 3)
    try:
        data = intents.serialise(wanted)
    except UnicodeEncodeError:  # half a surrogate pair is no text; it cannot be stored
        return
    assert intents.parse(data) == wanted


@settings(max_examples=300)
@given(
    st.binary(max_size=60)
    | st.text(max_size=60).map(lambda t: t.encode("utf-8", "replace"))
    | JSON.map(lambda v: json.dumps(v).encode())
)
def test_anything_else_is_one_sentence(data: bytes) -> None:
    said = ""
    try:
        intents.parse(data)
    except ValueError as error:
        said = str(error)
    assert "\n" not in said
    intents.salvage(data)


def test_schema_1_and_2_are_read_and_migrated_at_the_next_change(tmp_path: Path) -> None:
    one = tmp_path / "one.json"
    one.write_text('{"schema_version": 1, "enabled": ["b", "a"]}')
    assert store(one).read().in_state(State.ENABLED) == ["a", "b"]
    two = tmp_path / "two.json"
    old = (
        '{"schema_version": 2, "extensions": {"a": {"enabled": true, "configuration": {"x": 1}}, "b":'
        ' {"enabled": false}}, "extra": 1}'
    )
    two.write_text(old)
    read = store(two).read()
    assert read.entries == {"a": Intent(State.ENABLED, {"x": 1}), "b": Intent(State.DISABLED)}
    assert two.read_text() == old
    store(two).change(lambda i: i)
    assert json.loads(two.read_text())["schema_version"] == 3
    assert store(two).read().entries == read.entries
    (kept,) = tmp_path.glob("two.json.schema-2-*")
    assert kept.read_text() == old


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ('{"schema_version": 9}', "schema_version is 9"),
        ('{"schema_version": 3, "extensions": {"a": {"state": "on"}}}', "extensions.a.state"),
        ('{"schema_version": 3, "extensions": {"a": {"state": "enabled", "x": 1}}}', "extensions.a: unknown keys x"),
        ('{"schema_version": 2, "extensions": {"a": {"enabled": 1}}}', "extensions.a.enabled"),
        ('{"schema_version": 2, "extensions": {"a": {"enabled": true, "y": 1}}}', "unknown keys y"),
        (
            '{"schema_version": 3, "extensions": {"a": {"state": "masked"}, "a": {"state": "enabled"}}}',
            "more than once",
        ),
    ],
)
def test_a_damaged_file_is_named_kept_and_never_replaced(scratch: Scratch, text: str, words: str) -> None:
    scratch.site.host()
    scratch.site.extension()
    scratch.config.write_text(text)
    for arguments in (
        ["enable", "org.example.one"],
        ["disable", "org.example.one"],
        ["mask", "org.example.one"],
        ["forget", "x"],
    ):
        done = scratch.extension(*arguments)
        assert done.code == 4
        assert words in done.err
        assert str(scratch.config) in done.err
    assert scratch.config.read_text() == text
    (kept,) = scratch.config.parent.glob("config.json.corrupt-*")
    assert kept.read_text() == text
    assert str(kept) in done.err
    listed = scratch.extension("list")
    assert listed.code == 4
    assert "org.example.one" in listed.out
    assert scratch.run("run", "--", "python", "-c", "print(1)").code == 4
    assert scratch.run("run", "--no-extensions", "--", "python", "-c", "print(1)").out == "1\n"
    assert scratch.run("doctor").code == 4


def test_repair_moves_the_damage_aside_and_keeps_what_is_sound(scratch: Scratch) -> None:
    damaged = {"schema_version": 3, "extensions": {"good": {"state": "masked"}, "bad": {"state": "?"}}}
    scratch.config.write_text(json.dumps(damaged))
    done = scratch.run("doctor", "--repair", "--json")
    assert done.code in (0, 1)
    assert scratch.stored()["extensions"] == {"good": {"configuration": {}, "state": "masked"}}
    (kept,) = scratch.config.parent.glob("config.json.corrupt-*")
    assert json.loads(kept.read_text()) == damaged
    assert "nothing was changed" in scratch.run("doctor", "--repair").out


def test_a_symlink_stays_a_symlink(tmp_path: Path) -> None:
    real = tmp_path / "real" / "intents.json"
    real.parent.mkdir()
    real.write_text('{"schema_version": 3, "extensions": {}}')
    link = tmp_path / "config.json"
    link.symlink_to(real)
    store(link).change(lambda i: i.with_("a", State.ENABLED))
    assert link.is_symlink()
    assert "enabled" in real.read_text()
    dangling = tmp_path / "dangling.json"
    dangling.symlink_to(tmp_path / "new" / "target.json")
    store(dangling).change(lambda i: i.with_("a", State.ENABLED))
    assert dangling.is_symlink()
    assert (tmp_path / "new" / "target.json").exists()


def test_folder_fifo_and_huge_files_are_refused(scratch: Scratch, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    huge = tmp_path / "huge"
    huge.write_bytes(b" " * (intents.MAX_BYTES + 1))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (folder, fifo, huge, binary):
        done = scratch.run("run", "--", "python", "-c", "print(1)", env={"VLLM_HUST_EXT_CONFIG": str(path)})
        assert (done.code, done.out) == (4, ""), path


def test_each_environment_has_its_own_file(own_scratch: Scratch) -> None:
    own_scratch.site.host()
    own_scratch.site.extension()
    unset = {"VLLM_HUST_EXT_CONFIG": None}
    done = own_scratch.extension("enable", "org.example.one", env=unset)
    assert done.code == 0, done.err
    path = own_scratch.venv / "etc" / "vllm-hust-ext" / "config.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert "of this environment" in done.out
    assert not own_scratch.config.exists()
    other = own_scratch.extension("list", "--json")
    assert other.json["environment"]["intents"]["kind"] == "variable"
    assert not other.json["extensions"][0]["enabled"]


def test_outside_a_virtual_environment_it_is_the_users(tmp_path: Path) -> None:
    from dataclasses import replace

    from vllm_hust_ext import environment

    here = environment.current()
    system = replace(here, prefix=tmp_path, base_prefix=tmp_path)
    assert intents.origin_of(system, {}).kind == "user"
    conda = tmp_path / "conda"
    (conda / "conda-meta").mkdir(parents=True)
    assert intents.origin_of(replace(here, prefix=conda, base_prefix=conda), {}).kind == "environment"
    assert intents.origin_of(system, {"VLLM_HUST_EXT_CONFIG": "x.json"}).path.is_absolute()


def test_an_uninstalled_enabled_package_can_be_disabled_and_forgotten(scratch: Scratch) -> None:
    import shutil

    scratch.site.host()
    info = scratch.site.extension()
    scratch.site.extension(distribution="two", document={**json.loads(json.dumps(_two()))})
    for name in ("org.example.one", "org.example.two"):
        assert scratch.extension("enable", name).code == 0
    shutil.rmtree(info)
    shutil.rmtree(scratch.site.path / "one")
    assert "not installed any more" in scratch.extension("list").out
    refused = scratch.run("run", "--", "python", "-c", "pass")
    assert refused.code == 3
    assert "no longer installed" in refused.err
    # it stands in nobody's way
    assert scratch.extension("check", "org.example.two").code == 0
    assert scratch.extension("disable", "org.example.two").code == 0
    assert scratch.extension("enable", "org.example.two").code == 0
    assert scratch.extension("disable", "org.example.one").code == 0
    assert scratch.extension("forget", "org.example.one").code == 0
    assert scratch.extension("forget", "org.example.one").code == 1
    assert "org.example.one" not in scratch.stored()["extensions"]


def _two() -> dict[str, object]:
    from .scratch import manifest

    one = {"type": "python_module", "module": "two.plugin", "object": "load", "status": "active"}
    return manifest("org.example.two", implementation=[one], activation={"environment": {"EXAMPLE_TWO": "1"}})


def test_forget_of_an_enabled_one_that_is_gone_needs_no_disable(scratch: Scratch) -> None:
    scratch.config.write_text('{"schema_version": 3, "extensions": {"org.gone": {"state": "enabled"}}}')
    assert scratch.extension("forget", "org.gone").code == 0


def test_forget_refuses_what_is_enabled_and_installed(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    scratch.extension("enable", "org.example.one")
    assert scratch.extension("forget", "org.example.one").code == 3
    assert scratch.extension("forget", "--force", "org.example.one").code == 0


def test_disable_of_a_typo_stores_nothing(scratch: Scratch) -> None:
    scratch.site.extension()
    assert scratch.extension("disable", "org.exampel.one").code == 1
    assert not scratch.config.exists()


def test_configure(scratch: Scratch, tmp_path: Path) -> None:
    scratch.site.host()
    scratch.site.extension()
    file = tmp_path / "c.json"
    file.write_text('{"environment": {"EXAMPLE_ONE": "2", "OTHER": "x"}, "mine": true}')
    done = scratch.extension("configure", "org.example.one", "--file", str(file))
    assert done.code == 0
    assert "read by nobody here: mine" in done.err
    assert scratch.stored()["extensions"]["org.example.one"]["configuration"]["mine"] is True
    scratch.extension("enable", "org.example.one")
    env = scratch.extension("env")
    assert "EXAMPLE_ONE=2" in env.out
    assert "OTHER" not in env.out
    assert "OTHER in its stored configuration is not a variable of its manifest" in env.err
    assert scratch.run("extension", "configure", "org.example.one", "--file", "-", stdin="{}").code == 0
    assert scratch.stored()["extensions"]["org.example.one"] == {"configuration": {}, "state": "enabled"}
    for bad in ("[]", "{", '{"a": NaN}', '{"a":1,"a":2}'):
        file.write_text(bad)
        assert scratch.extension("configure", "org.example.one", "--file", str(file)).code == 2
    assert scratch.extension("configure", "org.example.one", "--file", str(tmp_path / "absent")).code == 2


@needs_user
def test_unreadable_and_read_only_homes(scratch: Scratch) -> None:
    scratch.site.extension()
    home = scratch.root / "home"
    home.chmod(0)
    try:
        done = scratch.extension("list", env={"VLLM_HUST_EXT_CONFIG": str(home / "x" / "config.json")})
        assert done.code == 4
    finally:
        home.chmod(0o700)


def test_a_folder_that_cannot_be_written_is_said(scratch: Scratch) -> None:
    """A path below a plain file can be written by nobody, the superuser included."""
    scratch.site.extension()
    blocked = scratch.root / "file"
    blocked.write_text("")
    done = scratch.extension("enable", "org.example.one", env={"VLLM_HUST_EXT_CONFIG": str(blocked / "config.json")})
    assert done.code == 4
    assert "cannot be written" in done.err
    assert "VLLM_HUST_EXT_CONFIG" in done.err
    listed = scratch.extension("list", env={"VLLM_HUST_EXT_CONFIG": str(blocked / "config.json")})
    assert listed.code == 0
    gone = scratch.extension("list", env={"HOME": "/nonexistent/home", "VLLM_HUST_EXT_STATE_DIR": None})
    assert gone.code == 0
    assert (
        scratch.run(
            "run", "--", "python", "-c", "print(1)", env={"VLLM_HUST_EXT_STATE_DIR": str(blocked / "state")}
        ).out
        == "1\n"
    )


# -- many writers, and killed ones ------------------------------------------------------------------------------------

_WRITER = """
import sys
from pathlib import Path
from vllm_hust_ext.intents import IntentStore, Origin, State
store = IntentStore(Origin(Path(sys.argv[1]), "variable"))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    store.change(lambda i: i.with_(f"org.w{sys.argv[2]}.n{number}", State.ENABLED))
"""


@pytest.mark.slow
def test_8_writers_x_50_lose_nothing(scratch: Scratch, tmp_path: Path) -> None:
    path = tmp_path / "shared" / "config.json"
    writers = [
        subprocess.Popen(
            [str(scratch.python), "-c", _WRITER, str(path), str(w), "50"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=scratch.environment(),
        )
        for w in range(8)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.close()
    assert [w.wait(120) for w in writers] == [0] * 8
    assert len(store(path).read().entries) == 400


@pytest.mark.slow
def test_concurrent_enable_commands_all_take_effect(scratch: Scratch) -> None:
    """The same through the command line, eight at once."""
    from .scratch import manifest

    scratch.site.host()
    for number in range(8):
        name = f"many{number}"
        carrier = [{"type": "python_module", "module": f"{name}.plugin", "object": "load", "status": "active"}]
        scratch.site.extension(manifest(f"org.{name}", implementation=carrier), distribution=name)
    running = [
        subprocess.Popen(
            scratch.command("extension", "enable", f"org.many{n}"), env=scratch.environment(), stdout=subprocess.DEVNULL
        )
        for n in range(8)
    ]
    assert [p.wait(60) for p in running] == [0] * 8
    assert set(scratch.stored()["extensions"]) == {f"org.many{n}" for n in range(8)}


_ENDLESS = """
import itertools, os, sys, time
from pathlib import Path
from vllm_hust_ext.intents import IntentStore, Origin, State
store = IntentStore(Origin(Path(sys.argv[1]), "variable"))
store.change(lambda i: i.with_("org.warm", State.ENABLED))  # imports happen here, once
begin = time.monotonic()
for _ in range(10):
    store.change(lambda i: i.with_("org.warm", State.ENABLED, {"n": _}))
print((time.monotonic() - begin) / 10, flush=True)  # what a change takes on this machine
states = [State.MASKED, State.ENABLED]
for number in itertools.count():
    child = os.fork()
    if child == 0:
        for k in itertools.count():
            store.change(lambda i: i.with_("org.flip", states[k % 2], {"n": k, "pad": "x" * 2000}))
    print(child, flush=True)
    if not sys.stdin.readline():
        os.kill(child, 9)
        sys.exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_kill_9_a_thousand_times_leaves_the_old_or_the_new_file(scratch: Scratch, tmp_path: Path) -> None:
    """A forked writer is killed at a thousand moments; after each the file is whole, keeps the rest, and can be
    changed.
    """
    path = tmp_path / "victim" / "config.json"
    store(path).change(lambda i: i.with_("org.stays", State.MASKED, {"keep": "me"}))
    parent = subprocess.Popen(
        [str(scratch.python), "-c", _ENDLESS, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=scratch.environment(),
    )  # fmt: skip
    assert parent.stdout is not None
    assert parent.stdin is not None
    written = 0
    try:
        change_takes = float(parent.stdout.readline())
        for round_ in range(1000):
            child = int(parent.stdout.readline())
            time.sleep(change_takes * (1 + (round_ % 37) / 8))
            os.kill(child, signal.SIGKILL)
            read = store(path).read()
            assert read.entries["org.stays"] == Intent(State.MASKED, {"keep": "me"})
            if "org.flip" in read.entries:
                written += 1
                assert len(str(read.configuration("org.flip")["pad"])) == 2000
            parent.stdin.write("\n")
            parent.stdin.flush()
    finally:
        parent.stdin.close()
        parent.wait(30)
    assert written > 500
    store(path).change(lambda i: i.with_("org.last", State.ENABLED))
    assert not list(path.parent.glob(".config-*"))  # what killed writers left is swept


def test_a_file_that_may_not_be_read_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser meets no such file, so the system's answer is given here."""
    path = tmp_path / "config.json"
    store(path).change(lambda i: i.with_("a", State.ENABLED))
    real = os.open

    def denied(name: object, *arguments: int, **more: int) -> int:
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied", str(name))
        return real(name, *arguments, **more)  # type: ignore[call-overload,no-any-return]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", denied)
        with pytest.raises(BrokenState, match="cannot be read: Permission denied") as caught:
            store(path).read()
        assert caught.value.hint
        assert "VLLM_HUST_EXT_CONFIG" in caught.value.hint

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(BrokenState, match="cannot be written: No space left"):
            store(path).change(lambda i: i.with_("b", State.ENABLED))
    assert store(path).read().in_state(State.ENABLED) == ["a"]
    assert not list(tmp_path.glob(".config-*"))
