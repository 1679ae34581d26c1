"""The carrier's variables, as the commands read them: with the warning an engine would give."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from vllm_ascend_split_batch.cascade_plugin import CASCADE

#: The two hard floors: shared tokens, requests.
MIN_PREFIX, MIN_REQUESTS = "VLLM_ASCEND_CASCADE_MIN_PREFIX", "VLLM_ASCEND_CASCADE_MIN_REQS"


def setting(name: str) -> Any:
    """The value that one of the carrier's variables has in this environment; an unreadable one is pointed out."""
    reading = next(gate for gate in CASCADE.gates if gate.name == name).read()
    if reading.problem is not None:
        print(f"warning: {reading.problem}", file=sys.stderr)
    return reading.value


def lower_floors(pays: Iterable[tuple[int, int]]) -> str:
    """The variables that let a profile be asked where cascade pays, or "" where the floors let it be already.

    Args:
        pays: (requests, shared tokens) of batches that gain.
    """
    pays = list(pays)
    if not pays:
        return ""
    least = {MIN_PREFIX: min(tokens for _, tokens in pays), MIN_REQUESTS: min(requests for requests, _ in pays)}
    return " ".join(f"{name}={value}" for name, value in least.items() if value < setting(name))
