"""When a causal mask masks nothing, exactly. Standard library only.

The mask of `sparse_mode` 3 lets query i of a sequence with q queries and k keys see keys 0 .. k - q + i. With q = 1
that is every key, whatever k is. So the mask can go if and only if each sequence has exactly one query row.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


class Reason(str, Enum):
    """Why a call keeps its mask. The values are the names in the engine report."""

    NOT_DECODE = "not_decode"
    TWO_STAGE = "two_stage"
    ATTENTION_BACKEND = "attention_backend"
    SPECULATIVE_DECODING = "speculative_decoding"
    SLIDING_WINDOW = "sliding_window"
    SINKS = "attention_sinks"
    QUANTISED_KV = "quantised_kv"
    SPARSE_KV = "sparse_kv"
    LARGE_HEAD = "large_head"
    ATTENTION_TYPE = "attention_type"
    NO_MASK = "no_mask"
    OTHER_MASK = "other_mask"
    LENGTHS_NOT_ON_HOST = "lengths_not_on_host"
    QUERY_LENGTHS = "query_lengths"
    GRAPH_OF_MIXED_BATCHES = "graph_of_mixed_batches"
    NOT_TRIED_BEFORE_CAPTURE = "not_tried_before_capture"


class OneToN:
    """Compares cumulative query lengths with 1, 2, .. n without building that list anew for each call."""

    def __init__(self) -> None:
        self._ends: dict[int, list[int]] = {}

    def matches(self, ends: Any) -> bool:
        """Whether `ends`, a list of host integers, is exactly 1, 2, .. n: one query row per sequence, n > 0.

        The sum alone would not do: 0, 2 has two sequences and two rows, too.
        """
        n = len(ends)
        expected = self._ends.get(n)
        if expected is None:
            expected = self._ends[n] = list(range(1, n + 1))
        return n > 0 and bool(ends == expected)
