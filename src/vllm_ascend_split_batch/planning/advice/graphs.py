"""Which capture sizes to advise, and whether to advise a change at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from vllm_ascend_split_batch.host_model.padding import GraphMode, RuntimeMode
from vllm_ascend_split_batch.planning.advice.capture_sizes import best_capture_sizes
from vllm_ascend_split_batch.planning.advice.evidence import ENOUGH_OF_A_BATCH, unknown_batches
from vllm_ascend_split_batch.planning.simulation import Setup, StepGraphs
from vllm_ascend_split_batch.planning.simulation.step_totals import StepTotals
from vllm_ascend_split_batch.planning.summary import Summary

#: A change must save at least this share of the time of all steps. Step times are assumed, or measured to a few per
#: cent; below that the sign of a gain is not known, and the present sizes are those that the host is tested with.
WORTH = 0.01


@dataclass(frozen=True)
class Proposal:
    """Sizes to simulate.

    Attributes:
        sizes: None: there is nothing better to try.
        asked: fewer graphs were asked for than are captured now, so the sizes are advised whatever they gain.
        why: of them, or of nothing to try.
    """

    sizes: tuple[int, ...] | None
    asked: bool
    why: str


@dataclass(frozen=True)
class GraphChoice:
    """The capture sizes to take.

    Attributes:
        keep: the present ones.
        why: the reason, with the numbers.
    """

    keep: bool
    why: str


@dataclass(frozen=True)
class WorstPadding:
    """A decode batch and the rows it is padded by; None where it runs without a graph."""

    batch: int
    rows: int
    rows_now: int | None


def propose(setup: Setup, totals: StepTotals, most_graphs: int | None, too_small: str) -> Proposal:
    """The sizes that run the fewest rows for the steps of a simulation, within what its trace says.

    A batch of which it says too little is padded no further than now. Where so few graphs were asked for that this
    cannot be, such a batch counts as if it had occurred just often enough, so that padding stays even.
    `too_small` says what the trace has too little of.
    """
    host = setup.host
    present = StepGraphs(host).ladder
    if host.mode_in_force is GraphMode.NONE:
        return Proposal(None, False, "graphs are off")
    rounded = host.rounds_tokens or host.aligns_capture_sizes
    multiple = host.tensor_parallel_size if rounded else 1
    largest = min(host.max_num_seqs, host.max_num_batched_tokens) // multiple * multiple
    steps = Counter(totals.decode_steps)
    if host.mode_in_force.mixed is not RuntimeMode.NONE:
        steps.update(totals.mixed_steps)
        largest = max(largest, present[-1] // multiple * multiple if present else 0)
    if not largest:
        return Proposal(None, False, f"max_num_seqs {host.max_num_seqs} holds no multiple of {multiple} rows")
    asked = most_graphs is not None and most_graphs < len(present)
    if too_small and not asked:
        return Proposal(None, False, f"the trace is too small to say which are better ({too_small})")
    unknown = unknown_batches(steps, largest, too_small=bool(too_small))
    best = partial(
        best_capture_sizes,
        most_graphs=most_graphs or len(present) + (largest not in present),
        largest=largest,
        multiple=multiple,
    )
    sizes = best(steps, present=present, unknown=unknown)
    if sizes:
        return Proposal(sizes, asked, f"at most {most_graphs} graphs were asked for")
    if not asked:
        return Proposal(None, False, "no other sizes hold every batch that the trace does not know")
    steps.update({batch: max(0, ENOUGH_OF_A_BATCH - steps[batch]) for batch in unknown})
    why = f"at most {most_graphs} graphs were asked for, too few to pad no unknown batch further than now"
    return Proposal(best(steps), True, why)


def decide(proposal: Proposal, now: Summary, then: Summary) -> GraphChoice:
    """Take the proposed sizes where that was asked for or is worth it; both simulated with the same lanes."""
    seconds, less = now.totals.seconds, now.totals.seconds - then.totals.seconds
    share = less / seconds if seconds else 0.0
    busy = f"take {then.totals.seconds:,.1f} s of steps instead of {seconds:,.1f} s ({-share:+.2%})"
    gain = f"the best {len(proposal.sizes or ())} sizes found {busy}"
    if proposal.asked:
        return GraphChoice(False, f"{proposal.why}; {gain}")
    if share < WORTH:
        return GraphChoice(True, f"{gain}, and a change must save {WORTH:.0%}")
    return GraphChoice(False, gain)


def worst_padding(before: Setup, after: Setup) -> tuple[WorstPadding | None, WorstPadding | None]:
    """The decode batch that is padded most with the later settings, and the one whose padding grows most.

    None where no batch runs in a graph; where none is padded further.
    """
    old, new = StepGraphs(before.host), StepGraphs(after.host)
    padded = [
        WorstPadding(batch, rows, _padding(old, batch))
        for batch in range(1, after.host.max_num_seqs + 1)
        if (rows := _padding(new, batch)) is not None
    ]
    grown = [one for one in padded if one.rows_now is not None and one.rows > one.rows_now]
    return (
        max(padded, key=lambda one: one.rows, default=None),
        max(grown, key=lambda one: one.rows - (one.rows_now or 0), default=None),
    )


def _padding(graphs: StepGraphs, batch: int) -> int | None:
    rows, mode = graphs.decode(batch)
    return None if mode is RuntimeMode.NONE else rows - batch
