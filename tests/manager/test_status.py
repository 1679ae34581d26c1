"""``status``: what live processes really did; nothing is said of dead ones, other boots, reused pids or other nodes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_hust_ext import engine_reports, launch_folders, process_identity
from vllm_hust_ext.engine_reports import EngineReport, read_folder, read_report
from vllm_hust_ext.process_identity import Life, ProcessIdentity, own_identity

from tests.mutants import mutant  # noqa: F401

from .scratch import Scratch

GOLDEN = Path(__file__).parents[2] / "docs" / "formats" / "golden"

# A stand-in for an engine process: it writes reports as the format says and lives until its stdin closes.
ENGINE = """
import json, os, socket, sys
def write(role, engaged, calls, state="installed", reasons=None, **changes):
    fields = open(f"/proc/{os.getpid()}/stat").read().rsplit(")", 1)[1].split()
    process = {
        "pid": os.getpid(),
        "start_ticks": int(fields[19]),
        "boot_id": open("/proc/sys/kernel/random/boot_id").read().strip(),
        "hostname": socket.gethostname(),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "role": role,
        "argv0": sys.argv[0],
    }
    carrier = {
        "name": "cascade", "extension_id": "org.example.one", "state": state, "state_reason": "why",
        "gates": [], "seams": [], "engaged": engaged, "calls": calls, "counters": {"c": 5},
        "reasons": reasons or {}, "failures": {}, "last_failure": None,
    }
    document = {
        "schema": "vllm-hust-ext.engine-report/1",
        "distribution": {"name": "one", "version": "1.0"},
        "launch_id": os.environ.get("VLLM_HUST_EXT_LAUNCH_ID"),
        "process": {**process, **changes},
        "started_at": "2026-01-01T00:00:00Z",
        "written_at": "2026-01-01T00:00:01Z",
        "host": {"vllm": "0.27.1"},
        "carriers": [carrier],
    }
    path = os.path.join(os.environ["VLLM_HUST_EXT_REPORT_DIR"], f"{os.getpid()}-one.json")
    with open(path + ".tmp", "w") as stream:
        json.dump(document, stream)
    os.replace(path + ".tmp", path)
"""
WAIT = "print('up', flush=True); sys.stdin.read()\n"


@pytest.fixture
def running(scratch: Scratch) -> Iterator[Any]:
    """Start commands through ``run`` and end them afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str, *, plain: Path | None = None) -> subprocess.Popen[str]:
        code = ENGINE + body + WAIT
        command = [str(scratch.python), "-c", code] if plain else scratch.command("run", "--", "python", "-c", code)
        extra = {"VLLM_HUST_EXT_REPORT_DIR": str(plain)} if plain else None
        process = subprocess.Popen(
            command, env=scratch.environment(extra), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=10)


def test_a_live_engaged_worker_and_its_end(scratch: Scratch, running: Any) -> None:
    scratch.site.host()
    scratch.site.extension()
    scratch.extension("enable", "org.example.one")
    process = running("write('worker', 1280, 1400, reasons={'below_the_prefix_threshold': 120})\n")
    done = scratch.extension("status")
    assert done.code == 0
    sentence = f"worker {process.pid}: cascade engaged 1,280 of 1,400 calls; 120 below the prefix threshold"
    assert sentence in " ".join(done.out.split())
    document = scratch.extension("status", "org.example.one", "--json").json
    assert "runtime_effective" in document["states"]
    assert document["runtime_effective"]["org.example.one"][0]["pid"] == process.pid
    (launch,) = document["launches"]
    assert launch["pid"] == process.pid  # exec keeps the process id
    assert launch["extensions"] == ["org.example.one"]
    assert launch["life"] == "live"
    end(process)
    after = scratch.extension("status", "org.example.one", "--json")
    assert after.json["runtime_effective"] == {}
    assert "runtime_effective" not in after.json["states"]
    assert after.json["launches"] == []
    (finished,) = scratch.extension("status", "--all", "--json").json["launches"]
    assert finished["life"] == "gone"
    assert "runtime_effective" not in scratch.extension("status", "--all").out


@pytest.mark.parametrize(
    ("call", "effective"),
    [
        ("write('worker', 0, 100)", False),
        (("write('worker', 5, 5, state='armed')"), False),
        ("write('worker', 1, 1)", True),
    ],
)
def test_effective_means_installed_and_engaged(scratch: Scratch, running: Any, call: str, effective: bool) -> None:
    running(call + "\n")
    assert bool(scratch.extension("status", "--json").json["runtime_effective"]) is effective


@pytest.mark.parametrize("state", ["latched", "refused"])
def test_a_carrier_that_gave_up_is_unhealthy(scratch: Scratch, running: Any, state: str) -> None:
    scratch.site.host()
    scratch.site.extension()
    scratch.extension("enable", "org.example.one")
    running(f"write('engine-core', 3, 9, state={state!r})\n")
    done = scratch.extension("status", "org.example.one", "--json")
    assert done.code == 1
    assert "degraded" in done.json["states"]
    assert done.json["runtime_effective"] == {}
    assert state in done.json["unhealthy"][0]
    assert scratch.extension("status").code == 1
    assert scratch.run("doctor").code == 1


