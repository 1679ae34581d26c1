"""A file of any known format becomes a trace, and a report of what in it did not."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

from vllm_ascend_split_batch.planning.traces import (
    access_log,
    csv_columns,
    otlp_spans,
    own_format,
    server_log,
    vllm_bench,
)
from vllm_ascend_split_batch.planning.traces.lines import Assumed, Entries, Lines
from vllm_ascend_split_batch.planning.traces.problems import Problem, TraceError
from vllm_ascend_split_batch.planning.traces.request import TraceRequest

_READERS: dict[str, Callable[[Lines, Assumed], Entries]] = {
    "trace": own_format.read,
    "vllm-bench": vllm_bench.read,
    "access-log": access_log.read,
    "azure": csv_columns.read_azure,
    "burstgpt": csv_columns.read_burstgpt,
    "vllm-log": server_log.read,
    "otlp": otlp_spans.read,
}
#: Names of the formats.
FORMATS = tuple(_READERS)
_LINES_LOOKED_AT = 2000
#: Microseconds: what is left of a time since 1970 in a float.
_DECIMALS = 6


@dataclass(frozen=True)
class Trace:
    """What was read.

    Attributes:
        requests: in the order of their arrival. But for the trace format itself, the first one arrives at 0.
        problems: what yielded no request, in the order of the file; every line is either here or above, or is about
            something else (a server's log, spans).
        format: one of `FORMATS`.
        reordered: requests that arrived before one of an earlier line.
    """

    requests: list[TraceRequest]
    problems: list[Problem]
    format: str
    reordered: int

    @property
    def malformed(self) -> int:
        """Problems that are not requests that were not served."""
        return sum(problem.malformed for problem in self.problems)

    def problem_counts(self) -> Counter[str]:
        """How often there is each reason."""
        return Counter(problem.reason for problem in self.problems)


def read_trace(path: Path, *, format: str = "auto", assumed: Assumed | None = None, strict: bool = False) -> Trace:
    """Read a file; `.gz` is decompressed.

    Args:
        path: the file.
        format: one of `FORMATS`; "auto": by its beginning.
        assumed: lengths to take where the source does not tell them.
        strict: stop at the first malformed line.

    Raises:
        TraceError: the file cannot be read, or holds no request; with `strict` also: a line is malformed.
    """
    try:
        name = detect(path) if format == "auto" else format
        requests: list[TraceRequest] = []
        problems: list[Problem] = []
        for entry in _READERS[name](_lines(path), assumed or Assumed()):
            if isinstance(entry, TraceRequest):
                requests.append(entry)
                continue
            if strict and entry.malformed:
                raise TraceError(f"line {entry.line}: {entry.reason} (--strict)")
            problems.append(entry)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except (OSError, EOFError) as error:
        raise TraceError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not requests:
        first = f"; line {problems[0].line}: {problems[0].reason}" if problems else ""
        raise TraceError(f"{path}: it holds no request (read as {name!r}){first}")
    reordered = sum(one.arrival > other.arrival for one, other in pairwise(requests))
    requests.sort(key=lambda request: request.arrival)
    if name != "trace":
        requests = _from_zero(requests)
    return Trace(requests, problems, name, reordered)


def detect(path: Path) -> str:
    """The format of a file, by its beginning.

    Raises:
        TraceError: it is none that is known.
        OSError: the file cannot be read.
    """
    beginning = [text for _, text in islice(_lines(path), _LINES_LOOKED_AT) if text.strip()]
    first = beginning[0].strip() if beginning else ""
    if not first:
        raise TraceError("it is empty")
    if not first.startswith("{"):
        header = {cell.strip().removeprefix("\ufeff") for cell in first.split(",")}
        if header.issuperset(csv_columns.AZURE_COLUMNS):
            return "azure"
        if header.issuperset(csv_columns.BURSTGPT_COLUMNS):
            return "burstgpt"
        if any(server_log.tells_of_a_request(text) for text in beginning):
            return "vllm-log"
        raise TraceError(f"its format is not known by its beginning; name one with --format: {', '.join(FORMATS)}")
    text = "\n".join(beginning)
    if '"resourceSpans"' in text:
        return "otlp"
    if '"start_times"' in text or '"input_lens"' in text:
        return "vllm-bench"
    # A line of the trace format is an object with one of these fields; the first lines may be bad.
    return "trace" if '"arrival"' in text or '"schema"' in first else "access-log"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, line.decode("utf-8", "replace").rstrip("\r\n")


def _from_zero(requests: list[TraceRequest]) -> list[TraceRequest]:
    first = requests[0].arrival
    return [replace(request, arrival=round(request.arrival - first, _DECIMALS)) for request in requests]
