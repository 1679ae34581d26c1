"""A progress bar on a terminal, drawn by tqdm where that is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, what: str, unit: str, *, quiet: bool = False) -> Iterator[Callable[[int], object]]:
    """A bar on standard error; call what is yielded with every advance. Nothing is drawn where nobody looks.

    tqdm is there wherever vLLM is; without it one line says what would draw the bar.
    """
    if quiet or not sys.stderr.isatty():
        yield _nothing
        return
    try:
        from tqdm import tqdm
    except ImportError:
        print(f"{what}: {total} {unit} (pip install 'vllm-ascend-split-batch[planner]' shows a bar)", file=sys.stderr)
        yield _nothing
        return
    with tqdm(total=total, desc=what, unit=f" {unit}", file=sys.stderr, leave=False, mininterval=0.2) as bar:
        yield bar.update


def _nothing(_: int) -> None:
    """Nobody looks."""
