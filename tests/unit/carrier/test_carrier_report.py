"""The engine report: its document, its file, its thread, its children."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import vllm_ascend_split_batch
from vllm_ascend_split_batch.carrier import Carrier, Flag, Seam, engine_report, process_facts
from vllm_ascend_split_batch.carrier.engine_report import EngineReport

SOURCE = Path(vllm_ascend_split_batch.__file__).parents[1]
FORMATS = Path(__file__).parents[3] / "docs" / "formats"


@pytest.fixture
def validate():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((FORMATS / "engine-report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema).validate


@pytest.fixture
def report(tmp_path, monkeypatch):
    monkeypatch.setenv(engine_report.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(engine_report.LAUNCH_VARIABLE, "launch-7")
    made = EngineReport(interval_s=0.01)
    monkeypatch.setattr(made, "_registered", True)  # no atexit and no fork hook for this one
    yield made
    made._stop.set()


@pytest.fixture
def carrier(monkeypatch):
    monkeypatch.setenv("VLLM_HUST_TEST", " On ")
    carrier = Carrier("x", gates=(Flag("VLLM_HUST_TEST"),), seams=(Seam("no_such_host.m:C.f"),), binding="b",
                      extension_id="org.example.x")
    monkeypatch.setattr(carrier, "_report", lambda: None)
    carrier.load()
    yield carrier
    carrier.uninstall()


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def read(folder):
    (name,) = files(folder)
    return json.loads((Path(folder) / name).read_text())


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.005)


def test_the_document_keeps_to_its_schema(report, carrier, validate):
    report.add(carrier)
    document = json.loads(json.dumps(report.document()))
    validate(document)
    assert document["launch_id"] == "launch-7"
    assert document["process"]["pid"] == os.getpid()
    assert document["carriers"][0]["state"] == "armed"
    assert document["carriers"][0]["gates"][0]["raw"] == " On "


@pytest.mark.parametrize("change", [
    lambda d: d["process"].pop("start_ticks"),
    lambda d: d.update(more=1),
    lambda d: d["carriers"][0].update(state="happy"),
    lambda d: d.update(written_at="yesterday"),
    lambda d: d["carriers"][0]["seams"][0].update(status="ok"),
])
def test_the_schema_refuses_other_documents(report, carrier, validate, change):
    import jsonschema

    report.add(carrier)
    document = json.loads(json.dumps(report.document()))
    change(document)
    with pytest.raises(jsonschema.ValidationError):
        validate(document)


@pytest.mark.parametrize("path", sorted((FORMATS / "golden").glob("engine-report-*.json")), ids=lambda path: path.stem)
def test_golden_documents(path, validate):
    validate(json.loads(path.read_text()))


def test_golden_documents_have_the_fields_we_write(report, carrier):
    def shape(value):
        return {key: shape(v) for key, v in value.items()} if isinstance(value, dict) else None

    report.add(carrier)
    ours = shape(report.document())
    for path in (FORMATS / "golden").glob("engine-report-*.json"):
        assert shape(json.loads(path.read_text())) == ours


def test_the_thread_writes_when_something_changed_only(report, carrier, tmp_path, validate):
    rounds, write = [], report.write

    def recorded():
        rounds.append(write())
        return rounds[-1]

    report.write = recorded
    report.add(carrier)
    wait_for(lambda: len(rounds) >= 4)
    assert rounds[:4] == [True, False, False, False]
    path = tmp_path / f"{os.getpid()}-vllm-ascend-split-batch.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    carrier.guard.count("bytes", 5)
    wait_for(lambda: True in rounds[4:])
    document = read(tmp_path)
    validate(document)
    assert document["carriers"][0]["counters"] == {"bytes": 5}
    assert files(tmp_path) == [path.name]


def test_a_reader_never_sees_half_a_document(report, carrier, tmp_path):
    report.add(carrier)
    wait_for(lambda: files(tmp_path) and not files(tmp_path)[0].endswith(".tmp"))
    path = tmp_path / f"{os.getpid()}-vllm-ascend-split-batch.json"
    for number in range(200):
        carrier.guard.count("n")
        if number % 4 == 0:
            report.write()
        json.loads(path.read_text())


def test_without_a_folder_nothing_happens(monkeypatch, carrier, tmp_path):
    monkeypatch.delenv(engine_report.FOLDER_VARIABLE, raising=False)
    report = EngineReport()
    report.add(carrier)
    assert report._thread is None
    assert report.write() is False


@pytest.mark.parametrize("folder", ["missing", "a file"])
def test_a_folder_that_cannot_be_written_is_one_warning(monkeypatch, carrier, tmp_path, lines, folder):
    target = tmp_path / folder
    if folder == "a file":
        target.write_text("")
    monkeypatch.setenv(engine_report.FOLDER_VARIABLE, str(target))
    report = EngineReport()
    report.carriers.append(carrier)
    for _ in range(3):
        assert report.write() is False
        carrier.guard.count("n")
    (warning,) = lines(logging.WARNING)
    assert str(target) in warning
    assert "Check that the folder exists" in warning


def test_a_relative_folder_is_meant_from_where_the_process_started(monkeypatch, carrier, tmp_path):
    (tmp_path / "reports").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(engine_report.FOLDER_VARIABLE, "reports")
    made = EngineReport()
    made.carriers.append(carrier)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert made.write()
    assert len(files(tmp_path / "reports")) == 1


def test_a_failed_replacement_leaves_no_temporary_file(report, carrier, tmp_path, monkeypatch, lines):
    report.carriers.append(carrier)

    def fail(*args):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    assert report.write() is False
    assert files(tmp_path) == []


def test_a_carrier_that_cannot_report_does_not_raise(report, lines):
    class Broken:
        def report(self):
            raise RuntimeError("broken")

    report.carriers.append(Broken())
    assert report.write() is False
    assert len(lines(logging.WARNING)) == 1


def test_facts_of_this_process():
    facts = process_facts.describe()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert facts["start_ticks"] == int(fields[22 - 3])
    assert facts["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts["pid_namespace"] == os.readlink("/proc/self/ns/pid")
    assert facts["hostname"] == os.uname().nodename


@pytest.mark.parametrize(("process", "argv", "role"), [
    ("EngineCore", ["vllm", "serve"], "engine-core"),
    ("EngineCore_DP1", ["-c"], "engine-core"),
    ("VllmWorker-0", ["-c"], "worker"),
    ("ApiServer_1", ["-c"], "api-server"),
    ("MainProcess", ["/usr/bin/vllm", "serve", "model"], "api-server"),
    ("MainProcess", ["/x/vllm/entrypoints/openai/api_server.py"], "api-server"),
    ("MainProcess", ["/usr/bin/vllm", "bench"], "other"),
    ("MainProcess", ["script.py", "serve"], "other"),
    ("MainProcess", [], "other"),
])
def test_roles(monkeypatch, process, argv, role):
    import multiprocessing

    monkeypatch.setattr(multiprocessing.current_process(), "_name", process)
    monkeypatch.setattr(sys, "argv", argv)
    assert process_facts.role() == role


SETUP = """
    import os, sys, time
    from vllm_ascend_split_batch.carrier import Carrier, Flag, Seam, engine_report
    engine_report.engine_report().interval_s = 0.02
    carrier = Carrier("x", gates=(Flag("VLLM_HUST_TEST"),), seams=(Seam("no_such_host:f"),), binding="b")
    carrier.load()
    carrier.guard.count("n", 3)
