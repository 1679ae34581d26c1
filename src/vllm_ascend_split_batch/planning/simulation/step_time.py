"""How long a step takes: a straight line, because no more is known before it is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class StepTime:
    """Microseconds of one engine step, from its start to the start of the next one::

        time = fixed + row_us * (rows - prompt tokens) + prompt_token_us * prompt tokens
        fixed = graph_us where the step replays captured graphs, else eager_us

    `rows` are those of the step as the host pads it. What a step costs whatever its size, such as reading the weights
    and scheduling, is in the fixed part; a prompt token is dearer than a row because it is computed, not read. That
    attention grows with the context is not in it.

    The defaults are assumptions, of the order of a 14-billion-parameter model in bfloat16 on one device with 1.6 TB/s
    and 350 TFLOP/s. Measure your own: `docs/planning.md` says how.

    Attributes:
        graph_us: fixed part of a step in captured graphs.
        eager_us: fixed part of a step without, which launches operator by operator.
        row_us: each decoding row, padding rows included.
        prompt_token_us: each prompt token.

    Raises:
        ValueError: a number is negative, infinite or not a number, or no step takes any time.
    """

    graph_us: float = 20_000.0
    eager_us: float = 32_000.0
    row_us: float = 60.0
    prompt_token_us: float = 100.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{field.name} must be a finite number of microseconds, 0 or more, got {value}")
        if min(self.graph_us, self.eager_us) + min(self.row_us, self.prompt_token_us) == 0:
            raise ValueError("a step must take some time: give a fixed part, or times of rows and of prompt tokens")

    def seconds(self, *, rows: int, prompt_tokens: int, in_graph: bool) -> float:
        """Seconds of one step."""
        fixed = self.graph_us if in_graph else self.eager_us
        return (fixed + self.row_us * (rows - prompt_tokens) + self.prompt_token_us * prompt_tokens) * 1e-6
