"""Access logs of gateways and proxies that speak OpenAI's API: a JSON object per request, with its `usage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_ascend_split_batch.planning.traces.lines import Assumed, Entries, Lines, each_line, json_object
from vllm_ascend_split_batch.planning.traces.problems import BadLine
from vllm_ascend_split_batch.planning.traces.request import TraceRequest, tokens
from vllm_ascend_split_batch.planning.traces.times import epoch_seconds

#: Where a log tells when a request came, the likeliest to be its arrival first.
TIMES = ("start_time", "startTime", "timestamp", "@timestamp", "time", "ts", "created_at", "created")
_STATUSES = ("status_code", "status")
_FIRST_ERROR_STATUS = 400


def read(lines: Lines, assumed: Assumed) -> Entries:
    """Requests and problems, in the order of the lines. An error status is a request that was not served.

    Fields are looked for in the object, and in its `response`, that one's `body`, and its `request`.
    """

    def parse(number: int, text: str) -> TraceRequest:
        places = list(_places(json_object(text)))
        status = next((place[name] for place in places for name in _STATUSES if name in place), None)
        if isinstance(status, int) and status >= _FIRST_ERROR_STATUS:
            raise BadLine(f"status {status}", malformed=False)
        named = next(((name, place[name]) for name in TIMES for place in places if name in place), None)
        if named is None:
            raise BadLine(f"no time; known fields are {', '.join(TIMES)}")
        usage: Mapping[str, Any] = next((p["usage"] for p in places if isinstance(p.get("usage"), dict)), {})
        request_id = _first(places, "request_id", "id")
        most = _first(places, "max_completion_tokens", "max_tokens", "max_output_tokens")
        metadata = _first(places, "metadata")
        job = _first(places, "job") or (metadata.get("job") if isinstance(metadata, dict) else None)
        priority = _first(places, "priority")
        return TraceRequest(
            request_id if isinstance(request_id, str) and request_id else f"line-{number}",
            epoch_seconds(named[1], named[0]),
            assumed.prompt(_first([usage], "prompt_tokens", "input_tokens"), "usage.prompt_tokens"),
            assumed.output(_first([usage], "completion_tokens", "output_tokens"), "usage.completion_tokens"),
            job=job if isinstance(job, str) else "",
            priority=priority if isinstance(priority, int) and not isinstance(priority, bool) else 0,
            max_tokens=None if most is None else tokens(most, "max_tokens"),
        )

    return each_line(lines, parse)


def _places(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield document
    response = document.get("response")
    if isinstance(response, dict):
        yield response
        if isinstance(response.get("body"), dict):
            yield response["body"]
    request = document.get("request")
    if isinstance(request, dict):
        yield request


def _first(places: list[Mapping[str, Any]], *names: str) -> Any:
    return next((place[name] for name in names for place in places if place.get(name) is not None), None)
