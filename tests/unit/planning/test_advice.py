"""Advice: each part against a search or by hand, then the whole, and the `advise` command with its plots."""

from __future__ import annotations

import builtins
import doctest
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend_split_batch import __version__
from vllm_ascend_split_batch.host_model.admission import EngineSettings, HostRelease
from vllm_ascend_split_batch.host_model.padding import GraphMode, HostSettings
from vllm_ascend_split_batch.planning.advice import (
    Limits,
    advise,
    best_capture_sizes,
    candidates,
    capture_sizes,
    choose,
    lanes,
    split_advice,
)
from vllm_ascend_split_batch.planning.commands import main
from vllm_ascend_split_batch.planning.cost import GraphCost
from vllm_ascend_split_batch.planning.simulation import Setup, StepTotals
from vllm_ascend_split_batch.planning.summary import Summary
from vllm_ascend_split_batch.planning.sweep import Result, over_processes, simulate
from vllm_ascend_split_batch.planning.traces import TraceRequest, Workload, generate, write_trace


def rows(steps: dict[int, int], sizes: tuple[int, ...]) -> int:
    """Rows that the batches run in these graphs."""
    return sum(count * min(size for size in sizes if size >= batch) for batch, count in steps.items())


@settings(max_examples=150)
@given(
    st.dictionaries(st.integers(1, 12), st.integers(0, 50), max_size=8), st.integers(1, 4), st.sampled_from([1, 2, 4])
)
def test_capture_sizes_pad_as_little_as_any(steps: dict[int, int], most: int, multiple: int) -> None:
    sizes = best_capture_sizes(steps, most_graphs=most, largest=12, multiple=multiple)
    others = list(range(multiple, 12, multiple))
    least = min(rows(steps, (*some, 12)) for count in range(most) for some in combinations(others, count))
    assert rows(steps, sizes) == least
    assert len(sizes) <= most
    assert sizes[-1] == 12
    assert not any(size % multiple for size in sizes)


