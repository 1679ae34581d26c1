"""The acceptance kit without a device: what measurements mean, and the folder they are kept in."""

from __future__ import annotations

import argparse
import copy
import json
import math
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_ascend_split_batch.cascade.acceptance import folder, identity
from vllm_ascend_split_batch.cascade.acceptance.serving import Cell, Measured, prompts
from vllm_ascend_split_batch.cascade.acceptance.verdict import judge
from vllm_ascend_split_batch.cascade.commands import accept, main
from vllm_ascend_split_batch.cascade.commands.settings import lower_floors
from vllm_ascend_split_batch.command_group import CommandError

CELL = {
    "cell": {"requests": 32, "prefix": 4096}, "engaged": 40, "reasons": {}, "speed_up": 1.8, "noise": 0.03,
    "slower": False,
}  # fmt: skip
GOOD = {
    "kernels": {"tier": "wheel", "kernels": "kernel wheel ok", "problem": None},
    "identity-eager": {
        "mode": "eager", "requests": 40, "equal": 36, "near_ties": 4, "faults": 0, "steps_two_stage": 60,
        "twins_replayed": 0, "failures": {},
    },
    "identity-graph": {
        "mode": "graph", "requests": 40, "equal": 36, "near_ties": 4, "faults": 0, "steps_two_stage": 60,
        "twins_replayed": 60, "failures": {},
    },
    "calibration": {"summary": "the profile describes eager within 4% of the times."},
    "serving-eager": {"mode": "eager", "cells": [CELL], "failures": {}},
    "serving-graph": {"mode": "graph", "cells": [CELL | {"speed_up": 2.1}], "failures": {}},
}  # fmt: skip


def test_all_in_order_is_accepted():
    verdict = judge(GOOD)
    assert verdict.accepted
    assert verdict.gains == [(32, 4096), (32, 4096)]
    assert verdict.text().startswith("ACCEPTED: ")
    assert "at best 2.10 times (graph, 32 requests sharing 4096 tokens)" in verdict.text()


SPOILT = {
    "wrong kernels": (("kernels", "problem"), "the prefix stage returns its LSE to base 2", "LSE to base 2"),
    "wrong texts": (("identity-graph", "faults"), 3, "texts, graph: 3 of 40 texts differ by more than a near tie"),
    "nothing compared": (("identity-eager", "steps_two_stage"), 0, "texts, eager: no step ran with cascade"),
    "no twin": (("identity-graph", "twins_replayed"), 0, "no graph twin was replayed"),
    "failures": (("identity-eager", "failures"), {"ValueError at x.py:3": 2}, "ValueError at x.py:3 (2)"),
    "arms differ": (("calibration",), {"problem": "the arms differ"}, "calibration: the arms differ"),
    "slower": (("serving-eager", "cells"), [CELL | {"speed_up": 0.8, "slower": True}], "20% slower than stock"),
    "failing while timed": (("serving-graph", "failures"), {"x": 3}, "speed, graph: cascade failed 3 times"),
}


@pytest.mark.parametrize(("place", "value", "said"), SPOILT.values(), ids=SPOILT.keys())
def test_each_fault_alone_is_not_accepted_and_is_named(place, value, said):
    results = copy.deepcopy(GOOD)
    inner = results
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    verdict = judge(results)
    assert not verdict.accepted
    assert any(said in problem for problem in verdict.problems)
    assert verdict.text().startswith("NOT ACCEPTED: leave cascade off")


def test_a_quick_run_that_is_in_order_runs_and_does_not_say_that_it_pays():
    results = copy.deepcopy(GOOD)
    nothing = [CELL | {"engaged": 0, "reasons": {"predicted_loss": 12}, "slower": True}]
    results["serving-eager"]["cells"] = nothing
    results["serving-graph"]["cells"] = nothing
    verdict = judge(results, speed_judged=False)
    assert verdict.text().startswith("IT RUNS: kernels and texts are in order")
    assert (verdict.in_order, verdict.accepted, verdict.as_json()["verdict"]) == (True, False, "it runs")
    assert "speed: not judged" in verdict.text()
    assert not judge(results).in_order
    for spoilt in ("wrong texts", "failing while timed"):
        place, value, _ = SPOILT[spoilt]
        wrong = copy.deepcopy(results)
        wrong[place[0]][place[1]] = value
        assert judge(wrong, speed_judged=False).text().startswith("NOT ACCEPTED")


