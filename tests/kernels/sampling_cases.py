"""Rows whose draws are compared with the oracle, and the two statistics of the comparison."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from split_batch_kernels import sampling_oracle
from torch import Tensor

INF, NAN = math.inf, math.nan
QWEN_VOCABULARY = 151_936


@dataclass(frozen=True)
class Case:
    """One row, drawn many times."""

    name: str
    row: Callable[[], Tensor]
    top_k: int | None = None
    top_p: float | None = None
    logits: bool = True

    def probabilities(self) -> Tensor:
        return sampling_oracle.probabilities(self.row(), self.top_k, self.top_p, self.logits)


def _normal(size: int, scale: float, seed: int = 0) -> Callable[[], Tensor]:
    return lambda: torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def _values(*values: float) -> Callable[[], Tensor]:
    return lambda: torch.tensor(values)


def _peaked(size: int) -> Callable[[], Tensor]:
    """Logits of a language model's shape: a few likely tokens and a long tail (Zipf's law)."""
    return lambda: -2.0 * torch.log1p(torch.randperm(size, generator=torch.Generator().manual_seed(3)).float())


_DYADIC = _values(0.5, 0.25, 0.125, 0.0625, 0.0625)
_TIES = _values(0.2, 0.4, 0.4, 0.1, 0.2, 0.2)
_INFINITE = _values(1.0, -INF, 2.0, -INF, 0.5)
_NOT_A_NUMBER = _values(1.0, NAN, 2.0, 0.0, NAN)

SMALL = (
    Case("untruncated", _normal(50, 2.0)),
    Case("untruncated, weights", _DYADIC, logits=False),
    Case("flat", lambda: torch.zeros(37)),
    Case("one-hot", lambda: torch.where(torch.arange(20) == 7, 0.0, -INF)),
    Case("-inf logits", _INFINITE),
    Case("NaN logits", _NOT_A_NUMBER),
    Case("an infinite logit", _values(1.0, INF, 2.0, INF)),
    Case("k = 1", _normal(50, 2.0), top_k=1),
    Case("k = 1, ties", _TIES, top_k=1, logits=False),
    Case("k = 5", _normal(50, 2.0), top_k=5),
    Case("k = 5, ties across the edge", _TIES, top_k=3, logits=False),
    Case("k = V", _normal(50, 2.0), top_k=50),
    Case("k beyond V", _normal(50, 2.0), top_k=1 << 30),
    Case("k = 0 drops nothing", _normal(50, 2.0), top_k=0),
    Case("p = 1", _normal(50, 2.0), top_p=1.0),
    Case("p tiny", _normal(50, 2.0), top_p=1e-30),
    Case("p = 0.9", _normal(50, 2.0), top_p=0.9),
    Case("p = 0.75, an exact partial sum", _DYADIC, top_p=0.75, logits=False),
    Case("p just above an exact partial sum", _DYADIC, top_p=0.7500001, logits=False),
    Case("p, ties", _TIES, top_p=0.5, logits=False),
    Case("k = 10 and p = 0.8", _normal(200, 2.0), top_k=10, top_p=0.8),
    Case("k decides", _normal(200, 2.0), top_k=4, top_p=0.99),
    Case("p decides", _normal(200, 2.0), top_k=150, top_p=0.5),
    Case("flat, k and p", lambda: torch.zeros(64), top_k=8, top_p=0.1),
    Case("one-hot, k and p", lambda: torch.where(torch.arange(20) == 7, 0.0, -INF), top_k=8, top_p=0.5),
    Case("-inf logits, k and p", _INFINITE, top_k=2, top_p=0.99),
    Case("NaN logits, k and p", _NOT_A_NUMBER, top_k=2, top_p=0.99),
    Case("chunks, untruncated", _normal(5000, 3.0)),
    Case("chunks, k = 20 and p = 0.9", _normal(5000, 3.0), top_k=20, top_p=0.9),
)

LARGE = (
    Case("V = 151,936, Zipf, untruncated", _peaked(QWEN_VOCABULARY)),
    Case("V = 151,936, normal, untruncated", _normal(QWEN_VOCABULARY, 2.0)),
    Case("V = 151,936, flat, untruncated", lambda: torch.zeros(QWEN_VOCABULARY)),
    Case("V = 151,936, Zipf, k = 50 and p = 0.95", _peaked(QWEN_VOCABULARY), top_k=50, top_p=0.95),
)


@dataclass(frozen=True)
class Agreement:
    """How draws compare with the probabilities they should have.

    Attributes:
        draws: their number. forbidden: draws of tokens with probability 0.
        total_variation: half the sum of absolute differences, over the groups of ``chi_square``.
        expected_total_variation: of a perfect sampler with so many draws (half the sum of mean absolute deviations).
        chi_square, degrees, p_value: Pearson's test; tokens with fewer than 5 expected draws are taken together.
    """

    draws: int
    forbidden: int
    total_variation: float
    expected_total_variation: float
    chi_square: float
    degrees: int
    p_value: float

    @property
    def holds(self) -> bool:
        """No forbidden draw, and neither statistic beyond what chance gives once in a million."""
        noise = 6 * math.sqrt(1 / (4 * self.draws))
        return (
            self.forbidden == 0
            and self.p_value > 1e-6
            and self.total_variation <= self.expected_total_variation + noise
        )


def compare(tokens: Tensor, probabilities: Tensor) -> Agreement:
    """Compare drawn tokens ``(draws,)`` with the probabilities ``(vocabulary,)``."""
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    draws = int(counts.sum())
    forbidden = int(counts[probabilities == 0].sum())
    expected = probabilities * draws
    single = expected >= 5
    rare = (probabilities > 0) & ~single
    expected_groups = expected[single]
    counted_groups = counts[single]
    if bool(rare.any()):
        # Rare tokens, in the order of their numbers, in groups of about 5 expected draws or more.
        group = (expected[rare].cumsum(0) / 5).floor().long()
        group = group.clamp(max=max(0, int(expected[rare].sum() // 5) - 1))
        size = int(group.max()) + 1
        empty = torch.zeros(size, dtype=torch.float64)
        expected_groups = torch.cat([expected_groups, empty.scatter_add(0, group, expected[rare])])
        counted_groups = torch.cat([counted_groups, empty.scatter_add(0, group, counts[rare])])
    enough = expected_groups > 0
    expected_groups, counted_groups = expected_groups[enough], counted_groups[enough]
    chi_square = float(((counted_groups - expected_groups) ** 2 / expected_groups).sum())
    degrees = len(expected_groups) - 1
    share = expected_groups / draws
    p_value = 1.0
    if degrees > 0:
        half = torch.tensor([degrees, chi_square], dtype=torch.float64) / 2
        p_value = float(torch.special.gammaincc(half[0], half[1]))
    return Agreement(
        draws=draws,
        forbidden=forbidden,
        total_variation=float((counted_groups / draws - share).abs().sum() / 2),
        # A count's mean absolute deviation, by the normal distribution: sqrt(2 / pi) of its standard deviation.
        expected_total_variation=float((share * (1 - share) * 2 / (math.pi * draws)).clamp(min=0).sqrt().sum() / 2),
        chi_square=chi_square,
        degrees=degrees,
        p_value=p_value,
    )


def draw(case: Case, draws: int, implementation: object, key: int = 1 << 60, step: int = 3) -> tuple[Tensor, int]:
    """Draw a case's row so often; the tokens, and how many draws ran out of rounds.

    ``implementation`` has the functions ``sample`` and ``sample_top_k_top_p`` of the ops.
    """
    row = case.row().float()
    rows = row.expand(draws, -1)
    if case.top_k is None and case.top_p is None:
        return implementation.sample(rows, key, step, None, case.logits), 0  # type: ignore[attr-defined]
    capped = torch.zeros(draws, dtype=torch.int32)
    top_k = None if case.top_k is None else torch.full((draws,), case.top_k, dtype=torch.int32)
    top_p = None if case.top_p is None else torch.full((draws,), case.top_p)
    tokens = implementation.sample_top_k_top_p(  # type: ignore[attr-defined]
        rows, top_k, top_p, capped, key, step, None, case.logits
    )
    return tokens, int(capped.sum())
