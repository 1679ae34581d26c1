"""The clock, the steps and the outcomes of a simulation, worked out by hand; and the `simulate` command."""

from __future__ import annotations

import doctest
import json
from collections import Counter
from pathlib import Path

import pytest

from vllm_ascend_split_batch.host_model.admission import EngineSettings, HostRelease, Request, StepResult
from vllm_ascend_split_batch.host_model.padding import GraphMode, HostSettings, RuntimeMode
from vllm_ascend_split_batch.planning.commands import main
from vllm_ascend_split_batch.planning.simulation import Outcome, Setup, Simulation, StepGraphs, StepTime, simulator
from vllm_ascend_split_batch.planning.summary import Summary, mean, percentile
from vllm_ascend_split_batch.planning.traces import TraceRequest, Workload, generate, write_trace

MS = 1e-3
#: 1 ms for a step in a graph, 3 ms for one without, 1 ms per prompt token: times can be told by heart.
PLAIN = StepTime(graph_us=1000, eager_us=3000, row_us=0, prompt_token_us=1000)


def setup(
    *, seqs: int = 4, step_time: StepTime = PLAIN, sizes: tuple[int, ...] | None = None, **engine: object
) -> Setup:
    settings = {"max_num_seqs": seqs, "max_num_batched_tokens": 64}
    return Setup(
        EngineSettings(**{"max_model_len": 512, **settings, **engine}),  # type: ignore[arg-type]
        HostSettings(HostRelease.V0_27_1, GraphMode.FULL_DECODE_ONLY, capture_sizes=sizes, **settings),
        step_time,
    )


def run(engine: Setup, *requests: TraceRequest) -> tuple[dict[str, Outcome], Simulation]:
    simulation = Simulation(engine)
    return {one.request.id: one for one in simulation.run(requests)}, simulation


def times(outcome: Outcome) -> list[float]:
    return [outcome.admitted, outcome.first_token, outcome.finished]  # type: ignore[list-item]


def test_one_request() -> None:
    outcomes, simulation = run(setup(), TraceRequest("a", 5.0, 10, 4))
    # 3 ms and 10 prompt tokens; three decode steps of 1 ms
    assert times(outcomes["a"]) == pytest.approx([5.0, 5.013, 5.016])
    assert (outcomes["a"].outputs, outcomes["a"].reason) == (4, "stop")
    assert simulation.totals.modes == {("mixed", "NONE"): 1, ("decode", "FULL"): 3}
    assert simulation.totals.seconds == pytest.approx(0.016)


def test_a_request_that_arrives_during_a_step_is_seen_when_it_ends() -> None:
    outcomes, _ = run(setup(), TraceRequest("a", 0.0, 10, 100), TraceRequest("b", 0.0205, 1, 2))
    # a decodes from 13 ms on, a step each ms; b arrives in the step from 20 to 21
    assert times(outcomes["b"])[:2] == pytest.approx([0.021, 0.025])
    assert outcomes["b"].wait == pytest.approx(0.0005)


def test_an_idle_engine_waits_for_the_next_request() -> None:
    outcomes, simulation = run(setup(), TraceRequest("a", 0.0, 1, 1), TraceRequest("b", 9.0, 1, 1))
    assert times(outcomes["b"]) == pytest.approx([9.0, 9.004, 9.004])
    assert simulation.totals.seconds == pytest.approx(0.008)


def test_batches_above_the_largest_graph_run_without_one() -> None:
    requests = [TraceRequest(str(number), 0.0, 1, 9) for number in range(6)]
    _, simulation = run(setup(seqs=6), *requests)  # the host captures 1, 2 and 4
    assert simulation.totals.decode_steps == {6: 8}
    assert simulation.totals.decode_steps_without_graph == 8
    assert simulation.totals.seconds_without_graph == pytest.approx(8 * 3 * MS)
    _, captured = run(setup(seqs=6).with_capture_sizes((1, 2, 6)), *requests)
    assert captured.totals.decode_steps_without_graph == 0


def test_padding_rows_cost_time() -> None:
    dear = StepTime(graph_us=1000, eager_us=1000, row_us=500, prompt_token_us=0)
    requests = [TraceRequest(str(number), 0.0, 1, 3) for number in range(3)]
    _, simulation = run(setup(step_time=dear, sizes=(1, 2, 4)), *requests)
    # prompts: 1 ms; two steps of 1 ms and 4 rows
    assert simulation.now == pytest.approx((1 + 2 * (1 + 2)) * MS)
    assert (simulation.totals.padding, simulation.totals.decode_padding) == (2, 2)