@settings(max_examples=150)
@given(
    st.dictionaries(st.integers(1, 12), st.integers(0, 50), max_size=6),
    st.integers(1, 5),
    st.sets(st.sampled_from([2, 4, 6, 8, 10, 12]), max_size=5),
    st.sets(st.integers(1, 12)),
    st.sampled_from([1, 2]),
)
def test_capture_sizes_pad_no_unknown_batch_further(
    steps: dict[int, int], most: int, present: set[int], unknown: set[int], multiple: int
) -> None:
    ladder = sorted(present)

    def keeps(sizes: tuple[int, ...]) -> bool:
        held = [batch for batch in unknown if ladder and batch <= ladder[-1]]
        return all(rows({batch: 1}, sizes) <= rows({batch: 1}, tuple(ladder)) for batch in held)

    sizes = best_capture_sizes(steps, most_graphs=most, largest=12, multiple=multiple, present=ladder, unknown=unknown)
    others = sorted({*present, *(-(-batch // multiple) * multiple for batch in steps)} - {12})
    all_sizes = [(*some, 12) for count in range(most) for some in combinations(others, count)]
    able = [rows(steps, one) for one in all_sizes if keeps(one)]
    assert bool(sizes) == bool(able)
    if able:
        assert keeps(sizes)
        assert rows(steps, sizes) == min(able)
        assert len(sizes) <= most


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bisect_left(held, size + 1)", "bisect_left(held, size + 2)"),
        ("bisect_left(held, size + 1)", "bisect_left(held, size)"),
        ("range(first[j], j)", "range(0, j)"),
        ("batch <= present[-1]", "batch < present[-1]"),
    ],
)
def test_mutants_of_the_bound_are_noticed(mutant: Callable[[ModuleType, str, str], Any], old: str, new: str) -> None:
    arguments = {"most_graphs": 4, "largest": 12, "present": (4, 8), "unknown": {1, 2, 3, 5, 8}}
    try:
        sizes = mutant(capture_sizes, old, new).best_capture_sizes({4: 100, 7: 100, 10: 9}, **arguments)
    except IndexError:
        return
    assert sizes != best_capture_sizes({4: 100, 7: 100, 10: 9}, **arguments)


def test_capture_sizes_at_their_ends() -> None:
    assert best_capture_sizes({}, most_graphs=5, largest=8) == (8,)
    assert best_capture_sizes({3: 1, 99: 7}, most_graphs=5, largest=8) == (3, 8)
    for arguments in ({"most_graphs": 0, "largest": 8}, {"most_graphs": 1, "largest": 6, "multiple": 4}):
        with pytest.raises(ValueError, match="must be"):
            best_capture_sizes({}, **arguments)
    assert doctest.testmod(capture_sizes).failed == 0


def test_when_a_split_pays() -> None:
    ladder = (1, 2, 4, 8, 16, 32, 64)
    # a launch costs 10 rows: 33 + 31 padding rows become 33 in 32 and 1, which saves 31
    advice = split_advice({33: 7, 20: 100, 64: 3}, ladder, GraphCost(10, 1))
    assert advice is not None
    assert advice.padding_saved_threshold == 10
    # 17 requests: 15 padding rows in the graph of 32, none in 16 and 1; 20: 12 are saved
    assert advice.min_batch_size_for_split == 17
    assert (advice.steps, advice.rows_saved) == (107, 7 * 31 + 100 * 12)
    assert advice.seconds_saved == pytest.approx((7 * 21 + 100 * 2) * 1e-6)
    dear = split_advice({33: 7}, ladder, GraphCost(31, 1))  # a tie does not pay
    assert dear is not None
    assert (dear.min_batch_size_for_split, dear.steps) == (None, 0)
    assert split_advice({33: 7}, ladder, GraphCost(31, 0)) is None
    assert split_advice({33: 7}, (), GraphCost(31, 1)) is None


def result(name: str, *waits: float) -> Result:
    summary = Summary(name, StepTotals())
    summary.waits.extend(waits)
    return Result(name, Setup(), summary)


def test_which_lanes_are_chosen() -> None:
    now = result("now", 4, 4, 4)
    starving, better, worse = result("starving", 0, 0, 9), result("better", 2, 4, 4), result("worse", 5, 4, 4)
    choice = choose(now, [starving, worse, better], longest_wait_factor=2)
    assert choice.result is better
    assert choice.why == (
        "mean wait 3.333 s instead of 4.000 s; left out, because somebody would wait longer than 8.0 s: 1 of 3 tried"
    )
    assert choose(now, [starving, better], longest_wait_factor=3).result is starving
    ended, fewer = Result("ended", Setup(), None, "too many jobs"), result("fewer", 0, 0)
    assert choose(now, [ended, fewer, result("nearly", 4, 4, 3.9)], longest_wait_factor=2).result is now


def chosen_lanes(module: ModuleType) -> list[tuple[str, str]]:
    now = result("now", 0.1, 0.4, 2.0)
    # means 0.2, 0.21 and 0.25; the current one is 0.833, and what is worth a change 0.042
    shortest, fairest, further = result("a", 0, 0, 0.6), result("b", 0.1, 0.1, 0.43), result("c", 0.25, 0.25, 0.25)
    few = [module.choose(now, tried, longest_wait_factor=2) for tried in ([shortest, fairest, further], [shortest])]
    # means 0.94 and 0.93, each worth a change; then 0.95 and 0.96, of which only the first is
    near = module.choose(result("now", 1, 1), [result("d", 0.94, 0.94), result("e", 0.96, 0.9)], longest_wait_factor=2)
    hardly = module.choose(result("now", 1, 1), [result("d", 0.9, 1), result("e", 0.96, 0.96)], longest_wait_factor=2)
    return [(choice.result.name, choice.why) for choice in (*few, near, hardly)]


def test_of_about_the_same_mean_wait_the_shortest_longest_wait_is_chosen() -> None:
    assert chosen_lanes(lanes) == [
        ("b", "mean wait 0.210 s instead of 0.833 s, the shortest longest wait (0.430 s) of 2 with about this mean"),
        ("a", "mean wait 0.200 s instead of 0.833 s"),
        ("d", "mean wait 0.940 s instead of 1.000 s, the shortest longest wait (0.940 s) of 2 with about this mean"),
        ("d", "mean wait 0.950 s instead of 1.000 s"),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("one[0] - best < worth", "one[0] - best <= 0"),
        ("one[0] - best < worth", "one[0] - best < 9"),
        ("(one[1], one[0])", "(one[0], one[1])"),
        ("wait - one[0] >= worth", "wait - one[0] > 0"),
    ],
)
def test_mutants_of_the_choice_are_noticed(mutant: Callable[[ModuleType, str, str], Any], old: str, new: str) -> None:
    assert chosen_lanes(mutant(lanes, old, new)) != chosen_lanes(lanes)


def test_candidates_suit_the_trace_and_the_release() -> None:
    requests = [TraceRequest(str(n), n, 10 * n + 1, 5, f"job-{n % 3}") for n in range(40)]
    names = [name for name, _ in candidates(requests, Setup(), result("now", *[0.5] * 40).summary)]  # type: ignore[arg-type]
    assert names[0] == "fcfs"
    assert names[-1] == "batch-job-aware"
    assert "short-request-first, 96 tokens, no ageing" in names
    assert (
        "short-request-first, 192 tokens, aged 1e+03 ms" in names
        or "short-request-first, 192 tokens, aged 1000 ms" in names
    )
    old = Setup(
        EngineSettings(release=HostRelease.V0_23), HostSettings(HostRelease.V0_23, GraphMode.FULL_DECODE_ONLY, 256)
    )
    assert [name for name, _ in candidates(requests, old, result("now", 1).summary)] == ["fcfs"]  # type: ignore[arg-type]


def small(seqs: int = 6, mode: GraphMode = GraphMode.FULL_DECODE_ONLY) -> Setup:
    shared = {"max_num_seqs": seqs, "max_num_batched_tokens": 512}
    return Setup(EngineSettings(**shared), HostSettings(HostRelease.V0_27_1, mode, **shared))  # type: ignore[arg-type]


def test_the_whole() -> None:
    requests = list(generate(Workload(requests=600, rate=4, output=30)))
    done = more = 0

    def progress(ended: int, needed: int) -> None:
        nonlocal done, more
        done, more = done + ended, more + needed

    with over_processes(requests, 1) as sweep:
        advice = advise(requests, small(), sweep, progress=progress)
    before, after = advice.before.summary, advice.after.summary
    assert before is not None
    assert after is not None
    assert done == more == len(advice.tried) + 2
    assert advice.ladder_before == (1, 2, 4)
    assert advice.ladder_after[-1] == 6
    assert len(advice.ladder_after) == 4  # as many as now, and one where max_num_seqs had none
    assert (advice.graphs.keep, advice.too_small) == (False, "")
    assert before.totals.decode_steps_without_graph > 0 == after.totals.decode_steps_without_graph
    assert after.waits != before.waits
    (decode, prompts) = advice.without_graph
    steps = before.totals.decode_steps_without_graph
    assert f"decode batches of 5 to 6 requests run without any graph: the largest capture size is 4, max_num_seqs 6. In this trace: {steps} of" in decode  # noqa: E501  # fmt: skip
    assert (
        "steps that compute prompts run without a graph: this graph mode has graphs for decode batches alone" in prompts
    )
    with over_processes(requests, 2) as sweep:
        again = advise(requests, small(), sweep)
    assert again.after.summary == after


def test_without_graphs_there_are_no_sizes_to_advise() -> None:
    requests = list(generate(Workload(requests=20)))
    with over_processes(requests, 1) as sweep:
        advice = advise(requests, small(mode=GraphMode.NONE), sweep)
    assert (advice.ladder_after, advice.split) == ((), None)
    assert advice.without_graph == ("graphs are off: every step runs without one",)


def test_graphs_of_mixed_steps_count_too() -> None:
    requests = [TraceRequest(str(n), n * 9.0, 5, 4) for n in range(600)]
    setup = small(mode=GraphMode.FULL_AND_PIECEWISE)
    with over_processes(requests, 1) as sweep:
        advice = advise(requests, setup, sweep)
        more = advise(requests, setup, sweep, limits=Limits(most_graphs=5))
        larger = advise(requests, setup.with_capture_sizes((1, 2, 4, 32)), sweep, limits=Limits(most_graphs=9))
    # prompts of 5 tokens and lone decodes are known; 2, 3 and 4 are not, and the host holds them in 2 and 4
    assert (advice.ladder_before, advice.ladder_after) == ((1, 2, 4), (1, 2, 4, 6))
    assert more.ladder_after == (1, 2, 4, 5, 6)
    assert larger.ladder_after == (1, 2, 4, 5, 32)  # mixed steps may have more tokens than there are requests


def test_a_policy_that_ends_the_engine_is_told() -> None:
    requests = [TraceRequest(str(n), float(n), 5, 2, f"job-{n}") for n in range(5)]
    setup = small().with_policy(policy="batch-job-aware", batch_job=type(EngineSettings().batch_job)(max_jobs=2))
    ended = simulate("x", setup, requests)
    assert ended.summary is None
    assert "more than 2 jobs" in ended.error
    with over_processes(requests, 1) as sweep, pytest.raises(ValueError, match="the host's engine would end here"):
        advise(requests, setup, sweep)


# The command.


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_trace(path, generate(Workload(requests=600, rate=4, output=30)))
    return path


def test_the_command_writes_plots_and_a_document(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="extra planner")
    out = tmp_path / "advice"
    assert main(["advise", "--trace", str(trace), "--max-num-seqs", "6", "--workers", "1", "--out", str(out)]) == 0
    printed, err = capsys.readouterr()
    assert {path.name for path in out.iterdir()} == {
        "advice.json", "padding.png", "padding.svg", "waiting.png", "waiting.svg"
    }  # fmt: skip
    document = json.loads((out / "advice.json").read_text())
    assert document["set"]["cudagraph_capture_sizes"][-1] == 6
    assert document["set"]["additional_config"]["scheduler_config"]["short_request_first_config"]["enabled"] is True
    assert document["set"]["keep_capture_sizes"] is False
    assert document["trace_too_small"] is None
    assert f"{document['before']['waiting, mean (s)']:,.3f}" in printed
    assert "note: decode batches of 5 to 6 requests run without any graph" in printed
    assert "written: " in err
    for name in ("padding", "waiting"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    texts = Counter(
        "".join(text.itertext())
        for name in ("padding", "waiting")
        for text in ElementTree.parse(out / f"{name}.svg").iter("{http://www.w3.org/2000/svg}text")
    )
    # where both are equal, what is before can be seen beneath
    for name in ("padding", "waiting"):
        svg = (out / f"{name}.svg").read_text()
        assert re.search(r"stroke: #d55e00; stroke-opacity: 0.5; stroke-width: 3.2", svg, re.I)
        assert re.search(r"stroke: #0072b2; stroke-opacity: 0.95; stroke-width: 1.6", svg, re.I)
    labels = {"requests in the decode batch", "padding rows per step", "waiting time, arrival to admission (s)"}
    assert labels <= texts.keys()
    padding = document["before"]["padding rows"]
    assert any(f"before: 3 graphs, {padding:,.0f} padding rows" in text for text in texts)


def test_without_matplotlib(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    really = builtins.__import__

    def without(name: str, *arguments: object) -> object:
        if name.split(".")[0] in ("matplotlib", "ray"):
            raise ImportError(name)
        return really(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    arguments = ["advise", "--trace", str(trace), "--out", str(tmp_path / "a"), "--max-num-seqs", "6"]
    with pytest.raises(SystemExit):
        main(arguments)
    assert (
        f"plots need matplotlib: pip install 'vllm-ascend-split-batch[planner]=={__version__}' "
        "(from the checkout: pip install '.[planner]'); or give --no-plots" in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        main([*arguments, "--no-plots", "--ray"])
    assert "--ray needs Ray, which is not installed here: pip install ray" in capsys.readouterr().err
    assert main([*arguments, "--no-plots", "--json", "--workers", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "vllm-ascend-split-batch.advice/1"


def test_a_folder_with_something_in_it_is_left_alone(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "advice"
    out.mkdir()
    arguments = ["advise", "--trace", str(trace), "--no-plots", "--max-num-seqs", "6", "--workers", "1"]
    assert main([*arguments, "--out", str(out)]) == 0
    written = (out / "advice.json").read_bytes()
    capsys.readouterr()
    for taken in (out, trace):
        with pytest.raises(SystemExit) as stopped:
            main([*arguments, "--max-graphs", "1", "--out", str(taken)])
        assert stopped.value.code == 2
        assert f"--out {taken}: is there already and not empty; name a new folder" in capsys.readouterr().err
    assert (out / "advice.json").read_bytes() == written


def test_a_sweep_over_a_local_ray_is_the_same() -> None:
    pytest.importorskip("ray", reason="not required: pip install ray")
    from vllm_ascend_split_batch.planning.sweep import over_ray

    requests = list(generate(Workload(requests=60)))
    named = [("a", small(6)), ("b", small(4))]
    with over_ray(requests, "local") as sweep:
        spread = sweep(named, lambda done: None)
    assert [one.summary for one in spread] == [simulate(name, setup, requests).summary for name, setup in named]
