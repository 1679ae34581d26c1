"""Spans that vLLM exports per request (`--otlp-traces-endpoint`), as OTLP JSON such as a collector writes to a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_ascend_split_batch.planning.traces.lines import Assumed, Entries, Lines, json_object
from vllm_ascend_split_batch.planning.traces.problems import BadLine, Problem, TraceError
from vllm_ascend_split_batch.planning.traces.request import TraceRequest, tokens

REQUEST_SPAN = "llm_request"
_PROMPT = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
_OUTPUT = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")


def read(lines: Lines, assumed: Assumed) -> Entries:
    """Requests and problems, in the order of the file. Spans about other things are passed over.

    Raises:
        TraceError: no JSON, or no span tells of a request.
    """
    found = False
    seen: set[str] = set()
    for number, document in _documents(lines):
        if isinstance(document, BadLine):
            yield Problem(number, document.reason, document.malformed)
            continue
        for span in _spans(document):
            attributes = {item.get("key"): _value(item.get("value")) for item in _dicts(span.get("attributes"))}
            prompt = next((attributes[name] for name in _PROMPT if name in attributes), None)
            if span.get("name") != REQUEST_SPAN and prompt is None:
                continue
            found = True
            try:
                request = _request(span, attributes, prompt, assumed)
                if request.id in seen:
                    raise BadLine(f"request {request.id!r} has a span already")
                seen.add(request.id)
                yield request
            except BadLine as error:
                yield Problem(number, f"span {span.get('spanId', '?')}: {error.reason}", error.malformed)
    if not found:
        raise TraceError(
            f"no span named {REQUEST_SPAN!r}; start the server with --otlp-traces-endpoint and have the collector "
            "write OTLP JSON"
        )


def _request(span: Mapping[str, Any], attributes: Mapping[Any, Any], prompt: Any, assumed: Assumed) -> TraceRequest:
    start = span.get("startTimeUnixNano")
    try:
        arrival = int(start) / 1e9  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise BadLine(f"startTimeUnixNano is {start!r}, a number of nanoseconds is needed") from None
    output = next((attributes[name] for name in _OUTPUT if name in attributes), None)
    request_id = attributes.get("gen_ai.request.id") or f"{span.get('traceId', '')}-{span.get('spanId', '')}"
    most = attributes.get("gen_ai.request.max_tokens")
    return TraceRequest(
        str(request_id),
        arrival,
        assumed.prompt(prompt, _PROMPT[0]),
        assumed.output(output, _OUTPUT[0]),
        max_tokens=None if most is None else tokens(most, "gen_ai.request.max_tokens"),
    )


def _documents(lines: Lines) -> Iterator[tuple[int, Mapping[str, Any] | BadLine]]:
    """A document per line, or one document over all lines."""
    numbered = [(number, text) for number, text in lines if text.strip()]
    try:
        json_object(numbered[0][1] if numbered else "")
    except BadLine:
        try:
            yield 1, json_object("\n".join(text for _, text in numbered))
        except BadLine as error:
            raise TraceError(f"it is {error.reason}") from None
        return
    for number, text in numbered:
        try:
            yield number, json_object(text)
        except BadLine as error:
            yield number, error


def _spans(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in _dicts(document.get("resourceSpans")):
        for scope in _dicts(resource.get("scopeSpans")):
            yield from _dicts(scope.get("spans"))


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _value(value: Any) -> Any:
    """The value of an attribute; 64-bit integers are strings in OTLP JSON."""
    if not isinstance(value, dict):
        return None
    if "intValue" in value:
        try:
            return int(value["intValue"])
        except (TypeError, ValueError):
            return value["intValue"]
    return next((value[name] for name in ("doubleValue", "stringValue") if name in value), None)
