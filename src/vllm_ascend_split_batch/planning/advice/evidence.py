"""How much a trace says: whether it is too small for advice, and which batch sizes it knows."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_ascend_split_batch.planning.summary import Summary

#: Below 500 requests the 99th percentile of anything rests on fewer than five of them.
ENOUGH_REQUESTS = 500
#: Ten batch sizes could be known.
ENOUGH_STEPS = 1000
#: A share counted from 100 steps is known to about a tenth of itself, were steps independent; they are less than that.
ENOUGH_OF_A_BATCH = 100


def shortage(summary: Summary) -> str:
    """What there is too little of for advice; empty where there is enough."""
    steps = summary.totals.num_decode_steps
    few = []
    if summary.finished < ENOUGH_REQUESTS:
        few.append(f"{summary.finished:,} requests answered, {ENOUGH_REQUESTS:,} are needed")
    if steps < ENOUGH_STEPS:
        few.append(f"{steps:,} decode steps, {ENOUGH_STEPS:,} are needed")
    return "; ".join(few)


def unknown_batches(steps: Mapping[int, int], largest: int, *, too_small: bool) -> frozenset[int]:
    """Batches up to `largest` that occur too seldom to say how often they will; all where the trace is too small."""
    return frozenset(batch for batch in range(1, largest + 1) if too_small or steps.get(batch, 0) < ENOUGH_OF_A_BATCH)