@pytest.mark.parametrize(
    ("pays", "environment", "variables"),
    [
        ([(32, 8192), (64, 16384)], {}, ""),
        ([(32, 2048), (8, 4096)], {}, "VLLM_ASCEND_CASCADE_MIN_PREFIX=2048 VLLM_ASCEND_CASCADE_MIN_REQS=8"),
        ([(32, 2048)], {}, "VLLM_ASCEND_CASCADE_MIN_PREFIX=2048"),
        ([(32, 2048)], {"VLLM_ASCEND_CASCADE_MIN_PREFIX": "1024"}, ""),
        ([], {}, ""),
    ],
)
def test_floors_that_hide_what_pays_are_named(monkeypatch, pays, environment, variables):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert lower_floors(pays) == variables


def test_the_folder_names_the_floors_too(tmp_path):
    folder.finish(tmp_path, "ACCEPTED\n", {}, "VLLM_ASCEND_CASCADE_MIN_REQS=8")
    assert "/calibration.json VLLM_ASCEND_CASCADE_MIN_REQS=8`." in (tmp_path / "README.md").read_text()


def test_a_step_that_could_not_be_run_says_nothing_of_cascade():
    results = copy.deepcopy(GOOD) | {"serving-graph": {"error": "the device failed"}}
    verdict = judge(results)
    assert not verdict.accepted
    assert verdict.text().startswith("NOT TESTED: a step could not be run")
    assert "  not run: serving-graph: the device failed\n" in verdict.text()
    document = verdict.as_json()
    assert (document["verdict"], document["accepted"], document["problems"]) == ("not tested", False, [])
    assert document["untested"] == ["serving-graph: the device failed"]
    # What was found to be wrong weighs more.
    results["identity-eager"]["faults"] = 3
    assert judge(results).text().startswith("NOT ACCEPTED: leave cascade off")
    assert judge(results).as_json()["verdict"] == "not accepted"
    assert judge(GOOD).as_json()["verdict"] == "accepted"


def test_reasons_are_named_where_no_step_ran_with_cascade():
    results = copy.deepcopy(GOOD)
    for name in ("serving-eager", "serving-graph"):
        reasons = {"predicted_loss": 20, "outside_profile": 1 + len(name)}
        results[name]["cells"] = [CELL | {"engaged": 0, "reasons": reasons}]
    (problem,) = judge(results).problems
    assert problem.startswith("speed: no timed step ran with cascade: predicted_loss (40), outside_profile (28). ")


def test_no_gain_is_not_accepted():
    results = copy.deepcopy(GOOD)
    for name in ("serving-eager", "serving-graph"):
        results[name]["cells"] = [CELL | {"speed_up": 1.01}]
    assert judge(results).problems == [
        (
            "speed: nowhere faster than stock by more than the noise, so there is nothing to gain here. Try longer "
            "shared prompts or more requests (--cells), or another tier (--tier)."
        )
    ]


def text(*tokens: int, **other: float) -> list:
    """Likelihoods: the token -0.1, the one after it -1.0 unless said otherwise."""
    return [(token, {token: -0.1, token + 1: other.get("second", -1.0)}) for token in tokens]


def test_equal_texts():
    found = identity.compare(0, text(1, 2, 3), text(1, 2, 3))
    assert (found.same, found.lead, found.drift, found.accepted) == (3, None, 0.0, True)


@pytest.mark.parametrize(("second", "accepted"), [(-0.3, True), (-0.35, True), (-0.36, False), (-2.0, False)])
def test_a_near_tie_is_accepted_and_nothing_else(second, accepted):
    stock = text(1, 2) + text(7, second=second)
    found = identity.compare(0, stock, text(1, 2, 8))
    assert found.same == 2
    assert found.lead == pytest.approx(-0.1 - second)
    assert found.accepted is accepted


def test_a_token_stock_did_not_consider_is_a_fault():
    found = identity.compare(0, text(1, 2, 3), text(1, 9, 3))
    assert found.lead == math.inf
    assert not found.accepted
    (entry,) = identity.as_json(identity.Identity([found], 3, 0))["comparisons"]
    assert entry["lead"] == "not among the likeliest"


def test_likelihoods_that_drift_are_a_fault_even_where_texts_agree():
    drifted = [(1, {1: -0.1 - identity.DRIFT - 0.01})]
    assert not identity.compare(0, text(1), drifted).accepted


def test_rounds_bring_a_prefix_back_and_hold_more_requests_than_fit():
    work = identity.rounds(256, 8)
    assert work[0].seed == work[2].seed == work[4].seed != work[1].seed
    assert max(one.requests for one in work) > 8
    first, again = identity.prompts_of(work[0], 500), identity.prompts_of(work[4], 500)
    assert first == again
    assert len({tuple(prompt[: work[0].prefix]) for prompt in first}) == 1
    assert all(0 <= token < 500 for prompt in first for token in prompt)


def test_speed_is_compared_within_a_round():
    one = Measured(Cell(4, 256), stock=[2.0, 4.0], stock_again=[2.2, 4.4], cascade=[1.0, 2.0])
    assert one.speed_up == pytest.approx(2.1)
    assert one.noise == pytest.approx(1 - 2.0 / 2.2)
    assert not one.slower
    assert Measured(Cell(4, 256), stock=[1.0], stock_again=[1.02], cascade=[1.2]).slower


def test_longer_prefixes_continue_shorter_ones():
    short, long = prompts(Cell(2, 128), 1000, 0), prompts(Cell(2, 256), 1000, 0)
    assert long[0][:128] == short[0][:128] == short[1][:128]
    assert short[0][128:] != short[1][128:]


def test_the_folder_checks_itself(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.log").write_text("b")
    facts = {"device_name": "a device", "versions": {"vllm": "1"}, "emulated": True}
    folder.finish(tmp_path, judge(GOOD).text(), facts)
    assert folder.check_manifest(tmp_path) == []
    assert "an emulated NPU: times say nothing of a device" in (tmp_path / "README.md").read_text()
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "inner" / "b.log").unlink()
    (tmp_path / "more").write_text("")
    assert folder.check_manifest(tmp_path) == ["inner/b.log is missing", "more is not listed", "a.json was changed"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nowhere"], "nowhere"),
        (["--model", ".", "--cells", "1x128"], "'1x128' is not of the form 32x4096"),
        (["--model", ".", "--cells", "4x100"], "'4x100' is not of the form 32x4096"),
        (["--model", ".", "--modes", "fast"], "'fast' is not eager, graph or eager,graph"),
    ],
)
def test_bad_use_is_one_line(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["accept", *arguments]))
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(
        '{"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 16384}'
    )
    with pytest.raises(SystemExit):
        raise SystemExit(main(["accept", "--model", str(tmp_path / "model"), "--out", str(tmp_path)]))
    assert "is there already and not empty" in capsys.readouterr().err


def options_of(folder, positions, *arguments):
    config = {"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": positions}
    (folder / "config.json").write_text(json.dumps(config))
    parser = argparse.ArgumentParser()
    accept.add_arguments(parser)
    return parser.parse_args(["--model", str(folder), *arguments])


@pytest.mark.parametrize(
    ("positions", "arguments", "cells"),
    [
        (16384, (), [(8, 2048), (32, 2048), (32, 8192)]),
        (8192, (), [(8, 2048), (32, 2048), (32, 7680)]),
        (1000, (), [(8, 384), (32, 384)]),
        (8192, ("--quick",), [(4, 256), (8, 512)]),
        (8192, ("--cells", "4x4096"), [(4, 4096)]),
    ],
)
def test_the_usual_cells_are_no_longer_than_the_model_takes(tmp_path, positions, arguments, cells):
    assert accept._job(options_of(tmp_path, positions, *arguments))["cells"] == cells


@pytest.mark.parametrize(
    ("positions", "arguments", "said"),
    [
        (4096, ("--cells", "8x4096"), "4096 shared tokens and 512 more do not fit into the 4096 positions"),
        (512, (), "512 positions are too few, 640 is the least that can be tested"),
    ],
)
def test_prefixes_beyond_the_model_are_refused(tmp_path, positions, arguments, said):
    with pytest.raises(CommandError, match=said):
        accept._job(options_of(tmp_path, positions, *arguments))


@pytest.mark.parametrize(
    ("positions", "arguments", "batches", "prefixes"),
    [
        (640, ("--quick",), "4,8", "128,256,512"),
        (16384, ("--quick", "--cells", "64x2048"), "4,8,64", "256,512,2048"),
        (1000, (), "4,8,16,32,64", "384,1024,4096,8192"),
    ],
)
def test_the_calibration_covers_the_cells_that_are_timed(tmp_path, positions, arguments, batches, prefixes):
    """The decision says no below the smallest batch and prefix that were measured."""
    options = options_of(tmp_path, positions, *arguments)
    words = accept._calibrated(options.quick, accept._job(options)["cells"])
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert (given["--batches"], given["--prefixes"]) == (batches, prefixes)
    parser = argparse.ArgumentParser()
    accept.calibrate.add_arguments(parser)
    assert list(accept.calibrate._cells(parser.parse_args(words)))


@pytest.mark.parametrize("gib", ["nan", "inf", "1e300", "-1", "0", "many"])
def test_a_cache_that_cannot_be_is_refused(tmp_path, capsys, gib):
    with pytest.raises(SystemExit):
        options_of(tmp_path, 16384, f"--kv-cache-gib={gib}")
    assert f"{gib!r} is not a number from 0.001 to 1.04858e+06" in capsys.readouterr().err