def test_asynchronous_outputs_are_those_of_the_step_before() -> None:
    outcomes, simulation = run(setup(asynchronous=True), TraceRequest("a", 0.0, 10, 3))
    assert times(outcomes["a"])[:2] == pytest.approx([0.0, 0.013])
    assert outcomes["a"].finished == pytest.approx(0.015)
    assert simulation.totals.num_decode_steps == 3  # one more was scheduled before the end was known


def test_many_equal_steps_at_once_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = list(generate(Workload(requests=300, rate=40, most_prompt=400, most_output=100)))
    engine = setup(seqs=32, step_time=StepTime(2000, 3000, 50, 10), policy="short-request-first")
    together = [one.document() for one in Simulation(engine).run(requests)]
    monkeypatch.setattr(simulator.Simulation, "_steps_until", lambda self, upcoming: 1)
    assert [one.document() for one in Simulation(engine).run(requests)] == together


def test_policies_change_who_goes_first() -> None:
    requests = [
        TraceRequest("running", 0.0, 1, 50),
        TraceRequest("long", 0.001, 400, 1),
        TraceRequest("short", 0.002, 4, 1),
    ]
    first = {
        policy: min(("long", "short"), key=lambda name: outcomes[name].admitted)
        for policy in ("fcfs", "short-request-first")
        for outcomes, _ in [run(setup(seqs=1, policy=policy), *requests)]
    }
    assert first == {"fcfs": "long", "short-request-first": "short"}


def test_what_can_never_run_is_told() -> None:
    outcomes, _ = run(setup(), TraceRequest("a", 0.0, 512, 1), TraceRequest("b", 0.0, 10, 1))
    assert outcomes["a"].document()["finish_reason"] == "rejected"
    assert "leaves no room for output in max_model_len (512)" in outcomes["a"].why
    assert outcomes["b"].reason == "stop"
    outcomes, _ = run(setup(), TraceRequest("cut", 0.0, 500, 100), TraceRequest("most", 0.0, 5, 100, max_tokens=7))
    assert [(one.outputs, one.reason) for one in outcomes.values()] == [(7, "length"), (12, "length")]


