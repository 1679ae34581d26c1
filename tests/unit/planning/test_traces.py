"""Readers: what each source yields, and that no line is lost without a word."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest

from vllm_ascend_split_batch.planning.traces import (
    FORMATS,
    SCHEMA,
    TraceError,
    TraceRequest,
    Workload,
    detect,
    generate,
    read_trace,
    write_trace,
)
from vllm_ascend_split_batch.planning.traces.lines import Assumed

DOCS = Path(__file__).parents[3] / "docs" / "formats"


def written(folder: Path, *lines: object, name: str = "trace") -> Path:
    path = folder / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


LINE = {"arrival": 1.5, "prompt_tokens": 10, "output_tokens": 3}


def test_the_format_itself(tmp_path: Path) -> None:
    full = {**LINE, "id": "a", "job": "nightly", "priority": -1, "max_tokens": 4}
    trace = read_trace(written(tmp_path, {"schema": SCHEMA}, full, "", {**LINE, "arrival": 0.5}))
    assert trace.format == "trace"
    assert trace.requests == [
        TraceRequest("line-4", 0.5, 10, 3),
        TraceRequest("a", 1.5, 10, 3, "nightly", -1, 4),
    ]
    assert (trace.problems, trace.reordered) == ([], 1)


def test_a_trace_is_written_and_read_again(tmp_path: Path) -> None:
    requests = [*generate(Workload(requests=50)), TraceRequest("läst", 1e6, 1, 1, "j", 7, 9)]
    path = tmp_path / "t.jsonl"
    assert write_trace(path, requests) == 51
    assert read_trace(path, strict=True).requests == requests
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(packed).requests == requests
    schema = json.loads((DOCS / "trace.schema.json").read_text())
    for line in path.read_text().splitlines():
        jsonschema.validate(json.loads(line), schema)


BAD = [
    ("{", "no JSON"),
    ("[1]", "no JSON object"),
    ({"arrival": 1, "prompt_tokens": 1}, "no output_tokens"),
    ({**LINE, "arrival": "1"}, "arrival is '1', a number of seconds is needed"),
    ({**LINE, "arrival": float("nan")}, "arrival is nan"),
    ({**LINE, "prompt_tokens": 0}, "prompt_tokens is 0, a whole number of at least 1 is needed"),
    ({**LINE, "output_tokens": -1}, "output_tokens is -1"),
    ({**LINE, "output_tokens": False}, "output_tokens is False"),
    ({**LINE, "prompt_tokens": 0, "output_tokens": 0}, "prompt_tokens is 0"),
    ({**LINE, "output_tokens": 2.5}, "output_tokens is 2.5"),
    ({**LINE, "output_tokens": True}, "output_tokens is True"),
    ({**LINE, "priorty": 1}, "unknown field 'priorty'"),
    ({**LINE, "priority": 1.5}, "priority is 1.5"),
    ({**LINE, "job": None}, "job is None"),
    ({**LINE, "id": "first"}, "id 'first' was on line 1 already"),
    ({"schema": SCHEMA}, "a header belongs on the first line"),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_a_bad_line_is_named(line: object, reason: str, tmp_path: Path) -> None:
    path = written(tmp_path, {**LINE, "id": "first"}, line, LINE)
    trace = read_trace(path)
    assert len(trace.requests) == 2
    (problem,) = trace.problems
    assert (problem.line, problem.malformed) == (2, True)
    assert reason in problem.reason
    with pytest.raises(TraceError, match=r"trace: line 2: .*\(--strict\)"):
        read_trace(path, strict=True)
    schema = json.loads((DOCS / "trace.schema.json").read_text())
    if isinstance(line, dict) and not {"id", "schema"} & line.keys() and line["arrival"] == line["arrival"]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(line, schema)


def test_no_output_is_a_request_that_was_not_served(tmp_path: Path) -> None:
    line = {**LINE, "output_tokens": 0}
    trace = read_trace(written(tmp_path, LINE, line), strict=True)
    assert len(trace.requests) == 1
    assert [(one.line, one.reason, one.malformed) for one in trace.problems] == [(2, "no tokens were produced", False)]
    jsonschema.validate(line, json.loads((DOCS / "trace.schema.json").read_text()))


def test_another_version_of_the_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="its header says 'other/2'"):
        read_trace(written(tmp_path, {"schema": "other/2"}, LINE))


def test_azure(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
        "2024-05-10 00:00:00.009930+00:00,1,0",
        "2023-11-16 18:15:48,x,2",
        "2023-13-16 18:15:48,1,2",
        "2023-11-16 18:15:48,1",
    )
    trace = read_trace(path)
    assert trace.format == "azure"
    assert trace.requests == [TraceRequest("row-2", 0.0, 374, 44), TraceRequest("row-3", 4.314579, 396, 109)]
    assert [(problem.line, problem.malformed) for problem in trace.problems] == [
        (4, False),
        (5, True),
        (6, True),
        (7, True),
    ]
    assert trace.malformed == 3


def test_times_with_an_offset(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 02:00:00+02:00,1,1",
        "2024-05-10T00:00:01Z,1,1",
        "2024-05-09 21:30:02-02:30,1,1",
    )
    assert [request.arrival for request in read_trace(path).requests] == [0.0, 1.0, 2.0]


def test_burstgpt(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,ChatGPT,472,18,490,Conversation log",
        "45.5,GPT-4,1087,230,1317,API log",
        "118,GPT-4,417,0,417,Conversation log",
    )
    trace = read_trace(path, strict=True)
    assert trace.format == "burstgpt"
    assert trace.requests == [
        TraceRequest("row-2", 0.0, 472, 18, "ChatGPT, Conversation log"),
        TraceRequest("row-3", 40.5, 1087, 230, "GPT-4, API log"),
    ]
    assert trace.problem_counts() == {"no tokens were produced": 1}


def test_vllm_bench(tmp_path: Path) -> None:
    one = {
        "duration": 4.0,
        "input_lens": [5, 6, 7],
        "output_lens": [8, 0, 9],
        "start_times": [100.0, 100.5, 102.0],
        "errors": ["", "Traceback\n  x\nTimeoutError: gone", ""],
    }
    path = written(tmp_path, one, {**one, "errors": ["", "", ""]})
    trace = read_trace(path)
    assert trace.format == "vllm-bench"
    assert [(one.arrival, one.prompt_tokens, one.output_tokens) for one in trace.requests] == [
        (0.0, 5, 8), (2.0, 7, 9), (4.0, 5, 8), (6.0, 7, 9)
    ]  # fmt: skip
    assert [(problem.line, problem.reason) for problem in trace.problems] == [
        (2, "failed: TimeoutError: gone"),
        (5, "no tokens were produced"),
    ]
    del one["start_times"]
    with pytest.raises(TraceError, match="no list 'start_times'; run `vllm bench serve` with --save-result"):
        read_trace(written(tmp_path, one))


def test_access_log(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    path = written(
        tmp_path,
        {"id": "chatcmpl-1", "created": 1700000000, "usage": usage, "metadata": {"job": "eval"}},
        {"time": "2023-11-14T22:13:21.5Z", "status": 200, "response": {"id": "b", "usage": usage}, "priority": 2},
        {"ts": 1700000002250, "status": 429},
        {"ts": 1700000002250, "request": {"max_tokens": 5}, "response": {"body": {"usage": {"input_tokens": 3}}}},
        {"usage": usage},
    )
    trace = read_trace(path)
    assert trace.format == "access-log"
    assert trace.requests == [
        TraceRequest("chatcmpl-1", 0.0, 11, 7, "eval"),
        TraceRequest("b", 1.5, 11, 7, "", 2),
    ]
    assert [(problem.line, problem.malformed) for problem in trace.problems] == [(3, False), (4, True), (5, True)]
    assert "no usage.completion_tokens; --assume-output-tokens N" in trace.problems[1].reason
    assumed = read_trace(path, assumed=Assumed(output_tokens=40)).requests[-1]
    assert assumed == TraceRequest("line-4", 2.25, 3, 40, max_tokens=5)


def log_line(second: str, text: str, level: str = "INFO") -> str:
    return f"(APIServer pid=7) {level} 12-31 23:59:{second} [request_logger.py:64] {text}"


def details(request: str, ids: object) -> str:
    return log_line("58", f"Request {request} details: prompt: 'a: [1, 2]', prompt_token_ids: {ids}, prompt_embeds shape: None.", "DEBUG")  # noqa: E501  # fmt: skip


def received(request: str, second: str = "58") -> str:
    parameters = "SamplingParams(n=1, temperature=1.0, max_tokens=12, logprobs=None)"
    return log_line(second, f"Received request {request}: params: {parameters}, lora_request: None.")


def response(request: str, ids: object, stream: str = "", output: str = "hi") -> str:
    return log_line(
        "59", f"Generated response {request}{stream}: output: {output!r}, output_token_ids: {ids}, finish_reason: stop"
    )


def test_vllm_log(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "INFO 12-31 23:59:57 [api_server.py:10] Starting",
        details("a", [1, 2, 3]),
        received("a"),
        details("b", [1]),
        received("b"),
        response("a", [5, 6]),
        response("b", [5], " (streaming delta)"),
        response("b", [6, 7], " (streaming delta)"),
        response("b", None, " (streaming complete)", "hello"),
        details("c", [9, 9]),
        received("c").replace("12-31 23:59:58", "01-01 00:00:00"),
        response("c", None, " (streaming complete)", "<streaming_complete: 4 tokens>"),
        received("no-prompt").replace("12-31 23:59:58", "01-01 00:00:01"),
        response("stranger", [1]),
        details("d", [1]),
        received("d").replace("12-31 23:59:58", "01-01 00:00:01"),
    )
    trace = read_trace(path)
    assert trace.format == "vllm-log"
    assert trace.requests == [
        TraceRequest("a", 0.0, 3, 2, max_tokens=12),
        TraceRequest("b", 0.5, 1, 3, max_tokens=12),
        TraceRequest("c", 2.0, 2, 4, max_tokens=12),
    ]
    assert sorted((problem.line, problem.reason.split(";")[0]) for problem in trace.problems) == [
        (13, "request no-prompt: no prompt logged (VLLM_LOGGING_LEVEL=DEBUG logs it)"),
        (14, "a response of request stranger, which was not received in this log"),
        (16, "request d: no response logged (--enable-log-outputs logs it)"),
    ]
    assumed = read_trace(path, assumed=Assumed(prompt_tokens=100, output_tokens=50))
    assert [(one.id, one.arrival, one.prompt_tokens, one.output_tokens) for one in assumed.requests[3:]] == [
        ("no-prompt", 3.0, 100, 50),
        ("d", 3.5, 1, 50),
    ]


def span(number: int, **attributes: object) -> dict[str, object]:
    kinds = {int: "intValue", float: "doubleValue", str: "stringValue"}
    return {
        "name": "llm_request",
        "traceId": "t",
        "spanId": str(number),
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + number * 250_000_000),
        "attributes": [
            {"key": "gen_ai." + name.replace("__", "."), "value": {kinds[type(value)]: str(value)}}
            for name, value in attributes.items()
        ],
    }


def test_otlp(tmp_path: Path) -> None:
    def spans(*members: object) -> dict[str, object]:
        return {"resourceSpans": [{"scopeSpans": [{"spans": list(members)}]}]}

    full = span(1, usage__prompt_tokens=4, usage__completion_tokens=6, request__id="r1", request__max_tokens=9)
    none = span(2, usage__prompt_tokens=4, usage__completion_tokens=0)
    newer = span(3, usage__input_tokens=1, usage__output_tokens=2)
    other = {"name": "load_model"}
    expected = [TraceRequest("r1", 0.0, 4, 6, max_tokens=9), TraceRequest("t-3", 0.5, 1, 2)]
    by_line = read_trace(written(tmp_path, spans(full, other), spans(none, newer), "{"))
    assert by_line.format == "otlp"
    assert by_line.requests == expected
    assert [(problem.line, problem.malformed) for problem in by_line.problems] == [(2, False), (3, True)]
    whole = written(tmp_path, json.dumps(spans(full, none, newer, full), indent=1))
    trace = read_trace(whole)
    assert trace.requests == expected
    assert trace.problems[1].reason == "span 1: request 'r1' has a span already"
    with pytest.raises(TraceError, match="no span named 'llm_request'"):
        read_trace(written(tmp_path, spans(other)))


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "absent")
    with pytest.raises(TraceError, match="it is empty"):
        read_trace(written(tmp_path, ""))
    with pytest.raises(TraceError, match=f"its format is not known by its beginning; name one .*{FORMATS[-1]}"):
        detect(written(tmp_path, "hello"))
    with pytest.raises(TraceError, match=r"it holds no request .read as 'trace'.; line 1: no output_tokens"):
        read_trace(written(tmp_path, {"arrival": 1, "prompt_tokens": 1}))
    with pytest.raises(TraceError, match="names no column 'ContextTokens'"):
        read_trace(written(tmp_path, "TIMESTAMP,x"), format="azure")
    with pytest.raises(TraceError, match="no line tells of a request; start the server with --enable-log-requests"):
        read_trace(written(tmp_path, "x"), format="vllm-log")
    packed = tmp_path / "x.gz"
    packed.write_bytes(b"plain")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(packed)


def test_a_workload_is_what_was_asked_for() -> None:
    requests = list(generate(Workload(requests=4000, rate=10, burstiness=1, long_share=0.25, jobs=2)))
    assert requests == list(generate(Workload(requests=4000, rate=10, burstiness=1, long_share=0.25, jobs=2)))
    assert requests[-1].arrival == pytest.approx(400, rel=0.1)
    assert sum(one.prompt_tokens > 450 for one in requests) / 4000 == pytest.approx(0.27, abs=0.05)
    by_job = [sorted(one.output_tokens for one in requests if one.job == job) for job in ("job-0", "job-1")]
    assert [lengths[len(lengths) // 2] for lengths in by_job] == pytest.approx([40, 360], rel=0.1)
    assert {one.job for one in generate(Workload(requests=9, jobs=0))} == {""}
    with pytest.raises(ValueError, match="long_share must be between 0 and 1, got 2"):
        Workload(requests=1, long_share=2)


def test_burstiness_is_the_squared_variation_of_the_times_between_arrivals() -> None:
    arrivals = [one.arrival for one in generate(Workload(requests=20_000, rate=1, burstiness=4))]
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2 == pytest.approx(4, rel=0.15)
