"""The carrier's variables, as the commands read them: with the warning an engine would give."""

from __future__ import annotations

import sys
from typing import Any

from vllm_ascend_split_batch.cascade_plugin import CASCADE


def setting(name: str) -> Any:
    """The value that one of the carrier's variables has in this environment; an unreadable one is pointed out."""
    reading = next(gate for gate in CASCADE.gates if gate.name == name).read()
    if reading.problem is not None:
        print(f"warning: {reading.problem}", file=sys.stderr)
    return reading.value
