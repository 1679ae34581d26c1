"""One request of a trace, and one line of the trace format."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_ascend_split_batch.planning.traces.problems import BadLine

SCHEMA = "vllm-ascend-split-batch.trace/1"

FIELDS = ("id", "arrival", "prompt_tokens", "output_tokens", "job", "priority", "max_tokens")
_REQUIRED = ("arrival", "prompt_tokens", "output_tokens")
#: Far above any context length; larger numbers are columns mixed up.
_MOST_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request as it arrived.

    Attributes:
        id: unique in its trace.
        arrival: seconds, of any origin.
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: tokens that were produced, at least 1.
        job: what it belongs to, for policies that learn by job; empty where unknown.
        priority: smaller goes first, under the "priority" policy.
        max_tokens: the most tokens that it was allowed; None where unknown.
    """

    id: str
    arrival: float
    prompt_tokens: int
    output_tokens: int
    job: str = ""
    priority: int = 0
    max_tokens: int | None = None

    def document(self) -> dict[str, Any]:
        """The line's object; what has its default value is left out."""
        document: dict[str, Any] = {
            "id": self.id,
            "arrival": self.arrival,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }
        if self.job:
            document["job"] = self.job
        if self.priority:
            document["priority"] = self.priority
        if self.max_tokens is not None:
            document["max_tokens"] = self.max_tokens
        return document

    def line(self) -> str:
        """The line, without its end."""
        return json.dumps(self.document(), ensure_ascii=False, separators=(",", ":"))


def request_of(document: Mapping[str, Any], default_id: str) -> TraceRequest:
    """The request that a line's object describes.

    Raises:
        BadLine: a field is missing, unknown, or not what it has to be.
    """
    unknown = [name for name in document if name not in FIELDS]
    if unknown:
        raise BadLine(f"unknown field {unknown[0]!r}; known are {', '.join(FIELDS)}")
    missing = [name for name in _REQUIRED if name not in document]
    if missing:
        raise BadLine(f"no {missing[0]}")
    request_id, job = document.get("id", default_id), document.get("job", "")
    if not isinstance(request_id, str) or not request_id:
        raise BadLine(f"id is {request_id!r}, a string is needed")
    if not isinstance(job, str):
        raise BadLine(f"job is {job!r}, a string is needed")
    priority = document.get("priority", 0)
    if isinstance(priority, float) and priority.is_integer():
        priority = int(priority)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise BadLine(f"priority is {priority!r}, a whole number is needed")
    most = document.get("max_tokens")
    arrival = seconds(document["arrival"], "arrival")
    prompt = tokens(document["prompt_tokens"], "prompt_tokens")
    most = None if most is None else tokens(most, "max_tokens")
    # Last: a line is well-formed in all else before it tells of a request that was not served.
    return TraceRequest(request_id, arrival, prompt, output_tokens(document["output_tokens"]), job, priority, most)


def tokens(value: Any, name: str) -> int:
    """A number of tokens, at least 1, out of a JSON value.

    Raises:
        BadLine: it is none.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_TOKENS:
        raise BadLine(f"{name} is {value!r}, a whole number of at least 1 is needed")
    return value


def output_tokens(value: Any, name: str = "output_tokens") -> int:
    """Tokens that were produced, at least 1, out of a JSON value.

    Raises:
        BadLine: it is no number of tokens, or 0 (not malformed: the request was not served).
    """
    if value == 0 and not isinstance(value, bool):
        raise BadLine("no tokens were produced", malformed=False)
    return tokens(value, name)


def seconds(value: Any, name: str) -> float:
    """A time in seconds out of a JSON value.

    Raises:
        BadLine: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadLine(f"{name} is {value!r}, a number of seconds is needed")
    return float(value)
