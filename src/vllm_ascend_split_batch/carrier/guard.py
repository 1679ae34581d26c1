"""Fail open: a body of ours that raises costs a log line and a counter, never a request.

The wrapper of a host function runs its own body through a :class:`Site`. When the body raises, the host's function runs
for that call instead. Each distinct cause is logged once; after three failures in a row at one site the guard latches,
and from then on every call goes straight to the host's function.

Counters are plain integers, written on the calling thread without a lock and read by the report's thread. A lost count
is possible when several threads call; nothing decides anything by them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from .log import logger

#: How many failures in a row at one site latch the guard.
LATCH_AFTER = 3


class _Native:
    def __repr__(self) -> str:
        return "NATIVE"


#: What a body returns to hand the call to the host's own function.
NATIVE: Final[Any] = _Native()


class Guard:
    """The fail-open state and the counters of one carrier in one process.

    Attributes:
        calls: how often the carrier was asked. engaged: how often it did its work.
        reasons: why it did not, by name. failures: exceptions by cause. counters: anything else a carrier counts.
        latched: whether every call goes to the host's own function for good.
        last_failure: ``{"where", "cause", "at"}`` of the newest failure, or ``None``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.latched = False
        self.on_latch: Callable[[str], None] | None = None
        self._logged: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """Start counting anew, as a forked child does. A latch stays."""
        self.calls = 0
        self.engaged = 0
        self.reasons: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.counters: dict[str, int] = {}
        self.last_failure: dict[str, str] | None = None

    def site(self, where: str, *, counted: bool = True) -> Site:
        """One place of the host where the carrier steps in.

        Args:
            where: its name in logs and reports.
            counted: whether its calls count as :attr:`calls` and :attr:`engaged`. A carrier that decides once a step
                and then works in every layer counts the decision only.
        """
        return Site(self, where, counted)

    def decline(self, reason: str) -> Any:
        """Count why the carrier does not step in. Returns :data:`NATIVE`, for a body to return."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        return NATIVE

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a counter of the carrier's own."""
        self.counters[counter] = self.counters.get(counter, 0) + amount


class Site:
    """Runs bodies for one place of the host. Made by :meth:`Guard.site`."""

    __slots__ = ("_counted", "_guard", "in_a_row", "where")

    def __init__(self, guard: Guard, where: str, counted: bool) -> None:
        self._guard = guard
        self._counted = counted
        self.where = where
        #: Failures since the last success of this site.
        self.in_a_row = 0

    def run(self, body: Callable[..., Any], native: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """``body(*args, **kwargs)``; ``native(*args, **kwargs)`` when it declines, raises, or the guard is latched.

        ``body`` must not call ``native`` itself: it returns ``guard.decline(reason)``, so that an error of the host is
        not taken for one of the carrier and the host's function does not run twice. ``KeyboardInterrupt`` and
        ``SystemExit`` pass through.
        """
        guard = self._guard
        if self._counted:
            guard.calls += 1
        if guard.latched:
            if self._counted:
                guard.decline("latched")
            return native(*args, **kwargs)
        result = NATIVE
        try:
            result = body(*args, **kwargs)
        except Exception as error:
            self.failed(error)
        else:
            self.in_a_row = 0
        # Outside of the handler: the host's own errors are not chained to ours, and what the failed body held is freed.
        if result is NATIVE:
            return native(*args, **kwargs)
        if self._counted:
            guard.engaged += 1
        return result

    def around(self, body: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A factory for a patch: its replacement runs ``body`` under this site and the original as ``native``."""

        def factory(native: Callable[..., Any]) -> Callable[..., Any]:
            run = self.run

            def replacement(*args: Any, **kwargs: Any) -> Any:
                return run(body, native, *args, **kwargs)

            return replacement

        return factory

    def failed(self, error: Exception) -> None:
        """Note a failure that was caught elsewhere: log a new cause, count, latch when it is one too many."""
        guard = self._guard
        cause = cause_of(error)
        guard.failures[cause] = guard.failures.get(cause, 0) + 1
        guard.last_failure = {"where": self.where, "cause": f"{cause}: {text_of(error)}", "at": utc_now()}
        self.in_a_row += 1
        if cause not in guard._logged:
            guard._logged.add(cause)
            logger.warning(
                "%s: %s failed (%s); the host's own path runs for this call. Further failures of this cause are "
                "counted, not logged.", guard.name, self.where, cause, exc_info=error,
            )
        if self.in_a_row >= LATCH_AFTER and not guard.latched:
            guard.latched = True
            reason = f"{self.in_a_row} failures in a row in {self.where}, the last: {cause}"
            logger.warning("%s: off for the rest of this process: %s", guard.name, reason)
            if guard.on_latch is not None:
                guard.on_latch(reason)


def cause_of(error: BaseException) -> str:
    """The exception's type and the innermost place it came from: what makes one cause distinct from another."""
    name = type(error).__qualname__
    if type(error).__module__ not in ("builtins", "__main__"):
        name = f"{type(error).__module__}.{name}"
    step = error.__traceback__
    if step is None:
        return name
    while step.tb_next is not None:
        step = step.tb_next
    file = "/".join(step.tb_frame.f_code.co_filename.split("/")[-2:])
    return f"{name} at {file}:{step.tb_lineno}"


def text_of(error: BaseException) -> str:
    """The exception's message, shortened; an exception whose message raises has none."""
    try:
        return str(error)[:200]
    except Exception:
        return "(no message)"


def utc_now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
