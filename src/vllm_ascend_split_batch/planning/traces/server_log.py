"""vLLM's own log: the lines that it writes per request when asked to (`--enable-log-requests`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from vllm_ascend_split_batch.planning.traces.lines import Assumed, Entries, Lines
from vllm_ascend_split_batch.planning.traces.problems import BadLine, Problem, TraceError
from vllm_ascend_split_batch.planning.traces.request import TraceRequest

_TIME = re.compile(r"\b(?:DEBUG|INFO) (?:\d{4}-)?(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(\.\d+)?")
_RECEIVED = re.compile(r"\] Received request (\S+): params: (.*)")
_DETAILS = re.compile(r"\] Request (\S+) details: prompt: .*prompt_token_ids: (None|\[[^\]]*\]), prompt_embeds shape")
_ANSWERED = re.compile(
    r"\] Generated response (\S+?)(?: \(streaming (?:delta|complete)\))?: output: (.*), "
    r"output_token_ids: (None|\[[^\]]*\]), finish_reason: "
)
_COUNTED = re.compile(r"<streaming_complete: (\d+) tokens>")
_MOST = re.compile(r"\bmax_tokens=(\d+)")
#: The log names no year; a leap year holds all dates.
_YEAR, _YEAR_SECONDS = 2000, 366 * 86400.0


@dataclass
class _Known:
    """What the lines so far tell of one request."""

    line: int
    second: float
    max_tokens: int | None
    output_tokens: int | None = None
    counted: int | None = None


class _Log:
    """The requests of a log, in the order in which they were received."""

    def __init__(self) -> None:
        self.known: dict[str, _Known] = {}
        self.prompts: dict[str, int | None] = {}  # the server logs a prompt before it says that it received the request
        self._latest = 0.0
        self._years = 0.0

    def read(self, number: int, text: str) -> None:
        """Take one line.

        Raises:
            BadLine: it tells of a request, and something is wrong with it.
        """
        details = _DETAILS.search(text)
        if details:
            self.prompts[details[1]] = _length(details[2])
            return
        received = _RECEIVED.search(text)
        if received:
            self._received(number, text, received[1], _MOST.search(received[2]))
            return
        answered = _ANSWERED.search(text)
        if answered:
            self._answered(answered[1], answered[2], _length(answered[3]))

    def _received(self, number: int, text: str, request_id: str, most: re.Match[str] | None) -> None:
        second = _second(text) + self._years
        if second < self._latest - _YEAR_SECONDS / 2:
            self._years += _YEAR_SECONDS
            second += _YEAR_SECONDS
        self._latest = max(self._latest, second)
        if request_id in self.known:
            raise BadLine(f"request {request_id} was received before, on line {self.known[request_id].line}")
        self.known[request_id] = _Known(number, second, int(most[1]) if most else None)

    def _answered(self, request_id: str, output: str, tokens: int | None) -> None:
        one = self.known.get(request_id)
        if one is None:
            raise BadLine(f"a response of request {request_id}, which was not received in this log")
        if tokens is not None:
            one.output_tokens = (one.output_tokens or 0) + tokens
        counted = _COUNTED.search(output)
        if counted:
            one.counted = (one.counted or 0) + int(counted[1])

    def arrivals(self) -> Iterator[tuple[str, _Known, float]]:
        """Every request with its arrival: those of one second spread evenly over it."""
        together = Counter(one.second for one in self.known.values())
        before: Counter[float] = Counter()
        for request_id, one in self.known.items():
            yield request_id, one, one.second + before[one.second] / together[one.second]
            before[one.second] += 1


def read(lines: Lines, assumed: Assumed) -> Entries:
    """Requests in the order in which they were received. Lines about other things are passed over.

    The log tells whole seconds: requests of one second are spread evenly over it. A request's output is what its
    response lines list, all choices together.

    Raises:
        TraceError: no line tells of a request.
    """
    log = _Log()
    for number, text in lines:
        try:
            log.read(number, text)
        except BadLine as error:
            yield Problem(number, error.reason, error.malformed)
    if not log.known:
        raise TraceError(
            "no line tells of a request; start the server with --enable-log-requests --enable-log-outputs and "
            "VLLM_LOGGING_LEVEL=DEBUG"
        )
    for request_id, one, arrival in log.arrivals():
        output = one.counted if one.output_tokens is None else one.output_tokens
        try:
            yield TraceRequest(
                request_id,
                arrival,
                assumed.prompt(log.prompts.get(request_id), "prompt logged (VLLM_LOGGING_LEVEL=DEBUG logs it)"),
                assumed.output(output, "response logged (--enable-log-outputs logs it)"),
                max_tokens=one.max_tokens,
            )
        except BadLine as error:
            yield Problem(one.line, f"request {request_id}: {error.reason}", error.malformed)


def _length(ids: str) -> int | None:
    if ids == "None":
        return None
    return 0 if ids == "[]" else ids.count(",") + 1


def _second(text: str) -> float:
    found = _TIME.search(text)
    if found is None:
        raise BadLine("a request line without vLLM's time (such as INFO 11-29 22:44:50)")
    month, day, hour, minute, second = (int(part) for part in found.groups()[:5])
    try:
        moment = datetime(_YEAR, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError as error:
        raise BadLine(f"its time is none ({error})") from None
    return moment.timestamp() + float(found[6] or 0)


def tells_of_a_request(text: str) -> bool:
    """Whether the line is one that the server writes per request."""
    return any(pattern.search(text) for pattern in (_RECEIVED, _DETAILS, _ANSWERED))
