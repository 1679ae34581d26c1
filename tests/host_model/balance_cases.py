"""Generated loads of data-parallel ranks, and lives of a balanced deployment."""

from __future__ import annotations

import random
from dataclasses import dataclass

from vllm_ascend_split_batch.host_model.load_balance import BalanceSettings, RankRequests


@dataclass(frozen=True)
class PlanCase:
    """What the ranks hold."""

    ranks: tuple[RankRequests, ...]
    max_num_seqs: int | None
    bubble_threshold: float


@dataclass(frozen=True)
class ActivationCase:
    """A deployment's engine steps: the step counter, and the blocks of the requests that arrive at each rank."""

    settings: BalanceSettings
    ranks: int
    steps: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]


def generate_plans(seed: int, count: int) -> list[PlanCase]:
    """That many loads."""
    source = random.Random(f"plans {seed}")
    cases = []
    for _ in range(count):
        most = source.choice([3, 12, 60, 400, 5000])
        ranks = tuple(
            RankRequests(
                tuple(source.randint(1, most) for _ in range(source.randint(0, 7))),
                tuple(source.randint(1, most) for _ in range(source.randint(0, 7))),
            )
            for _ in range(source.randint(1, 5))
        )
        threshold = source.choice([0.05, 0.3, 0.9, 1.0, 2.0, 5.0, 50.0])
        cases.append(PlanCase(ranks, source.choice([None, 1, 4, 8]), threshold))
    return cases


def generate_activations(seed: int, count: int) -> list[ActivationCase]:
    """That many deployments."""
    source = random.Random(f"activations {seed}")
    cases = []
    for _ in range(count):
        start = source.choice([0, 0, 3])
        settings = BalanceSettings(
            dynamic=source.random() < 0.8,
            start_step=start,
            end_step=source.choice([-1, -1, start + 12]),
            long_request_blocks=10,
            dynamic_max_step=source.choice([1, 2, 4]),
        )
        ranks, counter, steps = source.randint(1, 3), 0, []
        for _ in range(25):
            arrivals = tuple(
                tuple(source.choice([3, 10, 11, 40]) for _ in range(source.choice([0, 0, 0, 0, 1, 2])))
                for _ in range(ranks)
            )
            steps.append((counter, arrivals))
            counter = 0 if source.random() < 0.03 else counter + 1
        cases.append(ActivationCase(settings, ranks, tuple(steps)))
    return cases
