"""The capture sizes that pad a given mix of batches least."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence


def best_capture_sizes(
    steps: Mapping[int, int],
    *,
    most_graphs: int,
    largest: int,
    multiple: int = 1,
    present: Sequence[int] = (),
    unknown: Collection[int] = (),
) -> tuple[int, ...]:
    """Sizes that run the fewest rows, by dynamic programming over the batches that occur.

    With batches b that occur c(b) times, C(s) = sum of c(b) for b <= s, and sizes s_1 < ... < s_m = `largest`, the rows
    are the sum of s_i * (C(s_i) - C(s_(i-1))). Sizes are batches that occur, each rounded up to the multiple, present
    sizes, and `largest`; without `unknown` some optimum of all has no others. Of equal optima the one with fewer graphs
    is taken.

    An unknown batch u bounds the sizes around it: where s_(i-1) < u <= s_i, the size s_i is at most the present size
    that holds u. The present size grows with u, so it is the smallest unknown batch above s_(i-1) that bounds s_i.

    Args:
        steps: how often each batch size occurs; those above `largest` are passed over.
        most_graphs: the most sizes, at least 1.
        largest: always captured, so that no batch up to it runs without a graph.
        multiple: sizes are multiples of this.
        present: the sizes captured now, ascending.
        unknown: batches that may not be padded further than with the present sizes. One that none of these holds is
            free.

    Returns:
        The sizes, ascending; none where so few graphs cannot keep to `unknown`.

    Raises:
        ValueError: `most_graphs` is below 1, or `largest` is no positive multiple of `multiple`.

    >>> best_capture_sizes({3: 100, 5: 10, 8: 1}, most_graphs=2, largest=8)
    (3, 8)
    >>> best_capture_sizes({3: 100, 5: 10}, most_graphs=3, largest=8, present=(4, 8), unknown=(1, 2, 4, 6, 7, 8))
    (3, 4, 8)
    """
    if most_graphs < 1:
        raise ValueError(f"most_graphs must be at least 1, got {most_graphs}")
    if largest < 1 or largest % multiple:
        raise ValueError(f"largest must be a positive multiple of {multiple}, got {largest}")
    weights: dict[int, int] = {largest: 0, **{size: 0 for size in present if size < largest and not size % multiple}}
    for batch, count in steps.items():
        size = -(-batch // multiple) * multiple
        if 0 < size <= largest:
            weights[size] = weights.get(size, 0) + count
    sizes = [0, *sorted(weights)]
    upto = [0]
    for size in sizes[1:]:
        upto.append(upto[-1] + weights[size])
    bounds = _bounds(sizes, present, unknown, largest)
    # The first k whose successor may be sizes[j]: bounds never fall.
    first = [bisect_left(bounds, size) for size in sizes]
    # rows[j]: fewest rows for the batches up to sizes[j] with the graphs so far, sizes[j] the last of them.
    rows: list[float] = [0, *[float("inf")] * (len(sizes) - 1)]
    before: list[list[int]] = []
    best, best_graphs = float("inf"), 0
    for graphs in range(1, min(most_graphs, len(sizes) - 1) + 1):
        next_rows: list[float] = [float("inf")]
        chosen = [0]
        for j in range(1, len(sizes)):
            spent = [rows[k] - sizes[j] * upto[k] for k in range(first[j], j)]
            least = min(spent, default=float("inf"))
            i = first[j] + spent.index(least) if spent else 0
            next_rows.append(least + sizes[j] * upto[j])
            chosen.append(i)
        rows = next_rows
        before.append(chosen)
        if rows[-1] < best:
            best, best_graphs = rows[-1], graphs
    taken, at = [], len(sizes) - 1
    for graphs in range(best_graphs, 0, -1):
        taken.append(sizes[at])
        at = before[graphs - 1][at]
    return tuple(reversed(taken))


def _bounds(sizes: Sequence[int], present: Sequence[int], unknown: Collection[int], largest: int) -> list[int]:
    """The largest size that may follow each size."""
    held = sorted(batch for batch in unknown if present and batch <= present[-1])
    bounds = []
    for size in sizes:
        at = bisect_left(held, size + 1)
        bounds.append(present[bisect_left(present, held[at])] if at < len(held) else largest)
    return bounds