"""


def run(code: str, folder: Path, gate: str = "1") -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SETUP) + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "VLLM_HUST_TEST": gate,
             engine_report.FOLDER_VARIABLE: str(folder)},
    )
    assert result.returncode == 0, result.stderr
    return result


def test_the_last_version_is_written_at_exit(tmp_path):
    run("carrier.guard.count('n', 4)", tmp_path)
    assert read(tmp_path)["carriers"][0]["counters"] == {"n": 7}


def test_a_closed_carrier_writes_nothing(tmp_path):
    run("import threading; assert threading.active_count() == 1; time.sleep(0.1)", tmp_path, gate="0")
    assert files(tmp_path) == []


def test_a_forked_child_writes_its_own(tmp_path, validate):
    out = run("""
        time.sleep(0.1)
        pid = os.fork()
        if pid == 0:
            carrier.guard.count("n", 1)
            path = os.path.join(os.environ["VLLM_HUST_EXT_REPORT_DIR"], f"{os.getpid()}-vllm-ascend-split-batch.json")
            end = time.monotonic() + 50
            while not (os.path.exists(path) and '"n": 1' in open(path).read()) and time.monotonic() < end:
                time.sleep(0.01)
            os._exit(0)
        os.waitpid(pid, 0)
        print(os.getpid(), pid)
    """, tmp_path).stdout.split()
    documents = {}
    for path in tmp_path.iterdir():
        document = json.loads(path.read_text())
        validate(document)
        assert path.name == f"{document['process']['pid']}-vllm-ascend-split-batch.json"
        documents[str(document["process"]["pid"])] = document
    parent, child = (documents.pop(pid) for pid in out)
    assert not documents
    assert parent["carriers"][0]["counters"] == {"n": 3}
    assert child["carriers"][0]["counters"] == {"n": 1}
    assert parent["process"]["start_ticks"] is not None


def test_a_child_that_runs_another_program_leaves_no_file(tmp_path):
    run("""
        engine_report.engine_report().interval_s = 60
        pid = os.fork()
        if pid == 0:
            os.execv("/bin/true", ["true"])
        os.waitpid(pid, 0)
    """, tmp_path)
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_multiprocessing_write_their_last_version(tmp_path, method):
    """A forked one ends without atexit; a spawned one loads anew, as vLLM's workers do."""
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(f"""
        import multiprocessing
        from vllm_ascend_split_batch.carrier import Carrier, Flag, Seam, engine_report
        engine_report.engine_report().interval_s = 60
        carrier = Carrier("x", gates=(Flag("VLLM_HUST_TEST"),), seams=(Seam("no_such_host:f"),), binding="b")

        def work():
            carrier.load()
            carrier.guard.count("n", 5)

        if __name__ == "__main__":
            carrier.load()
            process = multiprocessing.get_context("{method}").Process(target=work, name="EngineCore")
            process.start()
            process.join()
            assert process.exitcode == 0
    """))
    folder = tmp_path / "reports"
    folder.mkdir()
    environment = {"PYTHONPATH": str(SOURCE), "VLLM_HUST_TEST": "1", engine_report.FOLDER_VARIABLE: str(folder)}
    subprocess.run([sys.executable, str(script)], check=True, timeout=60, env={**os.environ, **environment})
    documents = [json.loads(path.read_text()) for path in folder.iterdir()]
    counted = {document["process"]["role"]: document["carriers"][0]["counters"] for document in documents}
    assert counted == {"other": {}, "engine-core": {"n": 5}}


