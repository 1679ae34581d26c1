"""How long the attention of one decode step takes, read as the host does and in two stages.

Only what differs between the two is predicted: the attention of all layers. Everything else of a step (projections,
MLP, sampling) costs both the same. With B requests, P shared tokens, S_b further tokens of request b, H query heads,
K KV heads, head size D and e bytes per element, k = 2 K D e bytes of keys and values per token, per layer:

    stock    t = launch + request B + (P + sum S_b) k / read + (B - 1) P k / reuse
    cascade  t = launch'+ request'B + (P + sum S_b) k / read + 4 B H D P / rate + merge / read

The host streams the shared blocks once per request. The first time they come from memory, at `read`; later requests
find what fits into the device's cache, at `reuse` (on a processor bound by arithmetic `reuse` is the rate of that). A
comparison in which each request has blocks of its own overestimates what sharing saves by just this term.
The prefix stage reads the shared blocks once, and 4 D operations per query row, head and prefix token stand for its
matrix products together with the score and probability tiles that travel beside them. The merge writes and reads the
partial results of both stages, and writes the sum: 2 B H ((4 D + 4) + (e D + 4)) + e B H D bytes.

Pure standard library. Times are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

#: Bytes per microsecond in one gigabyte per second, operations per microsecond in one teraflop per second.
BYTES_PER_US = 1e3
FLOPS_PER_US = 1e6
#: Of any figure of a device, far beyond all of them: what is computed from such figures stays finite.
LARGEST = 1e15
MIB = float(1 << 20)


@dataclass(frozen=True)
class AttentionShape:
    """A model's attention as one rank runs it.

    Attributes:
        query_heads, kv_heads, head_size: H, K, D.
        element_bytes: e, of queries, keys and values.
        layers: layers that run this attention in a step.
    """

    query_heads: int
    kv_heads: int
    head_size: int
    element_bytes: int
    layers: int = 1

    @property
    def kv_bytes(self) -> int:
        """k, bytes of keys and values per token and layer."""
        return 2 * self.kv_heads * self.head_size * self.element_bytes

    @property
    def row_flops(self) -> int:
        """Operations of one query row with one key and value, all heads: 4 H D."""
        return 4 * self.query_heads * self.head_size

    @property
    def merge_bytes(self) -> int:
        """Bytes that the merge moves per request and layer."""
        first = 4 * self.head_size + 4
        second = self.element_bytes * self.head_size + 4
        return self.query_heads * (2 * (first + second) + self.element_bytes * self.head_size)


@dataclass(frozen=True)
class Coefficients:
    """What a device charges, per layer unless said otherwise.

    Attributes:
        stock_launch_us, stock_request_us: the host's attention call, and each request in it.
        cascade_launch_us, cascade_request_us: the calls of both stages and the merge with whatever updates they need,
            and each request in them.
        cascade_step_us: once a step, for the decision and the plan.
        read_gb_s: rate at which keys and values come from memory, in 1e9 bytes a second.
        reuse_gb_s: rate at which the host's attention reads shared blocks again.
        cache_mib: as much of the shared blocks of a layer is read again at `reuse_gb_s`, the rest at `read_gb_s`.
        prefix_tflop_s: rate of the prefix stage, in 1e12 operations a second.

    A rate of None stands for a cost too small to be measured.
    """

    stock_launch_us: float
    stock_request_us: float
    cascade_launch_us: float
    cascade_request_us: float
    cascade_step_us: float
    read_gb_s: float | None
    reuse_gb_s: float | None
    cache_mib: float | None
    prefix_tflop_s: float | None


@dataclass(frozen=True)
class Terms:
    """Where the time of one arm goes, microseconds per layer."""

    launches: float = 0.0
    requests: float = 0.0
    read: float = 0.0
    reuse: float = 0.0
    prefix_rows: float = 0.0
    merge: float = 0.0

    @property
    def total(self) -> float:
        return self.launches + self.requests + self.read + self.reuse + self.prefix_rows + self.merge

    def items(self) -> list[tuple[str, float]]:
        """Names and values, in the order of the formula."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


