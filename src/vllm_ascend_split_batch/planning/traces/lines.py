"""What the readers share: lines with their numbers, and what a source does not tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_ascend_split_batch.planning.traces.problems import BadLine, Problem
from vllm_ascend_split_batch.planning.traces.request import TraceRequest, output_tokens, tokens

#: Lines of a file, numbered from 1, without their ends.
Lines = Iterable[tuple[int, str]]
#: What a reader yields.
Entries = Iterator[TraceRequest | Problem]


@dataclass(frozen=True)
class Assumed:
    """Lengths to take where a source does not tell them; None: such a line is a problem."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None

    def prompt(self, value: Any, name: str) -> int:
        """The prompt's length, or the assumed one where the source has none.

        Raises:
            BadLine: the value is no length, or there is neither.
        """
        return self._length(value, name, self.prompt_tokens, "--assume-prompt-tokens")

    def output(self, value: Any, name: str) -> int:
        """The same for the output. 0 says that the request was not served."""
        if value is not None:
            return output_tokens(value, name)
        return self._length(value, name, self.output_tokens, "--assume-output-tokens")

    @staticmethod
    def _length(value: Any, name: str, assumed: int | None, option: str) -> int:
        if value is None:
            if assumed is None:
                raise BadLine(f"no {name}; {option} N takes N for it")
            return assumed
        return tokens(value, name)


def each_line(lines: Lines, parse: Callable[[int, str], TraceRequest | None]) -> Entries:
    """Parse line by line. Empty lines are passed over; a parser's `BadLine` becomes a problem, its None nothing.

    An id is taken once.
    """
    first_on: dict[str, int] = {}
    for number, text in lines:
        if not text.strip():
            continue
        try:
            request = parse(number, text)
            if request is not None and first_on.setdefault(request.id, number) != number:
                raise BadLine(f"id {request.id!r} was on line {first_on[request.id]} already")
        except BadLine as error:
            yield Problem(number, error.reason, error.malformed)
            continue
        if request is not None:
            yield request


def json_object(text: str) -> Mapping[str, Any]:
    """The JSON object on a line.

    Raises:
        BadLine: there is none.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"no JSON ({error})") from None
    if not isinstance(document, dict):
        raise BadLine("no JSON object")
    return document


def whole_number(text: str) -> Any:
    """An integer out of a CSV cell, None where the cell is empty; anything else as it is, for the message."""
    text = text.strip()
    try:
        return int(float(text)) if text and float(text).is_integer() else (text or None)
    except (ValueError, OverflowError):
        return text
