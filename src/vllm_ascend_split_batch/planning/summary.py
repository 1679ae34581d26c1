"""The outcomes of a simulation in a few figures."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vllm_ascend_split_batch.planning.simulation.outcome import Outcome
from vllm_ascend_split_batch.planning.simulation.step_totals import StepTotals


def _numbers() -> array[float]:
    return array("d")


@dataclass
class Summary:
    """What a simulation came to. Times in seconds; the sequences of finished requests run in parallel.

    Attributes:
        name: of the setup.
        totals: of its steps.
        prompts: prompt tokens.
        waits: from arrival to admission.
        first_tokens: from arrival to the first token.
        latencies: from arrival to the last token.
        rejected, unfinished: requests that can never run, and that never did.
        preemptions: of all requests.
    """

    name: str
    totals: StepTotals
    prompts: array[float] = field(default_factory=_numbers)
    waits: array[float] = field(default_factory=_numbers)
    first_tokens: array[float] = field(default_factory=_numbers)
    latencies: array[float] = field(default_factory=_numbers)
    rejected: int = 0
    unfinished: int = 0
    preemptions: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count one request."""
        if outcome.reason == "rejected":
            self.rejected += 1
        elif outcome.latency is None or outcome.wait is None or outcome.time_to_first_token is None:
            self.unfinished += 1
        else:
            self.prompts.append(outcome.request.prompt_tokens)
            self.waits.append(outcome.wait)
            self.first_tokens.append(outcome.time_to_first_token)
            self.latencies.append(outcome.latency)
        self.preemptions += outcome.preemptions

    @property
    def finished(self) -> int:
        """Requests that were answered."""
        return len(self.waits)

    def waits_of(self, *, at_least: int = 0, at_most: float = math.inf) -> list[float]:
        """Waiting times of requests whose prompts have so many tokens."""
        return [wait for wait, prompt in zip(self.waits, self.prompts, strict=True) if at_least <= prompt <= at_most]


def mean(values: Sequence[float]) -> float:
    """Their mean; 0 of none."""
    return math.fsum(values) / len(values) if values else 0.0


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that is not exceeded by `share` of all, 0 to 1; 0 of none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary_lines(summary: Summary) -> list[str]:
    """The figures as text."""
    totals = summary.totals
    lines = [
        f"policy           {summary.name}",
        f"requests         {summary.finished} answered, {summary.rejected} rejected, {summary.unfinished} never run",
        f"preemptions      {summary.preemptions}",
    ]
    for name, values in (
        ("waiting", summary.waits),
        ("first token", summary.first_tokens),
        ("completion", summary.latencies),
    ):
        lines.append(
            f"{name:<17}mean {mean(values):.3f} s, median {percentile(values, 0.5):.3f}, p95 "
            f"{percentile(values, 0.95):.3f}, longest {percentile(values, 1):.3f}"
        )
    share = totals.decode_padding / totals.decode_rows if totals.decode_rows else 0.0
    lines.append(
        f"decode steps     {totals.num_decode_steps}, {totals.decode_steps_without_graph} without a graph; "
        f"{totals.decode_padding} padding rows ({share:.1%} of their rows)"
    )
    lines.append(f"other steps      {totals.mixed_steps.total()}")
    lines.append(f"busy             {totals.seconds:.1f} s")
    return lines
