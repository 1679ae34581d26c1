"""What must be made anew in a forked child. Nothing is registered with the interpreter before the first use."""

from __future__ import annotations

import os
from collections.abc import Callable

_callbacks: list[Callable[[], None]] = []


def in_child(callback: Callable[[], None]) -> None:
    """Call ``callback`` in every child that this process, or a child of it, forks from now on.

    The same callback is registered once. Callbacks run in the order of their registration, before any other code of
    the child; they must not raise.
    """
    if not _callbacks:
        os.register_at_fork(after_in_child=_run)
    if callback not in _callbacks:
        _callbacks.append(callback)


def _run() -> None:
    for callback in _callbacks:
        callback()