MUTANTS = {
    "written although nothing changed": (
        "                if text == self._last:\n", "                if False:\n",
        lambda f: test_the_thread_writes_when_something_changed_only(f.report, f.carrier, f.tmp_path, f.validate)),
    "readable by everybody": (
        "os.O_EXCL, 0o600)", "os.O_EXCL, 0o644)",
        lambda f: test_the_thread_writes_when_something_changed_only(f.report, f.carrier, f.tmp_path, f.validate)),
    "a temporary file stays": (
        "                os.unlink(temporary)\n", "                pass\n",
        lambda f: test_a_failed_replacement_leaves_no_temporary_file(
            f.report, f.carrier, f.tmp_path, f.monkeypatch, f.lines)),
    "a field is missing": (
        '            "launch_id": self._launch_id,\n', "",
        lambda f: test_golden_documents_have_the_fields_we_write(f.report, f.carrier)),
    "a warning every time": (
        "            if not self._warned:\n", "            if True:\n",
        lambda f: test_a_folder_that_cannot_be_written_is_one_warning(
            f.monkeypatch, f.carrier, f.tmp_path, f.lines, "missing")),
}


@pytest.mark.parametrize(("old", "new", "check"), MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_noticed(report, carrier, tmp_path, validate, lines, monkeypatch, mutant, old, new, check):
    import types

    broken = mutant(engine_report, old, new)
    made = broken.EngineReport(interval_s=0.01)
    made._registered = True
    monkeypatch.setitem(globals(), "EngineReport", broken.EngineReport)
    fixtures = types.SimpleNamespace(
        report=made, carrier=carrier, tmp_path=tmp_path, validate=validate, lines=lines, monkeypatch=monkeypatch)
    try:
        with pytest.raises((AssertionError, ValueError)):
            check(fixtures)
    finally:
        made._stop.set()
