"""Whatever stands in a file: every line is a request or a named problem, and nothing but `TraceError` is raised."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend_split_batch.planning.traces import FORMATS, Trace, TraceError, TraceRequest, read_trace, write_trace

text = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r"), max_size=30)
value = st.none() | st.booleans() | st.integers(-2, 1 << 40) | st.floats() | text
objects = st.dictionaries(
    st.sampled_from(
        ["arrival", "prompt_tokens", "output_tokens", "id", "job", "priority", "max_tokens", "time", "status"]
    )
    | text,
    value
    | st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens", "body", "usage"]), value, max_size=3),
    max_size=6,
).map(json.dumps)
rows = st.lists(value.map(str), min_size=1, max_size=6).map(",".join)
lines = st.lists(text | objects | rows, max_size=6)

HEADERS = {
    "trace": '{"schema":"vllm-ascend-split-batch.trace/1"}',
    "access-log": '{"time":1,"usage":{"prompt_tokens":1,"completion_tokens":1}}',
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
}


def file(folder: str, content: str) -> Path:
    path = Path(folder) / "trace"
    path.write_bytes(content.encode())
    return path


def read(path: Path, name: str) -> tuple[Trace | None, str]:
    try:
        return read_trace(path, format=name), ""
    except TraceError as error:
        return None, str(error)


@pytest.mark.parametrize("name", HEADERS)
@settings(max_examples=60)
@given(content=lines)
def test_every_line_is_accounted_for(name: str, content: list[str]) -> None:
    good = {
        "trace": '{"arrival":1,"prompt_tokens":1,"output_tokens":1,"id":"the good one"}',
        "access-log": HEADERS["access-log"],
        "azure": "2024-01-01 00:00:00,1,1",
        "burstgpt": "1,m,1,1,2,l",
    }[name]
    with tempfile.TemporaryDirectory() as folder:
        path = file(folder, "\n".join([HEADERS[name], good, *content]))
        trace, refusal = read(path, name)
    if trace is None:
        assert "its header says" in refusal  # the one thing that stops a whole file
        return
    filled = sum(bool(line.strip()) for line in content) + 1 + (name == "access-log")
    assert len(trace.requests) + len(trace.problems) == filled
    assert all(problem.reason and problem.line >= 2 for problem in trace.problems)


@pytest.mark.parametrize("name", [*FORMATS, "auto"])
@settings(max_examples=40)
@given(content=lines)
def test_no_file_breaks_a_reader(name: str, content: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = file(folder, "\n".join(content))
        trace, refusal = read(path, name)
    assert trace.requests if trace else str(path) in refusal


requests = st.builds(
    TraceRequest,
    id=st.text(min_size=1, max_size=9),
    arrival=st.floats(-1e9, 1e9),
    prompt_tokens=st.integers(1, 1 << 31),
    output_tokens=st.integers(1, 1 << 31),
    job=st.text(max_size=5),
    priority=st.integers(-5, 5),
    max_tokens=st.none() | st.integers(1, 1 << 31),
)


@settings(max_examples=60)
@given(st.lists(requests, min_size=1, max_size=5, unique_by=lambda request: request.id))
def test_what_is_written_is_read(traced: list[TraceRequest]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        write_trace(path, traced)
        assert read_trace(path, strict=True).requests == sorted(traced, key=lambda request: request.arrival)
