"""The facts of one model step, read once, from the runner's CPU-side state.

The host keeps everything a step's decisions need in host memory: the scheduled token counts, the computed token counts
and the block table it is about to copy to the device. Reading them there costs no device-to-host copy and no
synchronisation. Nothing here decides anything; this is the only module that knows how the runner names its state.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.integer[Any]]


class HostStateError(RuntimeError):
    """The runner's state does not have the shape this module was written against; the message names the part."""


@dataclass(frozen=True)
class BlockRows:
    """The CPU-side block table of one KV-cache group, real requests only.

    Attributes:
        ids: int array [requests, columns]; row r holds the block ids of request r, from its first token on.
        used: int array [requests]; how many leading columns of each row are valid.
        block_size: tokens per block, in the units of `ids`.
    """

    ids: IntArray
    used: IntArray
    block_size: int


@dataclass(frozen=True)
class StepFacts:
    """What the scheduler decided for one step. Lists: a step's few numbers cost less so than in arrays.

    Attributes:
        query_lengths: per request, tokens it computes in this step.
        computed_tokens: per request, tokens already in the KV cache before this step.
        prompt_tokens: per request, its prompt length.
    """

    query_lengths: list[int]
    computed_tokens: list[int]
    prompt_tokens: list[int]

    @property
    def num_requests(self) -> int:
        return len(self.query_lengths)

    @property
    def decode_only(self) -> bool:
        """Every request feeds exactly one row, and none of them is still reading its prompt.

        A last prefill chunk of one token and a preempted request that recomputes its prompt also feed one row; both
        have computed fewer tokens than their prompt holds.
        """
        one_each = self.query_lengths.count(1) == len(self.query_lengths)
        return one_each and all(map(operator.ge, self.computed_tokens, self.prompt_tokens))


def read_step(runner: Any, query_lengths: IntArray, computed_tokens: IntArray) -> StepFacts:
    """The facts of the step that `runner` (an `NPUModelRunner`) is preparing.

    Args:
        query_lengths: scheduled tokens per request, as the runner passes them to its own prefix computation.
        computed_tokens: computed tokens per request, likewise.

    Raises:
        HostStateError: the arrays do not describe the same requests.
    """
    requests = len(query_lengths)
    prompt_tokens = runner.input_batch.num_prompt_tokens[:requests]
    if not requests == len(computed_tokens) == len(prompt_tokens):
        raise HostStateError(
            f"the runner describes {requests} requests by their query lengths, {len(computed_tokens)} by their "
            f"computed tokens and {len(prompt_tokens)} by their prompt lengths"
        )
    return StepFacts(query_lengths.tolist(), computed_tokens.tolist(), prompt_tokens.tolist())


def read_block_rows(runner: Any, kv_cache_group: int, requests: int) -> BlockRows:
    """The block table rows of the step's requests in one KV-cache group.

    Raises:
        HostStateError: the host's table is not a CPU array of one row per request.
    """
    table = runner.input_batch.block_table[kv_cache_group]
    ids = table.get_numpy_array()
    if not isinstance(ids, np.ndarray) or ids.ndim != 2 or ids.shape[0] < requests:
        raise HostStateError(f"the block table of KV-cache group {kv_cache_group} is no CPU array [requests, blocks]")
    return BlockRows(ids[:requests], table.num_blocks_per_row[:requests], int(table.block_size))
