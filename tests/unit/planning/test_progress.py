"""A bar where somebody looks, and nothing where nobody does."""

from __future__ import annotations

import builtins
import io
import sys

import pytest

from vllm_ascend_split_batch import __version__
from vllm_ascend_split_batch.planning.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, error: io.StringIO, *, quiet: bool = False) -> str:
    monkeypatch.setattr(sys, "stderr", error)
    with progress_bar(10, "simulate", "requests", quiet=quiet) as bar:
        bar.advance(0, 10)
        bar.advance(20)
    return error.getvalue()


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm", reason="extra planner")
    assert "simulate:" in (text := drawn(monkeypatch, Terminal()))
    assert "/20 [" in text


def test_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, io.StringIO()) == ""
    assert drawn(monkeypatch, Terminal(), quiet=True) == ""


def test_without_tqdm_a_line_says_what_would_draw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def without(name: str, *arguments: object) -> object:
        if name == "tqdm":
            raise ImportError(name)
        return really(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    assert drawn(monkeypatch, Terminal()) == (
        f"simulate ...: a progress bar needs tqdm: pip install 'vllm-ascend-split-batch[planner]=={__version__}' "
        "(from the checkout: pip install '.[planner]')\n"
    )
