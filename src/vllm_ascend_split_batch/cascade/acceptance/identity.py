"""Are the texts the same with cascade as without? In a 16-bit model up to near ties.

Both arms run in one engine. Cascade rounds partial results differently, so where two tokens are almost equally likely
a 16-bit model may pick the other one, and the texts go apart from there. A difference is accepted when, at the first
token that differs, stock itself gave cascade's token nearly the likelihood of its own. Anything else is a fault: wrong
lengths, stale parameters or a wrong merge change likelihoods by far more.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .switched_engine import SwitchedEngine

#: Log-likelihood by which stock's token may lead at the first difference. bfloat16 has 8 bits: logits of some tens come
#: in steps of up to 0.25.
NEAR_TIE = 0.25 + 1e-3
#: How far the two arms' likelihoods of the same token may lie apart while the texts agree.
DRIFT = 0.5


@dataclass(frozen=True)
class Round:
    """Requests that are started together: `requests` of them share `prefix` tokens and generate `tokens` each."""

    requests: int
    prefix: int
    tokens: int
    seed: int
    own: tuple[int, int] = (5, 140)


@dataclass(frozen=True)
class Comparison:
    """One request, both arms.

    Attributes:
        same: tokens that agree from the start. lead: at the first difference, the log-likelihood by which stock's token
            leads cascade's in stock's own view; None when the texts are equal. drift: the largest difference of
            likelihoods before it.
    """

    request: int
    same: int
    tokens: int
    lead: float | None
    drift: float

    @property
    def accepted(self) -> bool:
        return self.drift <= DRIFT and (self.lead is None or self.lead <= NEAR_TIE)


@dataclass(frozen=True)
class Identity:
    """All comparisons of an engine, and how many steps of the cascade arm ran two-stage."""

    comparisons: list[Comparison]
    engaged: int
    twins_replayed: int

    @property
    def faults(self) -> list[Comparison]:
        return [one for one in self.comparisons if not one.accepted]

    @property
    def equal(self) -> int:
        return sum(one.lead is None for one in self.comparisons)


def rounds(prefix: int, most_requests: int) -> list[Round]:
    """What is generated: prefixes that change and come back, batches of several sizes, more requests than fit at once.

    Each is what would show one kind of fault: a stale prefix, a stale length, rows of another request.
    """
    few = max(2, most_requests // 2 - 1)
    return [
        Round(most_requests - 1, prefix, 16, seed=1),
        Round(few, prefix + 128, 12, seed=2),
        Round(most_requests + few, prefix, 10, seed=1),
        Round(few, prefix + 128, 12, seed=3),
        Round(most_requests - 1, prefix, 16, seed=1),
    ]


def prompts_of(one: Round, vocabulary: int) -> list[list[int]]:
    """Random ids; the same seed gives the same shared prefix."""
    draw = random.Random(one.seed)
    low, high = min(100, vocabulary // 2), vocabulary - 1

    def ids(count: int) -> list[int]:
        return [draw.randint(low, high) for _ in range(count)]

    shared = ids(one.prefix)
    return [shared + ids(draw.randint(*one.own)) for _ in range(one.requests)]


def check(engine: SwitchedEngine, work: Sequence[Round]) -> Identity:
    """Generate every round with both arms and compare."""
    comparisons: list[Comparison] = []
    before = engine.counters["engaged"], engine.twins_replayed
    for one in work:
        prompts = prompts_of(one, engine.vocabulary)
        with engine.stock():
            stock = engine.generate_with_likelihoods(prompts, one.tokens)
        cascade = engine.generate_with_likelihoods(prompts, one.tokens)
        for theirs, ours in zip(stock, cascade, strict=True):
            comparisons.append(compare(len(comparisons), theirs, ours))
    return Identity(comparisons, engine.counters["engaged"] - before[0], engine.twins_replayed - before[1])


#: A request's text: per token its id, and the log-likelihoods of the likeliest ids, the token's own included.
Text = list[tuple[int, dict[int, float]]]


def compare(request: int, stock: Text, cascade: Text) -> Comparison:
    """Compare one request's texts."""
    drift = 0.0
    for position, ((theirs, seen), (ours, seen_by_cascade)) in enumerate(zip(stock, cascade, strict=True)):
        if theirs != ours:
            lead = seen[theirs] - seen[ours] if ours in seen else float("inf")
            return Comparison(request, position, len(stock), max(0.0, lead), drift)
        drift = max(drift, abs(seen[theirs] - seen_by_cascade[ours]))
    return Comparison(request, len(stock), len(stock), None, drift)


def as_json(identity: Identity) -> dict[str, Any]:
    """For the evidence folder."""
    return {
        "requests": len(identity.comparisons),
        "equal": identity.equal,
        "near_ties": sum(one.accepted and one.lead is not None for one in identity.comparisons),
        "faults": len(identity.faults),
        "steps_two_stage": identity.engaged,
        "twins_replayed": identity.twins_replayed,
        "accepted_lead": NEAR_TIE,
        "accepted_drift": DRIFT,
        "comparisons": [
            {
                "request": one.request,
                "same_tokens": one.same,
                "tokens": one.tokens,
                "lead": "not among the likeliest" if one.lead == float("inf") else one.lead,
                "drift": one.drift,
                "accepted": one.accepted,
            }
            for one in identity.comparisons
        ],
    }
