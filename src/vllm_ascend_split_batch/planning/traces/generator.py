"""Traces made up: bursty arrivals, short and long prompts, jobs of different output lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_ascend_split_batch.planning.traces.request import TraceRequest

_DECIMALS = 6


@dataclass(frozen=True)
class Workload:
    """What to generate.

    Attributes:
        requests: how many.
        rate: arrivals per second, on average.
        burstiness: 1: times between arrivals are exponential (a Poisson process). Above: their squared coefficient of
            variation (gamma distributed), so arrivals come in bursts.
        short_prompt, long_prompt: median tokens of either kind; lengths are log-normal.
        long_share: share of long prompts, 0 to 1.
        output: median tokens produced, log-normal, by the middle job.
        spread: standard deviation of the logarithms of all lengths.
        jobs: jobs, each with a median output of its own, from a third to three times `output`; 0: no job is named.
        most_prompt, most_output: lengths are cut to these.
        seed: the same seed gives the same trace.

    Raises:
        ValueError: a number is out of its range.
    """

    requests: int
    rate: float = 8.0
    burstiness: float = 4.0
    short_prompt: int = 128
    long_prompt: int = 1500
    long_share: float = 0.3
    output: int = 120
    spread: float = 0.7
    jobs: int = 4
    most_prompt: int = 6000
    most_output: int = 1500
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("requests", "short_prompt", "long_prompt", "output", "most_prompt", "most_output"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("rate", "burstiness"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number above 0, got {getattr(self, name)}")
        if not 0 <= self.long_share <= 1:
            raise ValueError(f"long_share must be between 0 and 1, got {self.long_share}")
        if not 0 <= self.spread < math.inf or self.jobs < 0:
            raise ValueError(f"spread and jobs must not be negative, got {self.spread} and {self.jobs}")


def generate(workload: Workload) -> Iterator[TraceRequest]:
    """The requests, in the order of their arrival."""
    source = random.Random(workload.seed)
    shape, scale = 1 / workload.burstiness, workload.burstiness / workload.rate
    now = 0.0
    for number in range(workload.requests):
        if number:
            now += source.gammavariate(shape, scale)
        long = source.random() < workload.long_share
        job = source.randrange(workload.jobs) if workload.jobs else None
        factor = 1.0 if job is None or workload.jobs == 1 else 9 ** (job / (workload.jobs - 1)) / 3
        yield TraceRequest(
            f"request-{number}",
            round(now, _DECIMALS),
            _length(
                source, workload.long_prompt if long else workload.short_prompt, workload.spread, workload.most_prompt
            ),
            _length(source, workload.output * factor, workload.spread, workload.most_output),
            "" if job is None else f"job-{job}",
        )


def _length(source: random.Random, median: float, spread: float, most: int) -> int:
    return min(max(1, round(median * math.exp(source.gauss(0, spread)))), most)
