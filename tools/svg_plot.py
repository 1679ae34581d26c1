"""Plots as SVG text, drawn by hand: labelled rows of dots, and lines over an axis. For the evidence pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f")
_FONT = 'font-family="sans-serif" font-size="12"'


@dataclass(frozen=True)
class Series:
    """One colour's values: a number a row (:func:`rows_of_dots`), or points (:func:`lines`)."""

    label: str
    values: Sequence[float] = ()
    points: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Axis:
    """A horizontal or vertical scale from ``low`` to ``high``, decimal logarithms where ``log``."""

    label: str
    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where ``value`` lies between the ends, clamped to them."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """Values to name: decades, or five equal parts."""
        if self.log:
            return [10.0**e for e in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)]
        return [self.low + (self.high - self.low) * part / 5 for part in range(6)]


def rows_of_dots(title: str, labels: Sequence[str], series: Sequence[Series], axis: Axis) -> str:
    """A row for each label with a dot of each series."""
    left, top, width, pitch = 330, 70, 520, 18
    height = pitch * len(labels)
    parts = [*_frame(title, series, left, top, width, height), *_bottom(axis, left, top, width, height)]
    for row, label in enumerate(labels):
        y = top + pitch * (row + 0.5)
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" {_FONT}>{escape(label)}</text>')
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
        for colour, one in zip(COLOURS, series, strict=False):
            x = left + width * axis.share(one.values[row])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
    return _document(parts, left + width + 30, top + height + 60)


def lines(title: str, series: Sequence[Series], across: Axis, up: Axis) -> str:
    """Polylines over two axes."""
    left, top, width, height = 90, 70, 720, 320
    parts = [*_frame(title, series, left, top, width, height), *_bottom(across, left, top, width, height)]
    for tick in up.ticks():
        y = top + height * (1 - up.share(tick))
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" {_FONT}>{tick:g}</text>')
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
    parts.append(
        f'<text transform="translate(22 {top + height / 2:.0f}) rotate(-90)" text-anchor="middle" {_FONT}>'
        f"{escape(up.label)}</text>"
    )
    for colour, one in zip(COLOURS, series, strict=False):
        path = " ".join(
            f"{left + width * across.share(x):.1f},{top + height * (1 - up.share(y)):.1f}" for x, y in one.points
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return _document(parts, left + width + 30, top + height + 60)


def _frame(title: str, series: Sequence[Series], left: int, top: int, width: int, height: int) -> list[str]:
    parts = [
        f'<text x="16" y="24" font-family="sans-serif" font-size="15">{escape(title)}</text>',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>',
    ]
    x = left
    for colour, one in zip(COLOURS, series, strict=False):
        parts.append(f'<circle cx="{x + 6}" cy="{top - 18}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="{top - 14}" {_FONT}>{escape(one.label)}</text>')
        x += 40 + 7 * len(one.label)
    return parts


def _bottom(axis: Axis, left: int, top: int, width: int, height: int) -> list[str]:
    parts = []
    for tick in axis.ticks():
        x = left + width * axis.share(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + height}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{top + height + 16}" text-anchor="middle" {_FONT}>{tick:g}</text>')
    parts.append(
        f'<text x="{left + width / 2:.0f}" y="{top + height + 40}" text-anchor="middle" {_FONT}>'
        f"{escape(axis.label)}</text>"
    )
    return parts


def _document(parts: Sequence[str], width: int, height: int) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )
