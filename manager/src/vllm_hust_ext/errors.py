"""What can go wrong, as exceptions that carry an exit code, a stable name, a place and a way out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of every command. ``run`` replaces itself by its command, whose own code is then seen."""

    OK = 0
    """Yes, or done."""
    NO = 1
    """The question was answered with no: not compatible, not enabled, not installed, unhealthy."""
    USAGE = 2
    """The command line does not say what to do."""
    REFUSED = 3
    """A rule forbids it; the message names the rule and the ways out."""
    BROKEN = 4
    """Something on disk is damaged or cannot be read or written."""


class ManagerError(Exception):
    """A failure with one clear message.

    Attributes:
        name: stable machine word, for example ``manifest-invalid``.
        message: what is wrong, as a sentence.
        where: file, variable or argument that it is about, or None.
        hint: what to do, or None.
        reasons: further single reasons, shown one a line.
    """

    exit_code: ExitCode = ExitCode.BROKEN
    default_name = "error"

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        where: str | None = None,
        hint: str | None = None,
        reasons: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.name = name or self.default_name
        self.message = message
        self.where = where
        self.hint = hint
        self.reasons = tuple(reasons)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "exit_code": int(self.exit_code),
            "message": self.message,
            "where": self.where,
            "hint": self.hint,
            "reasons": list(self.reasons),
        }


class Negative(ManagerError):
    """The answer is no."""

    exit_code = ExitCode.NO
    default_name = "no"


class UsageFault(ManagerError):
    """The command line asks for something that does not exist or does not go together."""

    exit_code = ExitCode.USAGE
    default_name = "usage"


class Refused(ManagerError):
    """A rule forbids it."""

    exit_code = ExitCode.REFUSED
    default_name = "refused"


class BrokenState(ManagerError):
    """A file or folder is damaged, unreadable or not writable."""

    exit_code = ExitCode.BROKEN
    default_name = "broken-state"
