"""Graph modes: what is configured for an engine, and what one step runs."""

from __future__ import annotations

from enum import Enum, IntEnum


class RuntimeMode(IntEnum):
    """How one step runs. The order counts: data-parallel ranks agree on the smallest."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2


class GraphMode(Enum):
    """The configured `cudagraph_mode`: the modes of a uniform decode batch and of any other batch."""

    NONE = (RuntimeMode.NONE, RuntimeMode.NONE, False)
    PIECEWISE = (RuntimeMode.PIECEWISE, RuntimeMode.PIECEWISE, False)
    FULL = (RuntimeMode.FULL, RuntimeMode.FULL, False)
    FULL_DECODE_ONLY = (RuntimeMode.FULL, RuntimeMode.NONE, True)
    FULL_AND_PIECEWISE = (RuntimeMode.FULL, RuntimeMode.PIECEWISE, True)

    @property
    def decode(self) -> RuntimeMode:
        """Mode of a uniform decode batch."""
        return self.value[0]

    @property
    def mixed(self) -> RuntimeMode:
        """Mode of every other batch."""
        return self.value[1]

    @property
    def separates_decode(self) -> bool:
        """Decode batches have graphs of their own, captured for a uniform query length."""
        return self.value[2]
