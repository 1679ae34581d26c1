"""What the steps of a simulation add up to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from vllm_ascend_split_batch.host_model.padding import RuntimeMode


@dataclass
class StepTotals:
    """Counted over all steps.

    Attributes:
        decode_steps: steps in which all requests decode one token, by their number.
        mixed_steps: all other steps, by their tokens.
        modes: steps by the mode they run in, decode and mixed ones apart.
        rows: rows of all steps.
        tokens: tokens of all steps; the other rows are padding.
        decode_rows, decode_tokens: the same of decode steps alone.
        seconds: time of all steps.
        seconds_without_graph: of decode steps without a graph.
    """

    decode_steps: Counter[int] = field(default_factory=Counter)
    mixed_steps: Counter[int] = field(default_factory=Counter)
    modes: Counter[tuple[str, str]] = field(default_factory=Counter)
    rows: int = 0
    tokens: int = 0
    decode_rows: int = 0
    decode_tokens: int = 0
    seconds: float = 0.0
    seconds_without_graph: float = 0.0

    def count(self, *, steps: int, tokens: int, rows: int, mode: RuntimeMode, decode: bool, seconds: float) -> None:
        """Count equal steps; tokens, rows and seconds are those of one."""
        (self.decode_steps if decode else self.mixed_steps)[tokens] += steps
        self.modes["decode" if decode else "mixed", mode.name] += steps
        self.rows += steps * rows
        self.tokens += steps * tokens
        self.seconds += steps * seconds
        if decode:
            self.decode_rows += steps * rows
            self.decode_tokens += steps * tokens
            if mode is RuntimeMode.NONE:
                self.seconds_without_graph += steps * seconds

    @property
    def padding(self) -> int:
        """Padding rows of all steps."""
        return self.rows - self.tokens

    @property
    def decode_padding(self) -> int:
        """Padding rows of decode steps."""
        return self.decode_rows - self.decode_tokens

    @property
    def num_decode_steps(self) -> int:
        """Decode steps."""
        return self.decode_steps.total()

    @property
    def decode_steps_without_graph(self) -> int:
        """Decode steps that run without a graph."""
        return self.modes["decode", RuntimeMode.NONE.name]
