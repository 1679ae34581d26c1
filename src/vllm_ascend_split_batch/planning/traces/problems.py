"""What can be wrong with a line of a trace, and with a whole file."""

from __future__ import annotations

from dataclasses import dataclass


class TraceError(Exception):
    """The file cannot be used. The message names the file, what is wrong with it and what to do."""


class BadLine(Exception):
    """This line yields no request. `malformed` is False where the line is well-formed and says so itself."""

    def __init__(self, reason: str, *, malformed: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.malformed = malformed


@dataclass(frozen=True)
class Problem:
    """A line that yielded no request.

    Attributes:
        line: its number, from 1; for a document that is not read by lines, the number of the entry.
        reason: what is wrong, or why there is nothing to simulate.
        malformed: the line should not look like this. False: it is as it should be and tells of a request that was not
            served, such as an error status or a response without tokens.
    """

    line: int
    reason: str
    malformed: bool
