"""The one place that prints: JSON documents, or text for people (tables and colours on a terminal only)."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_hust_ext.errors import ManagerError

PLAIN_WIDTH = 80
_LAST_COLUMN = 24
"""Columns of the terminal that the last column of a table needs to be read, if its text is that long."""
_COLOURS = {"good": "green", "bad": "red", "warn": "yellow", "dim": "bright_black", "": None}


def printable(text: str) -> str:
    """Control characters from foreign documents are shown, not sent to the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else _shown(c) for c in text)


def one_line(text: str) -> str:
    """As :func:`printable`, with line breaks and tabs shown too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _shown(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a byte of the command line or environment that is no text
        number -= 0xDC00
    return f"\\x{number:02x}"


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    """``text`` broken at blanks only: names and ranges stay whole, so that they can be copied."""
    return textwrap.wrap(
        text,
        max(width - 1, 30),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass(frozen=True)
class Cell:
    """Text of a table cell with its tone: good, bad, warn, dim or none."""

    text: str
    tone: str = ""


class Output:
    """Prints one command's answer.

    With ``json_mode`` stdout carries exactly one JSON document and nothing else.
    """

    def __init__(self, json_mode: bool) -> None:
        self.json_mode = json_mode

    @property
    def terminal(self) -> bool:
        return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if self.terminal else PLAIN_WIDTH

    # -- JSON ---------------------------------------------------------------------------------------------------------

    def document(self, kind: str, body: dict[str, Any], *, revision: int = 1) -> None:
        """Print the JSON document of a command: ``schema`` first, then its keys."""
        self._write(
            json.dumps({"schema": f"vllm-hust-ext.{kind}/{revision}", **body}, indent=2, ensure_ascii=True) + "\n"
        )

    # -- text ---------------------------------------------------------------------------------------------------------

    def line(self, text: str = "", tone: str = "", indent: int = 0, wrap: bool = True) -> None:
        """One sentence, wrapped to the width with a hanging indent (``wrap`` off for what is copied whole)."""
        if self.json_mode:
            return
        prefix = " " * indent
        parts = printable(text).split("\n")
        for part in parts:
            pieces = [prefix + part]
            if wrap:
                pieces = _wrapped(part, self.width, prefix, prefix + "  ") or [prefix.rstrip()]
            for piece in pieces:
                self._write(self._coloured(piece, tone) + "\n")

    def raw(self, text: str) -> None:
        """Text that must not be wrapped (shell, dotenv, JSON)."""
        self._write(text)

    def heading(self, text: str) -> None:
        self.line(text, "bold")

    def pairs(self, rows: Sequence[tuple[str, str]], indent: int = 0) -> None:
        """``name  value`` lines with aligned, wrapped values."""
        if self.json_mode or not rows:
            return
        label = max(len(name) for name, _ in rows)
        prefix = " " * indent
        for name, value in rows:
            start = f"{prefix}{name.ljust(label)}  "
            wrapped = _wrapped(printable(value), self.width, start, " " * len(start)) or [start.rstrip()]
            self._write("\n".join(wrapped) + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell | str]], *, title: str | None = None) -> None:
        """A rich table on a terminal; elsewhere one line a row, columns aligned, the last one free."""
        if self.json_mode:
            return
        cells = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in rows]
        widths = [max([len(columns[i]), *(len(row[i].text) for row in cells)]) for i in range(len(columns))]
        if self.terminal:
            room = self.width - sum(width + 2 for width in widths[:-1])
            if room < min(widths[-1], _LAST_COLUMN):
                self._stacked(columns, cells, title)
            else:
                self._rich_table(columns, cells, title)
            return
        if title:
            self._write(f"{title}\n")
        for row in [[Cell(c) for c in columns], *cells]:
            texts = [printable(c.text).replace("\n", " ") for c in row]
            self._write(
                "  ".join(t.ljust(min(w, PLAIN_WIDTH)) for t, w in zip(texts, widths, strict=True)).rstrip() + "\n"
            )

    def _stacked(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str | None) -> None:
        """For a terminal too narrow for the table: a row's first cell, and the others below it by name."""
        if title:
            self.heading(title)
        self.line(columns[0], "dim")
        for first, *others in rows:
            self.line(first.text, "bold")
            for name, cell in zip(columns[1:], others, strict=True):
                self.line(f"{name}: {one_line(cell.text)}", cell.tone, indent=2)

    def _rich_table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str | None) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(c.text), style=_COLOURS.get(c.tone) or "") for c in row))
        Console(file=sys.stdout, width=self.width, highlight=False).print(table)

    def _coloured(self, text: str, tone: str) -> str:
        if not tone or not self.terminal or os.environ.get("NO_COLOR"):
            return text
        import click

        return click.style(text, bold=True) if tone == "bold" else click.style(text, fg=_COLOURS.get(tone))

    @staticmethod
    def _write(text: str) -> None:
        if sys.stdout is None:  # closed before we were started
            return
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding or "ascii"
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def warn(text: str) -> None:
    """A sentence beside the answer, on stderr."""
    _error_line(f"warning: {printable(text)}")


def note(text: str) -> None:
    """A sentence beside the answer that asks for nothing, on stderr."""
    _error_line(f"note: {printable(text)}")


def report_error(error: ManagerError, json_mode: bool) -> None:
    """One message that says where, what and what to do; in JSON mode also as a document on stdout."""
    if json_mode:
        Output(True).document("error", {"error": error.as_json()})
    place = f"{error.where}: " if error.where else ""
    _error_line(f"error: {printable(place + error.message)}")
    for reason in error.reasons:
        _error_line(f"  - {printable(reason)}")
    if error.hint:
        _error_line(f"  what to do: {printable(error.hint)}")


def _error_line(text: str) -> None:
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text + "\n")
    except UnicodeEncodeError:
        sys.stderr.write(text.encode("ascii", "backslashreplace").decode() + "\n")
    except (OSError, ValueError):
        pass