@pytest.mark.parametrize(
    ("changes", "life"),
    [
        ({"start_ticks": 1}, "gone"),  # the pid was reused
        ({"boot_id": "00000000-0000-0000-0000-000000000000"}, "gone"),  # before the last boot
        ({"pid_namespace": "pid:[1]"}, "not seen from this node"),
        ({"hostname": "node-2", "boot_id": "11111111-0000-0000-0000-000000000000"}, "not seen from this node"),
    ],
)
def test_only_that_very_process_counts(scratch: Scratch, running: Any, changes: dict[str, Any], life: str) -> None:
    running(f"write('worker', 5, 5, **{changes!r})\n")
    document = scratch.extension("status", "--json", "--all").json
    assert document["launches"][0]["reports"][0]["life"] == life
    assert document["runtime_effective"] == {}
    if life != "gone":
        assert life in " ".join(scratch.extension("status").out.split())


def test_a_mutant_without_start_time_is_noticed(mutant: Any) -> None:  # noqa: F811
    mine = own_identity()
    reused = ProcessIdentity(mine.pid, 1, mine.boot_id, mine.hostname, mine.pid_namespace)
    assert reused.life() is Life.GONE
    changed = mutant(process_identity, "ticks != self.start_ticks", "False")
    assert changed.ProcessIdentity(**vars(reused)).life() is not changed.Life.GONE


def test_a_plain_server_with_an_exported_folder(scratch: Scratch, running: Any, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    process = running("write('worker', 2, 3)\n", plain=folder)
    assert scratch.extension("status", "--json").json["launches"] == []
    for arguments, env in ((["--report-dir", str(folder)], {}), ([], {"VLLM_HUST_EXT_REPORT_DIR": str(folder)})):
        document = scratch.extension("status", "--json", *arguments, env=env).json
        assert document["runtime_effective"]["org.example.one"][0]["pid"] == process.pid


def test_files_that_are_no_reports_are_named_and_disturb_nothing(scratch: Scratch, running: Any) -> None:
    running("write('worker', 1, 1)\n")
    (folder,) = (scratch.state / "launches").iterdir()
    files = {
        "a.json": b"{",
        "b.json": b"[]",
        "c.json": b'{"schema": "other/1"}',
        "d.json": b"\xff",
        "e.txt": b"x",
        "f.json": b'{"schema": "vllm-hust-ext.engine-report/1"}',
        "g.json": b"[" * 100_000,
        "j.json": b'{"schema": NaN}',
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "h.json").symlink_to("/etc/passwd")
    (folder / "i.json").mkdir()
    document = scratch.extension("status", "--json").json
    assert document["runtime_effective"]
    assert {Path(u["path"]).name for u in document["launches"][0]["unreadable"]} == {f"{x}.json" for x in "abcdfghij"}
    (folder / "launch.json").write_text("{")
    assert scratch.extension("status", "--json").code == 0


def test_watch_prints_again_and_again(scratch: Scratch) -> None:
    process = subprocess.Popen(
        scratch.command("extension", "status", "--watch", "--interval", "0.1", "--json"),
        env=scratch.environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(3):
        assert json.loads(process.stdout.readline())["launches"] == []
    process.stdout.close()
    assert process.wait(20) in (130, 128 + 13)


def test_old_launch_folders_age_out_and_live_ones_stay(scratch: Scratch, running: Any) -> None:
    process = running("write('worker', 1, 1)\n")
    root = scratch.state / "launches"
    (live,) = root.iterdir()
    dead = []
    for number in range(3):
        folder = root / f"2000010{number}T000000Z-x"
        folder.mkdir()
        (folder / "launch.json").write_text(json.dumps({
            "launch_id": folder.name, "process": {**vars(own_identity()), "start_ticks": 1},
            "started_at": "", "prefix": "", "command": [], "extensions": []}))  # fmt: skip
        dead.append(folder)
    old = time.time() - 8 * 86400
    for path in (dead[0], *dead[0].iterdir(), live, *live.iterdir()):
        os.utime(path, (old, old))
    scratch.run("run", "--", "python", "-c", "pass")
    left = set(root.iterdir())
    assert dead[0] not in left
    assert {live, dead[1], dead[2]} <= left
    end(process)


def test_ray_is_said(scratch: Scratch) -> None:
    process = subprocess.Popen(
        scratch.command("run", "--", "python", "-c", ("import sys; print('up', flush=True);"
                                                      " sys.stdin.read()"), "--distributed-executor-backend", "ray"),
        env=scratch.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    assert "not seen from this node" in " ".join(scratch.extension("status").out.split())
    process.communicate("")


@pytest.mark.parametrize("name", ["armed", "installed", "refused"])
def test_golden_reports_are_read(name: str) -> None:
    """The files that the writers' tests hold themselves to."""
    report = read_report(GOLDEN / f"engine-report-{name}.json")
    assert isinstance(report, EngineReport)
    document = json.loads((GOLDEN / f"engine-report-{name}.json").read_text())
    made = report.as_json()
    assert made["distribution"] == document["distribution"]
    assert made["launch_id"] == document["launch_id"]
    assert {k: made["process"][k] for k in document["process"]} == document["process"]
    for mine, theirs in zip(made["carriers"], document["carriers"], strict=True):
        assert {k: mine[k] for k in theirs} == theirs
    assert report.carriers[0].state == name
    assert report.carriers[0].effective is (name == "installed")


def test_golden_reports_fit_their_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((GOLDEN.parent / "engine-report.schema.json").read_text())
    assert schema["properties"]["schema"]["const"] == engine_reports.SCHEMA
    for path in GOLDEN.glob("engine-report-*.json"):
        jsonschema.validate(json.loads(path.read_text()), schema)


def test_an_absent_folder_holds_nothing(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "absent") == ([], [])
    assert launch_folders.read(tmp_path) is None
