"""How many rows a part takes, and how many bytes that saves. Integers only.

A dense MLP of one rank turns a row of H elements into U (the first projection), those into A (the activation), and
those into H again. While the activation runs, U + A elements a row are alive beside the input. In parts of R rows out
of T it is R (U + A), and beside them the whole result, T H, which is otherwise only allocated when the first
projection's result is no longer needed. So at least

    saved = (T - R) (U + A) - T H   elements.

A forward that still holds the first projection's result while the second runs has T (U + A + H) alive: T H more are
saved. Parts do not hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Rows that a part has at least. Each part reads all weights again, and a matrix product of fewer rows than this is
#: bound by that reading.
FEWEST_ROWS = 128


@dataclass(frozen=True)
class Widths:
    """Elements per row on this rank (first projection, activation, whole MLP), and bytes of one."""

    up: int
    act: int
    out: int
    itemsize: int

    @property
    def transient_bytes(self) -> int:
        """Bytes per row that are alive while the activation runs."""
        return (self.up + self.act) * self.itemsize


def rows_per_part(rows: int, widths: Widths, *, chunks: int, budget: int) -> int:
    """Rows of each part but the last, which has as many or fewer.

    Args:
        rows: rows of the whole, at least 1.
        chunks: parts asked for; below 2: as few as the budget allows.
        budget: bytes that the intermediate results of one part may take; 0: no limit.

    Returns:
        `rows` for a single part. Otherwise at least FEWEST_ROWS, also where the budget asks for fewer.
    """
    most = -(-rows // max(chunks, 1))
    if budget:
        most = min(most, budget // widths.transient_bytes)
    most = max(most, FEWEST_ROWS)
    if most >= rows:
        return rows
    parts = -(-rows // most)
    return -(-rows // parts)


def saved_bytes(rows: int, part: int, widths: Widths, *, keeps_up: bool) -> int:
    """Bytes by which parts of `part` rows lower the peak of an MLP of `rows` rows; negative where they raise it.

    Args:
        keeps_up: whether the MLP as a whole holds the first projection's result until it returns.
    """
    result = 0 if keeps_up else rows * widths.out * widths.itemsize
    return (rows - part) * widths.transient_bytes - result