def test_folders_of_users_that_are_not_there(tmp_path):
    with pytest.raises(CommandError, match=r"--out ~nosuchuser/x: cannot be made \(no user of that name"):
        accept._new_folder("~nosuchuser/x")


def test_a_home_is_found_for_the_engine_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    options = options_of(tmp_path, 16384)
    options.model = "~"
    assert accept._job(options)["model"] == str(tmp_path)


def test_without_a_device_nothing_is_left(tmp_path, capsys):
    options_of(tmp_path, 16384)
    with pytest.raises(SystemExit) as ended:
        main(["accept", "--model", str(tmp_path), "--out", str(tmp_path / "out")])
    assert ended.value.code == 1
    assert "accept: there is no usable NPU in this environment (" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Steps that go wrong, in processes of their own ----------------------------------------------------------------------

STEP = """
import json, os, subprocess, sys, time
job = json.load(open(sys.argv[1]))
if job["step"] == "facts":
    json.dump({}, open(sys.argv[2], "w"))
else:
    BODY
"""
ACCEPT = """
import sys
from vllm_ascend_split_batch.cascade.commands import accept, main
accept.STEP_PROGRAM = (sys.executable, "-c", sys.argv[1])
sys.exit(main(["accept", "--quick", *sys.argv[2:]]))
"""


def started(folder: Path, body: str, *arguments: str) -> subprocess.Popen[str]:
    """The kit, with steps that do `body` in place of what they do."""
    options_of(folder, 16384)
    step = STEP.replace("BODY", body)
    command = [sys.executable, "-c", ACCEPT, step, "--model", str(folder), "--out", str(folder / "out"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "print('INFO Error handling is on'); os.kill(os.getpid(), 9)",
            "the step was ended by signal 9: often the kernel's answer to too little memory; see kernels.log",
        ),
        ("os.kill(os.getpid(), 15)", "the step was ended by signal 15; see kernels.log"),
        (
            "print('AError: 1\\nBError: 2\\nAError: 1\\nraise CError(\\nCError: 3\\nbye'); sys.exit(4)",
            "BError: 2 / CError: 3 (the step ended with status 4; see kernels.log)",
        ),
        ("print('acceptance: no kernels', file=sys.stderr); sys.exit(1)", "no kernels"),
    ],
    ids=["killed", "ended", "failed", "said"],
)
def test_a_step_that_goes_wrong_is_not_tested(tmp_path, body, said):
    process = started(tmp_path, body)
    printed, error = process.communicate(timeout=60)
    assert process.returncode == 1, error
    assert "NOT TESTED: a step could not be run, so leave cascade off until it is" in printed
    assert json.loads((tmp_path / "out" / "verdict.json").read_text())["untested"] == [f"kernels: {said}"]
    assert folder.check_manifest(tmp_path / "out") == []


def test_no_times_are_taken_of_what_was_not_compared(tmp_path):
    fine = 'json.dump({"problem": None, "kernels": "ok"}, open(sys.argv[2], "w"))'
    process = started(tmp_path, f'if job["step"] == "kernels": {fine}\n    else: sys.exit(1)')
    printed, _ = process.communicate(timeout=60)
    assert "not run: identity-graph: nothing was printed (the step ended with status 1; see" in printed
    done = sorted(path.stem for path in (tmp_path / "out").glob("*.log"))
    assert done == ["facts", "identity-eager", "identity-graph", "kernels"]


SLEEPING = "pair = [os.getpid(), subprocess.Popen(['sleep', '600']).pid]; print(*pair, '.', flush=True); time.sleep(99)"


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGTERM, "ended by SIGTERM"), (signal.SIGHUP, "ended by SIGHUP"), (signal.SIGINT, "interrupted")],
)
def test_a_run_that_is_ended_ends_its_step_and_clears_up(tmp_path, number, said):
    process = started(tmp_path, SLEEPING)
    log = tmp_path / "out" / "kernels.log"
    try:
        wait_for(lambda: log.is_file() and log.read_text().endswith(".\n"))
        children = [int(word) for word in re.findall("[0-9]+", log.read_text())]
        assert all(runs(child) for child in children)
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    out = tmp_path / "out"
    last = f"vllm-hust-ext cascade accept: {said}: {out} is not finished and holds no verdict"
    assert error.splitlines()[2:] == [last]
    wait_for(lambda: not any(runs(child) for child in children))
    assert sorted(path.name for path in out.iterdir()) == ["facts.json", "facts.log", "kernels.log"]


def test_a_full_disk_names_the_file(tmp_path):
    """A limit on the size of files stands for a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(OSError, match=re.escape(str(tmp_path / "verdict.txt"))):
            folder.write(tmp_path / "verdict.txt", "x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def runs(process: int) -> bool:
    """Whether a process is there and no more than a name that nobody has asked for yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
