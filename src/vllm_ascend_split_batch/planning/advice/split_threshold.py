"""From when on splitting a batch pays, in the terms of the published planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_ascend_split_batch.planning.cost import GraphCost
from vllm_ascend_split_batch.planning.dual_pad import plan_dual_pad


@dataclass(frozen=True)
class SplitAdvice:
    """For `SplitBatchConfig`.

    Attributes:
        padding_saved_threshold: a split pays where it saves more padding rows than this.
        min_batch_size_for_split: the smallest batch with such a split; None: there is none up to the largest graph.
        steps: decode steps of the trace that such a split would change.
        rows_saved: padding rows that this would save.
        seconds_saved: what that is worth, one graph replayed after the other.
    """

    padding_saved_threshold: int
    min_batch_size_for_split: int | None
    steps: int
    rows_saved: int
    seconds_saved: float


def split_advice(decode_steps: Mapping[int, int], ladder: Sequence[int], cost: GraphCost) -> SplitAdvice | None:
    """The thresholds for these graphs; None where rows cost nothing, or there are no graphs.

    Two graphs one after the other cost `launch_us` more and save `row_us` for each padding row less: it pays from
    `launch_us / row_us` rows on. (Replayed in parallel they would cost less; that has to be measured.)
    """
    if not ladder or cost.row_us == 0:
        return None
    threshold = int(cost.launch_us // cost.row_us)
    smallest, steps, rows, seconds = None, 0, 0, 0.0
    for batch in range(2, ladder[-1] + 1):
        plan, _ = plan_dual_pad(
            num_requests=batch,
            total_tokens=batch,
            main_capture_sizes=ladder,
            padding_saved_threshold=threshold,
        )
        if plan is None:
            continue
        smallest = smallest or batch
        count = decode_steps.get(batch, 0)
        steps += count
        rows += count * plan.padding_saved
        seconds += count * (plan.padding_saved * cost.row_us - cost.launch_us) * 1e-6
    return SplitAdvice(threshold, smallest, steps, rows, seconds)
