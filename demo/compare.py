"""Two arms' answers side by side: identical, or different from which token on, and how close that choice was."""

from __future__ import annotations

from dataclasses import dataclass

from .client import Answer

#: Two bfloat16 steps of a logit between 16 and 32; two tokens closer than this are a tie in this precision.
NEAR_TIE = 0.25
#: Logprobs are differences of float32 sums: two steps apart may read as 0.2500002.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Difference:
    """The first position where two answers to the same request differ.

    Attributes:
        request: index of the request. position: of the token, from 0.
        gap: how much more likely the first arm thought its own token than the other arm's, in its own logprobs; None
            where the other arm's token is not even among its most likely ones.
    """

    request: int
    position: int
    gap: float | None

    @property
    def near_tie(self) -> bool:
        return self.gap is not None and self.gap <= NEAR_TIE + ROUNDING

    def __str__(self) -> str:
        gap = "not among the likeliest tokens" if self.gap is None else f"logprobs {self.gap:.3f} apart"
        return f"request {self.request + 1}, token {self.position + 1}: {gap}"


def first_difference(request: int, reference: Answer, other: Answer) -> Difference | None:
    """Where `other` leaves `reference`, or None. An answer that ends earlier differs where it ends."""
    for position in range(max(len(reference.tokens), len(other.tokens))):
        mine = reference.tokens[position] if position < len(reference.tokens) else None
        theirs = other.tokens[position] if position < len(other.tokens) else None
        if mine == theirs:
            continue
        gap = None
        if mine is not None and theirs is not None:
            likely = reference.top_logprobs[position]
            if mine in likely and theirs in likely:
                gap = likely[mine] - likely[theirs]
        return Difference(request, position, gap)
    return None


def differences(reference: list[Answer], other: list[Answer]) -> list[Difference]:
    """All first differences, in the order of the requests."""
    pairs = enumerate(zip(reference, other, strict=True))
    return [found for index, (mine, theirs) in pairs if (found := first_difference(index, mine, theirs))]
