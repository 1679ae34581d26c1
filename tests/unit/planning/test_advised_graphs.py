"""Capture sizes are advised only where the trace says enough and a change is worth it; and how to pass them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend_split_batch.host_model.admission import EngineSettings, HostRelease, Policy, ShortRequestFirstSettings
from vllm_ascend_split_batch.host_model.padding import GraphMode, HostSettings
from vllm_ascend_split_batch.planning.advice import evidence, graphs, report
from vllm_ascend_split_batch.planning.advice.evidence import ENOUGH_OF_A_BATCH, shortage
from vllm_ascend_split_batch.planning.advice.graphs import Proposal, WorstPadding, decide, propose, worst_padding
from vllm_ascend_split_batch.planning.advice.serve_arguments import serve_arguments
from vllm_ascend_split_batch.planning.commands import main
from vllm_ascend_split_batch.planning.simulation import Setup, StepTotals
from vllm_ascend_split_batch.planning.summary import Summary
from vllm_ascend_split_batch.planning.traces import Workload, generate, write_trace


def engine(seqs: int = 256, sizes: tuple[int, ...] | None = None, mode: str = "FULL_DECODE_ONLY") -> Setup:
    return Setup(
        EngineSettings(max_num_seqs=seqs), HostSettings(HostRelease.V0_27_1, GraphMode[mode], seqs, capture_sizes=sizes)
    )


def totals(steps: dict[int, int], seconds: float = 0.0) -> StepTotals:
    counted = StepTotals(seconds=seconds)
    counted.decode_steps.update(steps)
    return counted


def summary(steps: dict[int, int], *, requests: int = 500, seconds: float = 0.0) -> Summary:
    one = Summary("one", totals(steps, seconds))
    one.waits.extend([0.0] * requests)
    return one


def held(ladder: tuple[int, ...], batch: int) -> int | None:
    return next((size for size in sorted(ladder) if size >= batch), None)


@settings(max_examples=60)
@given(st.integers(1, 48), st.dictionaries(st.integers(1, 48), st.integers(0, 3000), max_size=20))
def test_a_batch_that_the_trace_does_not_know_is_padded_no_further(seqs: int, steps: dict[int, int]) -> None:
    setup = engine(seqs)
    steps = {batch: count for batch, count in steps.items() if batch <= seqs}
    sizes = propose(setup, totals(steps), None, "").sizes
    assert sizes is not None
    assert sizes[-1] == seqs
    ladder = graphs.StepGraphs(setup.host).ladder
    assert len(sizes) <= len(ladder) + 1
    for batch in range(1, seqs + 1):
        now, then = held(ladder, batch), held(sizes, batch)
        assert then is not None
        if now is not None and steps.get(batch, 0) < ENOUGH_OF_A_BATCH:
            assert then <= now
    most = max(steps, default=0)
    grid = {size for size in ladder if size >= most}
    assert grid <= set(sizes)  # above the largest batch reached: the host's own grid


def test_what_is_known_may_move() -> None:
    # 8 and 16 hold nothing unknown up to 13 here: all of 9 to 16 are known
    steps = dict.fromkeys(range(9, 17), ENOUGH_OF_A_BATCH) | {13: 5000}
    assert propose(engine(16), totals(steps), None, "").sizes == (1, 2, 4, 8, 16)
    steps[10] = 9000
    assert propose(engine(16, (8, 12, 16)), totals(steps), 3, "").sizes == (8, 10, 16)
    steps[12] = ENOUGH_OF_A_BATCH - 1
    assert propose(engine(16, (8, 12, 16)), totals(steps), 3, "").sizes == (8, 12, 16)


def test_a_small_trace_changes_no_sizes() -> None:
    few = shortage(summary({3: 999}, requests=499))
    assert few == "499 requests answered, 500 are needed; 999 decode steps, 1,000 are needed"
    assert shortage(summary({3: 1000}, requests=500)) == ""
    proposal = propose(engine(), totals({3: 9999}), None, few)
    assert proposal.sizes is None
    assert few in proposal.why


def test_fewer_graphs_that_were_asked_for() -> None:
    proposal = propose(engine(64), totals({60: 3000}), 4, "")
    assert proposal.asked
    assert proposal.sizes is not None
    assert (len(proposal.sizes), proposal.sizes[-1]) == (4, 64)
    assert 60 in proposal.sizes
    assert "too few to pad no unknown batch further than now" in proposal.why
    # nothing is known of a small trace, so its batches weigh as much as any
    assert propose(engine(8), totals({1: 50}), 2, "few").sizes == (4, 8)
    asked = propose(engine(8, (1, 2, 4, 8)), totals(dict.fromkeys(range(1, 9), 1000) | {5: 9999}), 2, "")
    assert (asked.sizes, asked.why) == ((5, 8), "at most 2 graphs were asked for")
    assert propose(engine(8, mode="NONE"), totals({1: 50}), 1, "").sizes is None


def decided(module: Any) -> list[tuple[bool, str]]:
    def one(then: float, *, asked: bool = False) -> Any:
        proposal = Proposal((3, 8), asked, "at most 2 graphs were asked for")
        return module.decide(proposal, summary({}, seconds=400), summary({}, seconds=then))

    choices = [one(396.1), one(395), one(410, asked=True), one(410)]
    return [(choice.keep, choice.why) for choice in choices]


def test_a_negligible_gain_is_not_advised() -> None:
    sizes = "the best 2 sizes found take"
    assert decided(graphs) == [
        (True, f"{sizes} 396.1 s of steps instead of 400.0 s (-0.97%), and a change must save 1%"),
        (False, f"{sizes} 395.0 s of steps instead of 400.0 s (-1.25%)"),
        (False, f"at most 2 graphs were asked for; {sizes} 410.0 s of steps instead of 400.0 s (+2.50%)"),
        (True, f"{sizes} 410.0 s of steps instead of 400.0 s (+2.50%), and a change must save 1%"),
    ]
    assert decide(Proposal((8,), False, ""), summary({}), summary({})).keep  # no steps at all


@pytest.mark.parametrize(
    ("old", "new"),
    [("WORTH = 0.01", "WORTH = 0.009"), ("if proposal.asked", "if False"), ("{-share:+.2%}", "{share:+.2%}")],
)
def test_mutants_of_the_decision_are_noticed(mutant: Callable[[ModuleType, str, str], Any], old: str, new: str) -> None:
    assert decided(mutant(graphs, old, new)) != decided(graphs)


def test_mutants_of_the_evidence_are_noticed(mutant: Callable[[ModuleType, str, str], Any]) -> None:
    steps = {3: ENOUGH_OF_A_BATCH, 4: ENOUGH_OF_A_BATCH - 1}
    expected = evidence.unknown_batches(steps, 5, too_small=False)
    assert expected == {1, 2, 4, 5}
    assert evidence.unknown_batches(steps, 5, too_small=True) == {1, 2, 3, 4, 5}
    for old, new in (("< ENOUGH_OF_A_BATCH)", "<= ENOUGH_OF_A_BATCH)"), ("too_small or", "")):
        changed = mutant(evidence, old, new)
        assert any(
            changed.unknown_batches(steps, 5, too_small=small) != evidence.unknown_batches(steps, 5, too_small=small)
            for small in (False, True)
        )


def test_the_worst_padding() -> None:
    now = engine(12, (1, 2, 4, 8))
    assert worst_padding(now, now) == (WorstPadding(5, 3, 3), None)
    assert worst_padding(now, engine(12, (1, 6, 12))) == (WorstPadding(7, 5, 1), WorstPadding(2, 4, 0))
    # nothing pads where no graph runs
    assert worst_padding(now, engine(12, (12,))) == (WorstPadding(1, 11, 0), WorstPadding(1, 11, 0))
    assert worst_padding(now, engine(12, (9,)))[0] == WorstPadding(1, 8, 0)
    assert worst_padding(engine(12, (4,)), engine(12, (4, 12))) == (WorstPadding(5, 7, None), None)
    assert worst_padding(now, engine(12, mode="NONE")) == (None, None)


# The command.


def advised(folder: Path, requests: int, *options: str, **workload: float) -> dict[str, Any]:
    trace = folder / "trace.jsonl"
    write_trace(trace, generate(Workload(requests=requests, **workload)))  # type: ignore[arg-type]
    arguments = ["advise", "--trace", str(trace), "--no-plots", "--workers", "1", "--out", str(folder / "out")]
    assert main([*arguments, *options]) == 0
    document: dict[str, Any] = json.loads((folder / "out" / "advice.json").read_text())
    return document


def command_in(text: str) -> list[str]:
    """The words of the command that the text shows."""
    return shlex.split(text.split("beside your other arguments\n")[1].split("\n\n")[0].replace("\\\n", " "))


def test_one_of_each_is_said_so() -> None:
    assert report._padded(WorstPadding(2, 1, 0)) == "a batch of 2 requests by 1 row; now by 0"
    assert report._padded(WorstPadding(1, 7, None)) == "a batch of 1 request by 7 rows; now without a graph"


def test_five_requests_are_said_to_be_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = advised(tmp_path, 5)
    text = capsys.readouterr().out
    few = "5 requests answered, 500 are needed"
    assert text.startswith(f"the trace is too small for advice: {few}\n\nfound in this trace, too small to rely on\n")
    assert f"keep the host's: 35 sizes, 1 to 256\n    because               the trace is too small to say which are better ({few})" in text  # noqa: E501  # fmt: skip
    assert document["trace_too_small"] == few
    assert document["set"]["keep_capture_sizes"] is True
    assert document["set"]["cudagraph_capture_sizes"] == document["capture_sizes_before"]
    assert document["worst_padding"] == {"batch": 9, "rows": 7, "rows_now": 7}
    assert "--compilation-config" in text
    assert "cudagraph_capture_sizes" not in text


def test_the_worst_padding_and_one_command_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = advised(tmp_path, 600, "--max-num-seqs", "20", "--max-graphs", "3", rate=4, output=30)
    text = capsys.readouterr().out
    assert text.startswith("set\n")
    sizes = document["set"]["cudagraph_capture_sizes"]
    worst, grown = document["worst_padding"], document["padding_grown_most"]
    assert len(sizes) == 3
    assert worst["rows"] == max(held(tuple(sizes), batch) - batch for batch in range(1, 21))  # type: ignore[operator]
    assert f"worst padding           a batch of {worst['batch']} requests by {worst['rows']} rows; now by " in text
    assert f"grows most            a batch of {grown['batch']} requests by {grown['rows']} rows; now by {grown['rows_now']}\n" in text  # noqa: E501  # fmt: skip
    words = command_in(text)
    assert words[:3] == ["vllm", "serve", "MODEL"]
    assert words[3:] == document["set"]["serve_arguments"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert json.loads(options["--compilation-config"])["cudagraph_capture_sizes"] == sizes
    assert json.loads(options["--additional-config"]) == document["set"]["additional_config"]


def all_arguments() -> list[list[list[str]]]:
    lanes = engine(20, (4, 20)).with_policy(
        policy=Policy.SHORT_REQUEST_FIRST,
        short_request_first=ShortRequestFirstSettings(848, 250.0),
        long_prefill_token_threshold=64,
    )
    jobs = engine().with_policy(policy=Policy.BATCH_JOB_AWARE, chunked_prefill=False)
    priority = engine(20, mode="NONE").with_policy(policy=Policy.PRIORITY)
    wide = engine(20)
    wide = replace(wide, host=replace(wide.host, tensor_parallel_size=2))
    return [serve_arguments(setup) for setup in (lanes, jobs, priority, wide)]


def test_serve_arguments() -> None:
    lanes, jobs, priority, wide = all_arguments()
    assert lanes == [
        ["--max-num-seqs", "20"],
        ["--max-num-batched-tokens", "8192"],
        ["--long-prefill-token-threshold", "64"],
        [
            "--additional-config",
            '{"scheduler_config": {"short_request_first_config": {"enabled": true, "threshold": 848, "long_max_wait_ms": 250.0}}}',  # noqa: E501
        ],
        ["--compilation-config", '{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4, 20]}'],
    ]
    assert ["--no-enable-chunked-prefill"] in jobs
    assert '"batch_job_sched_config": {"enabled": true' in jobs[-2][1]
    assert priority[2:] == [["--scheduling-policy", "priority"], ["--enforce-eager"]]
    assert wide[2] == ["--tensor-parallel-size", "2"]


_PARSER = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

for words in json.loads(sys.argv[1]):
    taken = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(words)
    graphs = taken.compilation_config
    print("taken", json.dumps([
        taken.max_num_seqs, taken.max_num_batched_tokens, taken.tensor_parallel_size, taken.enable_chunked_prefill,
        taken.long_prefill_token_threshold, taken.scheduling_policy, taken.enforce_eager, taken.additional_config,
        graphs.cudagraph_mode and graphs.cudagraph_mode.name, graphs.cudagraph_capture_sizes,
    ]))
"""


@pytest.mark.host
def test_the_installed_vllm_takes_the_arguments() -> None:
    emulator = pytest.importorskip("torch_npu_emulator")
    words = [[word for option in options for word in option] for options in all_arguments()]
    done = subprocess.run(
        [sys.executable, "-c", _PARSER, json.dumps(words)],
        env=emulator.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    taken = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("taken ")]
    lanes, jobs, priority, wide = taken
    config = {"scheduler_config": {"short_request_first_config": {"enabled": True, "threshold": 848, "long_max_wait_ms": 250.0}}}  # noqa: E501  # fmt: skip
    assert [lanes[index] for index in (0, 1, 4, 7, 8, 9)] == [20, 8192, 64, config, "FULL_DECODE_ONLY", [4, 20]]
    assert (jobs[3], jobs[7]["batch_job_sched_config"]["max_jobs"], jobs[9]) == (False, 20, None)
    assert priority[5:7] == ["priority", True]
    assert wide[2] == 2
