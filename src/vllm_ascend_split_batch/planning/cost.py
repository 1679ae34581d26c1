"""What replaying captured graphs one after another costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class GraphCost:
    """Time of `g` graph replays with `r` rows in all: ``launch_us * g + row_us * r`` microseconds.

    Both numbers belong to one model on one device and have to be measured there: time a decode step at two capture
    sizes; the slope is `row_us`, and what is left at zero rows is `launch_us`. What a replay does whatever its size,
    such as reading the weights, is part of `launch_us`.

    Attributes:
        launch_us: what one more replay costs, microseconds.
        row_us: what one more row (token) in a replay costs, microseconds. Padding rows cost as much as others.

    Raises:
        ValueError: a number is negative, infinite or not a number.
    """

    launch_us: float
    row_us: float

    def __post_init__(self) -> None:
        for name, value in (("launch_us", self.launch_us), ("row_us", self.row_us)):
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} must be a finite number of microseconds, 0 or more, got {value}")

    def time_us(self, graphs: int, rows: int) -> float:
        """Microseconds for `graphs` replays with `rows` rows in all."""
        return float(self.launch_us * graphs + self.row_us * rows)

    def exact_weights(self) -> tuple[int, int]:
        """`launch_us` and `row_us` as integers in one common unit: sums of them compare without rounding."""
        launch, row = Fraction(self.launch_us), Fraction(self.row_us)
        unit = math.lcm(launch.denominator, row.denominator)
        return int(launch * unit), int(row * unit)


#: Padding rows are all that counts; of plans with as few, the one with fewer graphs is taken.
ROWS_ONLY = GraphCost(launch_us=0.0, row_us=1.0)