class CostModel:
    """The formulas above with one device's coefficients and one model's shape folded in.

    Building one takes microseconds, a prediction about one microsecond and no allocation beyond its floats.
    """

    def __init__(self, coefficients: Coefficients, shape: AttentionShape) -> None:
        self.coefficients = coefficients
        self.shape = shape
        c = coefficients
        self._read_us = _inverse(c.read_gb_s, BYTES_PER_US)  # per byte
        self._token_us = shape.kv_bytes * self._read_us
        self._cache_bytes = None if c.cache_mib is None else c.cache_mib * MIB
        self._reuse_us = shape.kv_bytes * _inverse(c.reuse_gb_s, BYTES_PER_US)  # per token and further request
        # What the cache does not hold can be no faster than what it does.
        self._miss_us = max(self._token_us, self._reuse_us)
        self._prefix_row_us = shape.row_flops * _inverse(c.prefix_tflop_s, FLOPS_PER_US)  # per row and token
        self._merge_us = shape.merge_bytes * self._read_us

    def _again_us(self, prefix_tokens: int) -> float:
        """Reading the shared blocks of a layer once more, for one further request."""
        size = prefix_tokens * self.shape.kv_bytes
        cached = 1.0 if self._cache_bytes is None or size <= self._cache_bytes else self._cache_bytes / size
        return prefix_tokens * (cached * self._reuse_us + (1.0 - cached) * self._miss_us)

    def stock_us(self, requests: int, prefix_tokens: int, suffix_tokens: int) -> float:
        """Predicted attention time of a step on the host's own path.

        Args:
            requests: B >= 1. prefix_tokens: P. suffix_tokens: the sum of all S_b.
        """
        c = self.coefficients
        return self.shape.layers * (
            c.stock_launch_us
            + c.stock_request_us * requests
            + (prefix_tokens + suffix_tokens) * self._token_us
            + (requests - 1) * self._again_us(prefix_tokens)
        )

    def cascade_us(self, requests: int, prefix_tokens: int, suffix_tokens: int) -> float:
        """Predicted attention time of a step in two stages, with the arguments of `stock_us`."""
        c = self.coefficients
        return c.cascade_step_us + self.shape.layers * (
            c.cascade_launch_us
            + (c.cascade_request_us + self._merge_us + prefix_tokens * self._prefix_row_us) * requests
            + (prefix_tokens + suffix_tokens) * self._token_us
        )

    def stock_terms(self, requests: int, prefix_tokens: int, suffix_tokens: int) -> Terms:
        """The terms of `stock_us`, per layer."""
        c = self.coefficients
        return Terms(
            launches=c.stock_launch_us,
            requests=c.stock_request_us * requests,
            read=(prefix_tokens + suffix_tokens) * self._token_us,
            reuse=(requests - 1) * self._again_us(prefix_tokens),
        )

    def cascade_terms(self, requests: int, prefix_tokens: int, suffix_tokens: int) -> Terms:
        """The terms of `cascade_us`, per layer; `cascade_step_us` comes once a step on top."""
        c = self.coefficients
        return Terms(
            launches=c.cascade_launch_us,
            requests=c.cascade_request_us * requests,
            read=(prefix_tokens + suffix_tokens) * self._token_us,
            prefix_rows=requests * prefix_tokens * self._prefix_row_us,
            merge=requests * self._merge_us,
        )

    def break_even(self, requests: int, suffix_tokens: int, *, margin: float = 0.0, limit: int = 1 << 20) -> int | None:
        """The fewest shared tokens from which cascade saves `margin` of the stock attention time; None: none does.

        The saving is convex in P (straight until the shared blocks outgrow the cache, steeper then): there is one
        crossing.
        """

        def wins(prefix_tokens: int) -> bool:
            stock = self.stock_us(requests, prefix_tokens, suffix_tokens)
            return stock - self.cascade_us(requests, prefix_tokens, suffix_tokens) > margin * stock

        if not wins(limit):
            return None
        low, high = 0, limit
        while low < high:
            middle = (low + high) // 2
            if wins(middle):
                high = middle
            else:
                low = middle + 1
        return high


def _inverse(rate: float | None, unit: float) -> float:
    return 0.0 if rate is None else 1.0 / (rate * unit)
