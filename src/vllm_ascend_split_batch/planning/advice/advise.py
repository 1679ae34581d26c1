"""From a trace and an engine to settings, simulated before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_ascend_split_batch.host_model.padding import GraphMode, RuntimeMode
from vllm_ascend_split_batch.planning.advice.evidence import shortage
from vllm_ascend_split_batch.planning.advice.graphs import GraphChoice, WorstPadding, decide, propose, worst_padding
from vllm_ascend_split_batch.planning.advice.lanes import Choice, candidates, choose
from vllm_ascend_split_batch.planning.advice.split_threshold import SplitAdvice, split_advice
from vllm_ascend_split_batch.planning.cost import GraphCost
from vllm_ascend_split_batch.planning.simulation import Setup, StepGraphs
from vllm_ascend_split_batch.planning.simulation.step_totals import StepTotals
from vllm_ascend_split_batch.planning.sweep import Result, Sweep
from vllm_ascend_split_batch.planning.traces import TraceRequest


@dataclass(frozen=True)
class Limits:
    """What advice has to keep to.

    Attributes:
        most_graphs: the most capture sizes; None: as many as are captured now, and one more where `max_num_seqs` has
            none.
        longest_wait_factor: nobody may wait longer than this many times the longest wait now.
    """

    most_graphs: int | None = None
    longest_wait_factor: float = 2.0


@dataclass(frozen=True)
class Advice:
    """What to set, and what it changes.

    Attributes:
        before: the current settings.
        after: the advised ones.
        ladder_before, ladder_after: capture sizes.
        tried: all settings of waiting lanes that were simulated.
        lanes: those that were taken.
        graphs: the capture sizes that were taken, or why the present ones stay.
        worst, grown: the decode batch padded most with the advised sizes; that whose padding grows most.
        too_small: what the trace has too little of for any of this; empty: it has enough.
        split: when splitting a batch would pay, with the advised capture sizes.
        without_graph: what is said about batches that run without a graph, sentence by sentence.
    """

    before: Result
    after: Result
    ladder_before: tuple[int, ...]
    ladder_after: tuple[int, ...]
    tried: tuple[Result, ...]
    lanes: Choice
    graphs: GraphChoice
    worst: WorstPadding | None
    grown: WorstPadding | None
    too_small: str
    split: SplitAdvice | None
    without_graph: tuple[str, ...]


def advise(
    requests: Sequence[TraceRequest],
    setup: Setup,
    sweep: Sweep,
    *,
    limits: Limits | None = None,
    progress: Callable[[int, int], object] = lambda done, more: None,
) -> Advice:
    """Simulate the current settings, other waiting lanes, and then the best of them with better capture sizes.

    Args:
        requests: in the order of their arrival.
        setup: the current engine.
        sweep: runs simulations.
        limits: what to keep to.
        progress: called with simulations done since the last call, and simulations found to be needed.

    Raises:
        ValueError: the current settings end the host's engine, with this trace.
    """
    limits = limits or Limits()
    progress(0, 1)
    (before,) = sweep([("current", setup)], lambda done: progress(done, 0))
    if before.summary is None:
        raise ValueError(f"the host's engine would end here: {before.error}")
    named = candidates(requests, setup, before.summary)
    progress(0, len(named))
    tried = sweep(named, lambda done: progress(done, 0))
    lanes = choose(before, tried, longest_wait_factor=limits.longest_wait_factor)
    chosen = lanes.result
    assert chosen.summary is not None  # it was chosen for its summary
    too_small = shortage(before.summary)
    proposal = propose(chosen.setup, chosen.summary.totals, limits.most_graphs, too_small)
    after, graphs = chosen, GraphChoice(True, proposal.why)
    if proposal.sizes:
        progress(0, 1)
        (improved,) = sweep(
            [("advised", chosen.setup.with_capture_sizes(proposal.sizes))], lambda done: progress(done, 0)
        )
        if improved.summary is None:
            raise ValueError(f"the host's engine would end here: {improved.error}")
        graphs = decide(proposal, chosen.summary, improved.summary)
        after = chosen if graphs.keep else improved
    assert after.summary is not None  # each of the two has one
    ladder_before, ladder_after = StepGraphs(setup.host).ladder, StepGraphs(after.setup.host).ladder
    times = setup.step_time
    return Advice(
        before,
        after,
        ladder_before,
        ladder_after,
        tuple(tried),
        lanes,
        graphs,
        *worst_padding(setup, after.setup),
        too_small,
        split_advice(after.summary.totals.decode_steps, ladder_after, GraphCost(times.graph_us, times.row_us)),
        tuple(_without_graph(setup, before.summary.totals)),
    )


def _without_graph(setup: Setup, totals: StepTotals) -> list[str]:
    graphs = StepGraphs(setup.host)
    if setup.host.mode_in_force is GraphMode.NONE:
        return ["graphs are off: every step runs without one"]
    said = []
    most = setup.host.max_num_seqs
    eager = [batch for batch in range(1, most + 1) if graphs.decode(batch).mode is RuntimeMode.NONE]
    if eager:
        steps, all_steps = totals.decode_steps_without_graph, totals.num_decode_steps
        share = steps / all_steps if all_steps else 0.0
        said.append(
            f"decode batches of {_ranges(eager)} requests run without any graph: the largest capture size is "
            f"{max(graphs.ladder, default=0)}, max_num_seqs {most}. In this trace: {steps} of {all_steps} decode steps "
            f"({share:.1%}), {totals.seconds_without_graph:.1f} s"
        )
    mixed = totals.modes["mixed", RuntimeMode.NONE.name]
    if mixed:
        why = (
            "this graph mode has graphs for decode batches alone"
            if setup.host.mode_in_force.mixed is RuntimeMode.NONE
            else f"they have more tokens than the largest capture size, {max(graphs.ladder, default=0)}"
        )
        said.append(f"{mixed} steps that compute prompts run without a graph: {why}")
    return said


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in ascending order as ranges: "5 to 7, 9"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
