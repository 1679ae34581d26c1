"""The cheapest plan by trying every choice of capture sizes, slowly and in another way than the planner."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations_with_replacement


def cheapest(
    requests: int,
    *,
    main: Sequence[int],
    parallel: Sequence[int],
    tokens_per_request: int,
    launch: float,
    row: float,
    max_slices: int | None,
) -> Fraction | None:
    """The least cost of a main size and any parallel sizes that together hold the batch; None where none do."""
    best: Fraction | None = None
    most = requests if max_slices is None else min(max_slices, requests)
    for first in set(main):
        for extra in range(most):
            for others in combinations_with_replacement(sorted(set(parallel)), extra):
                sizes = (first, *others)
                if min(sizes) < tokens_per_request or sum(size // tokens_per_request for size in sizes) < requests:
                    continue
                cost = Fraction(launch) * len(sizes) + Fraction(row) * sum(sizes)
                if best is None or cost < best:
                    best = cost
    return best
