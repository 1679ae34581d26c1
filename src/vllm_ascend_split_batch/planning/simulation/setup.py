"""One engine to simulate: admission, padding and step times, held together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from vllm_ascend_split_batch.host_model.admission import EngineSettings
from vllm_ascend_split_batch.host_model.padding import GraphMode, HostSettings
from vllm_ascend_split_batch.planning.simulation.step_time import StepTime


@dataclass(frozen=True)
class Setup:
    """An engine.

    Attributes:
        engine: what admission depends on.
        host: what padding depends on.
        step_time: how long steps take.

    Raises:
        ValueError: the two halves tell of different engines.
    """

    engine: EngineSettings = field(default_factory=EngineSettings)
    host: HostSettings = field(
        default_factory=lambda: HostSettings(
            EngineSettings().release, GraphMode.FULL_DECODE_ONLY, max_num_seqs=EngineSettings().max_num_seqs
        )
    )
    step_time: StepTime = field(default_factory=StepTime)

    def __post_init__(self) -> None:
        for name in ("release", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self.engine, name) != getattr(self.host, name):
                raise ValueError(f"{name} of admission and of padding differ")

    def with_policy(self, **changes: Any) -> Setup:
        """The same engine with other settings of admission."""
        return replace(self, engine=replace(self.engine, **changes))

    def with_capture_sizes(self, sizes: tuple[int, ...]) -> Setup:
        """The same engine with a list of capture sizes."""
        return replace(self, host=replace(self.host, capture_sizes=sizes, max_capture_size=None))
