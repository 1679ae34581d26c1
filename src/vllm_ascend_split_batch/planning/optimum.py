"""The cheapest choice of capture sizes for every batch size, by dynamic programming over the ladder.

A graph of `p` tokens holds ``p // k`` requests of `k` tokens. With `w(p)` the cost of one replay, the cheapest parallel
slices for `n` requests cost ``g(n) = min over p of w(p) + g(n - p // k)`` with ``g(n <= 0) = 0``, and a batch costs
``min over main p of w(p) + g(n - p // k)``. With at most `j` slices, `g` on the right is the one for `j - 1`.
"""

from __future__ import annotations

from vllm_ascend_split_batch.planning.cost import GraphCost
from vllm_ascend_split_batch.planning.ladder import Ladder


class CheapestSizes:
    """The cheapest capture sizes for 1 to `max_requests` requests.

    Of plans that cost the same, the one with fewer slices counts as cheaper, then the one with fewer rows.

    Args:
        main: capture sizes of the first slice.
        parallel: capture sizes of every further slice; an empty ladder means that there is no further slice.
        cost: of one replay.
        tokens_per_request: `k`.
        max_requests: largest batch.
        max_slices: most slices of a batch; None for no limit.
    """

    def __init__(
        self,
        main: Ladder,
        parallel: Ladder,
        cost: GraphCost,
        *,
        tokens_per_request: int,
        max_requests: int,
        max_slices: int | None,
    ) -> None:
        self._k = tokens_per_request
        self._main = _useful(main, tokens_per_request)
        self._parallel = _useful(parallel, tokens_per_request)
        largest = max((*self._main, *self._parallel), default=1)
        launch, row = cost.exact_weights()
        # One integer orders by cost, then slices, then rows, and still adds up: neither count reaches `radix`.
        radix = (max_requests + 1) * largest + 1
        self._weight = {
            size: ((launch + row * size) * radix + 1) * radix + size for size in (*self._main, *self._parallel)
        }
        self._unreachable = (max(self._weight.values(), default=1) + 1) * (max_requests + 2)
        if not self._parallel or max_slices == 1:
            self._layers = [[0] + [self._unreachable] * max_requests]
        elif max_slices is None:
            self._layers = [self._unlimited(max_requests)]
        else:
            self._layers = self._limited(max_requests, max_slices - 1)
        self._unlimited_slices = max_slices is None

    def sizes(self, num_requests: int) -> tuple[int, ...] | None:
        """Capture sizes of the slices, the main one first, the others descending; None where none hold the batch."""
        if not self._main:
            return None
        rest = self._layers[-1]
        # `_main` descends, and `min` keeps the first of equals: the largest graph goes first.
        main = min(self._main, key=lambda size: self._weight[size] + rest[self._left(num_requests, size)])
        cheapest = self._weight[main] + rest[self._left(num_requests, main)]
        if cheapest >= self._unreachable:
            return None
        return (main, *self._parallel_sizes(self._left(num_requests, main)))

    def _left(self, num_requests: int, size: int) -> int:
        return max(0, num_requests - size // self._k)

    def _unlimited(self, max_requests: int) -> list[int]:
        best = [0]
        for requests in range(1, max_requests + 1):
            best.append(min(self._weight[size] + best[self._left(requests, size)] for size in self._parallel))
        return best

    def _limited(self, max_requests: int, max_slices: int) -> list[list[int]]:
        """Layer `j`: the cheapest costs with at most `j` parallel slices; no layer more than changes something."""
        layers = [[0] + [self._unreachable] * max_requests]
        for _ in range(max_slices):
            fewer = layers[-1]
            layer = [0]
            for requests in range(1, max_requests + 1):
                layer.append(min(self._weight[size] + fewer[self._left(requests, size)] for size in self._parallel))
            if layer == fewer:
                break
            layers.append(layer)
        return layers

    def _parallel_sizes(self, requests: int) -> tuple[int, ...]:
        chosen: list[int] = []
        depth = len(self._layers) - 1
        while requests > 0:
            here = self._layers[depth]
            before = here if self._unlimited_slices else self._layers[depth - 1]
            if not self._unlimited_slices and before[requests] == here[requests]:
                depth -= 1
                continue
            size = next(
                size
                for size in self._parallel
                if self._weight[size] + before[self._left(requests, size)] == here[requests]
            )
            chosen.append(size)
            requests = self._left(requests, size)
            depth -= 0 if self._unlimited_slices else 1
        return tuple(sorted(chosen, reverse=True))


def _useful(ladder: Ladder, tokens_per_request: int) -> tuple[int, ...]:
    """The sizes that hold a request, and of those that hold equally many the smallest, descending."""
    smallest: dict[int, int] = {}
    for size in reversed(ladder.sizes):
        smallest[size // tokens_per_request] = size
    return tuple(size for capacity, size in smallest.items() if capacity > 0)
