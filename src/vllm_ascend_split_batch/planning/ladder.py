"""A ladder: the capture sizes of one set of graphs, in tokens, ascending and each once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class Ladder:
    """Capture sizes in tokens. Falsy when it holds none.

    Raises:
        ValueError: a capture size is not positive.
    """

    __slots__ = ("sizes",)

    def __init__(self, sizes: Iterable[int]) -> None:
        ascending = tuple(sorted(set(sizes)))
        if ascending and ascending[0] <= 0:
            raise ValueError(f"capture sizes must be positive, got {ascending[0]}")
        self.sizes: tuple[int, ...] = ascending

    def __bool__(self) -> bool:
        return bool(self.sizes)

    def __repr__(self) -> str:
        return f"Ladder({self.sizes})"

    def at_least(self, tokens: int) -> int | None:
        """The smallest capture size that holds `tokens`, or None when all are smaller."""
        index = bisect_left(self.sizes, tokens)
        return self.sizes[index] if index < len(self.sizes) else None

    def at_most(self, tokens: int) -> int | None:
        """The largest capture size that `tokens` fill, or None when all are larger."""
        index = bisect_right(self.sizes, tokens)
        return self.sizes[index - 1] if index else None

    def below(self, size: int) -> int | None:
        """The largest capture size smaller than `size`, or None."""
        index = bisect_left(self.sizes, size)
        return self.sizes[index - 1] if index else None
