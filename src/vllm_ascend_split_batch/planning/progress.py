"""A progress bar on a terminal, drawn by tqdm where that is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm_ascend_split_batch.planning.extra import INSTALL_EXTRA


class Progress:
    """A bar, or nothing where nobody looks."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar

    def advance(self, done: int, more: int = 0) -> None:
        """So much was done since the last call, and so much more turned out to be needed."""
        if self._bar is None:
            return
        if more:
            self._bar.total += more
            self._bar.refresh()
        self._bar.update(done)


@contextmanager
def progress_bar(total: int, what: str, unit: str, *, quiet: bool = False) -> Iterator[Progress]:
    """A bar on standard error, where that is a terminal.

    tqdm is there wherever vLLM is; without it one line says what would draw the bar.
    """
    if quiet or not sys.stderr.isatty():
        yield Progress()
        return
    try:
        from tqdm import tqdm
    except ImportError:
        print(f"{what} ...: a progress bar needs tqdm: {INSTALL_EXTRA}", file=sys.stderr)
        yield Progress()
        return
    with tqdm(total=total, desc=what, unit=f" {unit}", file=sys.stderr, leave=False, mininterval=0.2) as bar:
        yield Progress(bar)
