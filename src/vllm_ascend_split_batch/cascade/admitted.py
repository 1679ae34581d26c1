"""A step that was admitted to two-stage attention, on its way through the host.

The runner hands each attention group's shared prefix to its metadata builder as an integer. The integer we return is
one that also knows the step it belongs to, so nothing about a step lives anywhere but in the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Lane(Enum):
    """How an admitted step runs its model."""

    EAGER = "eager"
    """Attention runs operator by operator, in an eager step or between the pieces of a piecewise graph."""
    TWIN = "twin"
    """A captured graph whose attention is two-stage is replayed."""
    STANDARD = "standard"
    """The host's own captured graph is replayed: the step was admitted, but there is no twin it could use."""


@dataclass
class AdmittedStep:
    """One admitted step.

    Attributes:
        requests: real requests, one query row each.
        tier: the kernels that compute it.
        lane: how it runs; EAGER until the host's choice of a graph is known.
        twin: the twin that runs it, in lane TWIN.
        plans: what the metadata builders made of it, by builder: a twin needs one of every builder.
    """

    requests: int
    tier: Any
    lane: Lane = Lane.EAGER
    twin: Any = None
    plans: dict[Any, Any] = field(default_factory=dict)


class SharedPrefix(int):
    """A shared prefix in tokens, with its step, and the ids of its blocks as the host's table has them."""

    step: AdmittedStep
    block_ids: bytes

    @classmethod
    def of(cls, tokens: int, step: AdmittedStep, block_ids: bytes) -> SharedPrefix:
        made = cls(tokens)
        made.step, made.block_ids = step, block_ids
        return made
