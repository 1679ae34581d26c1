"""Decode speed of one engine, stock against cascade, in turns within one batch.

A cell is B requests that share P tokens. They decode together; after a few steps the arms take turns of some steps
each, stock twice a round. The ratio of the two stock series is the noise; what lies outside of it is a difference.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from .switched_engine import SwitchedEngine

#: Steps that are not timed after a change of arms: the one in flight, and the one that finds its buffers cold.
SETTLE = 2


@dataclass(frozen=True)
class Cell:
    """B requests that share `prefix` tokens and have `own` further ones each."""

    requests: int
    prefix: int
    own: int = 48


@dataclass
class Measured:
    """One cell's times.

    Attributes:
        stock, stock_again, cascade: seconds per step, a value a round.
        engaged: steps that ran two-stage among all of the cascade turns' steps, `of` in number.
        reasons: why others did not. facts: what the probe said of the last turn of each arm, and the "tokens" of a
            request at its first timed step.
    """

    cell: Cell
    stock: list[float] = field(default_factory=list)
    stock_again: list[float] = field(default_factory=list)
    cascade: list[float] = field(default_factory=list)
    engaged: int = 0
    of: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def stock_rate(self) -> float:
        """Decode tokens per second, stock, all its turns."""
        return self.cell.requests / statistics.median(self.stock + self.stock_again)

    @property
    def cascade_rate(self) -> float:
        """Decode tokens per second with cascade."""
        return self.cell.requests / statistics.median(self.cascade)

    @property
    def speed_up(self) -> float:
        """Cascade's rate over stock's: the median over rounds of the ratio within a round."""
        return statistics.median(
            (a + b) / 2 / c for a, b, c in zip(self.stock, self.stock_again, self.cascade, strict=True)
        )

    @property
    def noise(self) -> float:
        """The largest difference between the two stock series of a round, as a share."""
        return max(abs(a / b - 1) for a, b in zip(self.stock, self.stock_again, strict=True))

    @property
    def slower(self) -> bool:
        """Whether cascade lies below stock by more than the noise."""
        return self.speed_up < 1 - self.noise


#: Called around the timed steps of a turn: (arm) -> a function that ends it and returns facts.
Probe = Callable[[str], Callable[[], dict[str, Any]]]


def prompts(cell: Cell, vocabulary: int, seed: int) -> list[list[int]]:
    """The cell's prompts: random ids, the first `prefix` of them in common."""
    draw = random.Random(seed)
    low, high = min(100, vocabulary // 2), vocabulary - 1
    shared = [draw.randint(low, high) for _ in range(cell.prefix)]
    return [shared + [draw.randint(low, high) for _ in range(cell.own)] for _ in range(cell.requests)]


def measure(
    engine: SwitchedEngine, cell: Cell, *, rounds: int, steps: int, seed: int = 0, probe: Probe | None = None
) -> Measured:
    """Measure one cell.

    Args:
        engine: holds the cell's requests. rounds: of three turns each. steps: timed steps of a turn.
        probe: looks at each turn's timed steps, for what cannot be seen from outside.
    """
    result = Measured(cell)
    texts = prompts(cell, engine.vocabulary, seed)
    # One request alone fills the prefix cache, so that the batch starts together.
    engine.generate(texts[:1], 1)
    batch = engine.start(texts, (steps + SETTLE) * 3 * rounds + 4 * SETTLE + 8)
    batch.step_until_all_decode()
    for turn in range(2 * SETTLE):
        with engine.stock() if turn % 2 else nullcontext():
            batch.step()
    for _ in range(rounds):
        for series, stock in ((result.stock, True), (result.cascade, False), (result.stock_again, True)):
            with engine.stock() if stock else nullcontext():
                before = engine.counters
                for _ in range(SETTLE):
                    batch.step()
                tokens = cell.prefix + cell.own + len(batch.texts[batch.names[0]])
                finish = probe("stock" if stock else "cascade") if probe else None
                series.append(batch.timed_steps(steps) / steps)
                if finish is not None:
                    result.facts["stock" if stock else "cascade"] = {"tokens": tokens, **finish()}
                after = engine.counters
            if not stock:
                gained = {name: count - before.get(name, 0) for name, count in after.items()}
                result.of += steps + SETTLE
                result.engaged += gained.pop("engaged")
                for name, count in gained.items():
                    if count:
                        result.reasons[name] = result.reasons.get(name, 0) + count
    batch.end()
    return result


def table(measured: Sequence[Measured]) -> list[list[str]]:
    """Rows of a table: requests, prefix, both rates, speed-up, noise, steps two-stage, and why not."""
    return [
        [
            str(one.cell.requests),
            str(one.cell.prefix),
            f"{one.stock_rate:.1f}",
            f"{one.cascade_rate:.1f}",
            f"{one.speed_up:.2f}x",
            f"{one.noise:.0%}",
            f"{one.engaged}/{one.of}",
            ", ".join(sorted(one.reasons)),
        ]
        for one in measured
    ]
