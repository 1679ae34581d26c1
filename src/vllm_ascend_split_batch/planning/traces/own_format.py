"""The trace format itself: see docs/formats/trace.md."""

from __future__ import annotations

from vllm_ascend_split_batch.planning.traces.lines import Assumed, Entries, Lines, each_line, json_object
from vllm_ascend_split_batch.planning.traces.problems import BadLine, TraceError
from vllm_ascend_split_batch.planning.traces.request import SCHEMA, TraceRequest, request_of


def read(lines: Lines, assumed: Assumed) -> Entries:
    """Requests and problems, in the order of the lines.

    Raises:
        TraceError: the header names another format, or a version of it that is not known here.
    """

    def parse(number: int, text: str) -> TraceRequest | None:
        document = json_object(text)
        if "schema" in document:
            if number != 1:
                raise BadLine("a header belongs on the first line")
            if document["schema"] != SCHEMA:
                raise TraceError(f"its header says {document['schema']!r}; {SCHEMA!r} is known here")
            return None
        missing = {
            name: value
            for name, value in (("prompt_tokens", assumed.prompt_tokens), ("output_tokens", assumed.output_tokens))
            if value is not None
        }
        return request_of({**missing, **document}, f"line-{number}")

    return each_line(lines, parse)