def test_one_token_prompts_count_as_decodes_where_the_host_says_so() -> None:
    def mode(release: HostRelease) -> RuntimeMode:
        graphs = StepGraphs(HostSettings(release, GraphMode.FULL_DECODE_ONLY, max_num_seqs=4))
        fresh = Request("a", 1, 5)
        fresh.computed = 1
        return graphs.of(StepResult(decodes=2, prefills=[(fresh, 1)])).mode

    assert mode(HostRelease.V0_26) is RuntimeMode.FULL
    assert mode(HostRelease.V0_27_1) is RuntimeMode.NONE


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepTime(graph_us=-1), "graph_us must be a finite number of microseconds, 0 or more, got -1"),
        (lambda: StepTime(0, 0, 0, 0), "a step must take some time"),
        (
            lambda: StepGraphs(HostSettings(HostRelease.V0_27_1, GraphMode.FULL, 4, data_parallel_size=2)),
            "one data-para",
        ),
        (lambda: Setup(EngineSettings(max_num_seqs=3)), "max_num_seqs of admission and of padding differ"),
    ],
)
def test_settings_that_make_no_sense(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_percentiles() -> None:
    assert [percentile([3, 1, 2, 4], share) for share in (0.0, 0.25, 0.5, 0.51, 1.0)] == [1, 1, 2, 3, 4]
    assert (percentile([], 0.5), mean([]), mean([1, 2])) == (0, 0, 1.5)


def test_a_summary_counts_everything() -> None:
    engine = setup()
    simulation = Simulation(engine)
    summary = Summary("fcfs", simulation.totals)
    for outcome in simulation.run(
        [TraceRequest("a", 0, 600, 1), TraceRequest("b", 0, 6, 1), TraceRequest("c", 0, 60, 1)]
    ):
        summary.add(outcome)
    assert (summary.finished, summary.rejected, summary.unfinished) == (2, 1, 0)
    assert summary.waits_of(at_least=7) == pytest.approx([summary.waits[1]])


def test_examples_of_docstrings() -> None:
    assert doctest.testmod(simulator).failed == 0


# The command.


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_trace(path, generate(Workload(requests=200)))
    return path


def test_the_command_prints_a_line_per_request(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--trace", str(trace), "--policy", "batch-job-aware"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["id"] for line in lines} == {f"request-{number}" for number in range(200)}
    assert all(line["arrival"] <= line["admitted"] < line["first_token"] <= line["finished"] for line in lines)
    assert Counter(line["job"] for line in lines).keys() == {f"job-{number}" for number in range(4)}
    assert [line["finished"] for line in lines] == sorted(line["finished"] for line in lines)
    assert err.startswith("policy           batch-job-aware\nrequests         200 answered, 0 rejected")


def test_the_command_with_a_file_and_bad_lines(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with trace.open("a") as more:
        more.writelines(["{\n"] * 12)
    out, problems = tmp_path / "out.jsonl", tmp_path / "problems.jsonl"
    arguments = ["simulate", "--trace", str(trace), "--out", str(out)]
    assert main([*arguments, "--problems", str(problems), "--quiet"]) == 0
    printed, err = capsys.readouterr()
    assert printed == ""
    assert len(out.read_text().splitlines()) == 200
    assert "trace.jsonl: line 202: no JSON" in err
    assert "... and 2 more (--problems FILE writes all)" in err
    assert "200 requests; left out 12 malformed lines and 0 requests that were not served" in err
    assert [json.loads(line)["line"] for line in problems.read_text().splitlines()] == list(range(202, 214))
    with pytest.raises(SystemExit):
        main([*arguments, "--strict"])
    assert "line 202: no JSON" in capsys.readouterr().err


def test_requests_that_can_never_run_are_exit_status_1(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--trace", str(trace), "--max-model-len", "1000"]) == 1
    out, err = capsys.readouterr()
    assert '"finish_reason":"rejected"' in out
    assert " rejected, 0 never run" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: --trace"),
        (("--trace", "absent"), "absent cannot be read: No such file or directory"),
        (("--trace", "T", "--policy", "lifo"), "invalid choice: 'lifo'"),
        (("--trace", "T", "--kv-cache-tokens", "256"), "1 blocks of 128 tokens cannot hold one request"),
        (("--trace", "T", "--release", "0.9"), "vllm-ascend 0.9 is not modelled"),
        (("--trace", "T", "--capture-sizes", "9000"), "no capture size is left up to 8192 tokens"),
        (("--trace", "T", "--kv-cache-gib", "4"), "--kv-cache-gib needs --model"),
        (("--trace", "T", "--model", "absent"), "config.json cannot be read"),
        (("--trace", "T", "--graph-us", "nan"), "graph_us must be a finite number"),
        (("--trace", "T", "--policy", "batch-job-aware", "--max-jobs", "2"), "the host's engine would end here"),
        (("--trace", "T", "--out", "no/folder"), "--out no/folder: No such file or directory"),
        (("--trace", "T", "--problems", "no/folder"), "--problems no/folder: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: tuple[str, ...], message: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", *(str(trace) if one == "T" else one for one in arguments)])
    assert stopped.value.code in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_cache_of_a_model(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512, "num_hidden_layers": 4,
             "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}
        )
    )  # fmt: skip
    # 2 * 4 layers * 2 heads * 64 * 2 bytes = 2 KiB a token: 8193 tokens and a bit
    arguments = ["simulate", "--trace", str(trace), "--model", str(tmp_path), "--kv-cache-gib"]
    with pytest.raises(SystemExit):
        main([*arguments, str(8193 / 2**19)])
    assert "63 blocks of 128 tokens cannot hold one request of max_model_len (8192)" in capsys.readouterr().err
    assert main([*arguments, str(65 * 128 / 2**19), "--quiet"]) == 0


def test_record_writes_what_simulate_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "azure.csv"
    rows.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:47,3,4\n")
    out = tmp_path / "trace.jsonl"
    assert main(["record", "--from", str(rows), "--out", str(out)]) == 0
    assert f"{out}: 2 requests of {rows} (azure)" in capsys.readouterr().err
    assert main(["simulate", "--trace", str(out), "--strict", "--quiet"]) == 0
    assert [json.loads(line)["output_tokens"] for line in capsys.readouterr().out.splitlines()] == [44, 4]


def test_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trace.jsonl"
    assert main(["generate", "--requests", "7", "--seed", "3", "--jobs", "0", "--out", str(out)]) == 0
    written = tmp_path / "same.jsonl"
    write_trace(written, generate(Workload(requests=7, seed=3, jobs=0)))
    assert out.read_text() == written.read_text()
    with pytest.raises(SystemExit):
        main(["generate", "--requests", "7", "--rate", "0", "--out", str(out)])
    assert "rate must be a number above 0, got 0" in capsys.readouterr().err
