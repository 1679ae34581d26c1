"""The facts of one sampling step, from the host's side of the runner's batch: nothing is copied from the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class SamplingStep:
    """One call of the runner's ``_sample``.

    Attributes:
        number: how many came before it in this process; the same on every tensor-parallel rank.
        rows: requests in the batch. speculative: whether draft tokens are verified in this step.
        replica: rank of the data-parallel replica.
    """

    number: int
    rows: int
    speculative: bool
    replica: int
    batch: Any

    def top_k_range(self) -> tuple[int, int]:
        """The least and the largest top-k of the batch; rows without one have the vocabulary's size."""
        top_k = self.batch.top_k_cpu[: self.rows]
        return int(top_k.min()), int(top_k.max())

    def positions(self) -> npt.NDArray[np.integer[Any]]:
        """Per row how many tokens the request has, prompt included: the place of the token that is drawn now."""
        positions: npt.NDArray[np.integer[Any]] = self.batch.num_tokens_no_spec[: self.rows]
        return positions


def read(runner: Any, spec_decode_metadata: Any, number: int) -> SamplingStep:
    """The step that ``runner`` (an `NPUModelRunner`) is about to sample."""
    batch = runner.input_batch
    return SamplingStep(
        number=number,
        rows=int(batch.num_reqs),
        speculative=spec_decode_metadata is not None,
        replica=int(runner.vllm_config.parallel_config.data_parallel_rank),
        batch=batch,
    )
