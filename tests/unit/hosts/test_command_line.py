"""The command itself, with sources that are made up: what it writes, what it compares, what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.hosts import __main__ as command
from tools.hosts.live import Runner
from tools.setup_environment import SetupError

RELEASE = "0.27.1rc1"


class MadeUp:
    """Sources in a folder of the test's own."""

    folder: Path

    def __init__(self, *_: object) -> None: ...

    def fetch(self, _: object) -> list[str]:
        return []

    def path(self, _: object) -> list[Path]:
        return [self.folder]

    def digests(self, _: object) -> dict[str, str]:
        return {"host": "0"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    MadeUp.folder = tmp_path / "sources"
    MadeUp.folder.mkdir()
    monkeypatch.setattr(command, "Sources", MadeUp)
    (tmp_path / "base" / "bin").mkdir(parents=True)
    (tmp_path / "base" / "bin" / "python").touch()
    places = [f"--{name}={tmp_path / name}" for name in ("base", "work", "out")]
    return lambda *arguments: command.main([*places, "--releases", RELEASE, *arguments])


def test_static_answers_are_written_and_then_compared(run, tmp_path, capsys) -> None:
    assert run("--static") == 0
    record = json.loads((tmp_path / "out" / f"{RELEASE}.json").read_text())
    assert list(record["parts"]) == ["static"]
    assert record["host"] == {"vllm": "0.27.1", "vllm-ascend": RELEASE}
    assert (tmp_path / "out" / "table.md").exists()
    assert run("--static", "--check") == 0
    # Another host: a package is there now, and nothing of what the carriers need is in it.
    (MadeUp.folder / "vllm_ascend").mkdir()
    (MadeUp.folder / "vllm_ascend" / "__init__.py").touch()
    capsys.readouterr()
    assert run("--static", "--check") == 1
    assert "holds other answers: run `make hosts ARGS=--static`" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / f"{RELEASE}.json").read_text()) == record, "a comparison writes nothing"


def test_what_was_run_on_the_same_sources_is_not_run_again(run, tmp_path, monkeypatch, capsys) -> None:
    ran: list[str] = []
    monkeypatch.setattr(command.environments, "prepare", lambda release, *_: None)
    monkeypatch.setattr(command.environments, "discard", lambda environment: ran.append("discard"))
    result = {"outcomes": {"passed": 1}, "not_passed": [], "compared": {"padding: steps": 3}}

    def host_model(runner: Runner, release: str) -> object:
        assert release == RELEASE
        ran.append("host_model")
        return result

    monkeypatch.setattr(Runner, "host_model", host_model)
    assert run("--parts", "host_model") == 0
    assert ran == ["host_model", "discard"]
    assert "3 cases compared with the real classes" in capsys.readouterr().out
    assert run("--parts", "host_model") == 0
    assert ran == ["host_model", "discard"]
    assert "was run on these sources before" in capsys.readouterr().out
    assert run("--parts", "host_model", "--again", "--keep") == 0
    assert ran == ["host_model", "discard", "host_model"]
    result["not_passed"] = ["FAILED tests/host_model/x"]
    assert run("--parts", "host_model", "--again") == 1
    assert "PROBLEM: host model: FAILED tests/host_model/x" in capsys.readouterr().out


def test_one_release_that_cannot_be_set_up_does_not_end_the_others(run, monkeypatch, capsys) -> None:
    def fail(release: object, *_: object) -> None:
        raise SetupError("no space left")

    monkeypatch.setattr(command.environments, "prepare", fail)
    assert run("--parts", "live") == 1
    assert "PROBLEM: no space left" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--releases", "0.1"], "stopped: no such release here: 0.1. There are: 0.23.0"),
        (["--base", "/nowhere"], "stopped: there is no environment in /nowhere"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(run, capsys, arguments, said) -> None:
    assert run("--static", *arguments) == 2
    assert said in capsys.readouterr().out


def test_an_unknown_part_is_refused(run, capsys) -> None:
    with pytest.raises(SystemExit):
        run("--parts", "statics")
    assert "statics unknown; there are static live proofs host_model" in capsys.readouterr().err
