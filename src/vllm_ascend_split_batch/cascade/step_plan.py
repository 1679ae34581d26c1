"""What all layers of one decode step share: the split of every request into prefix and suffix, computed once.

A plan hangs on the step's attention metadata and dies with it, so a layer can never see another step's lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Attribute of the host's attention metadata that carries the plan.
ATTRIBUTE = "split_batch_cascade_plan"
#: Likewise, while a graph twin is captured: the group of the twin.
RECORDING = "split_batch_cascade_recording"

#: A row that belongs to no request (padding) still needs one key to attend to; its result is discarded.
PADDING_SUFFIX = 1


class PlanError(RuntimeError):
    """The step's metadata contradicts what was admitted; the step runs the host's own attention."""


@dataclass
class StepPlan:
    """The two-stage form of one decode step.

    Attributes:
        rows: T, query rows of the step, one per request (padding rows included).
        requests: real requests, the first rows.
        prefix_tokens: P, shared by all requests; a multiple of the block size, > 0.
        block_size: tokens per block.
        block_table: the step's int32 device table [>= T, columns], the host's own.
        device_lengths: sequence lengths on the device [>= T] int32, the host's own; None where it has none at hand.
        suffix_lengths: T host integers, >= 1: keys each row attends to behind the prefix.
        query_ends: T host integers 1..T, cumulative query lengths of the suffix stage.
        lengths_on_device: ([T], [P]) as int64 device tensors, made when the fp32 prefix stage first asks.
        tier: the kernels that run it.
        layers_done: how many layers ran two-stage so far.
    """

    rows: int
    requests: int
    prefix_tokens: int
    block_size: int
    block_table: Any
    device_lengths: Any
    suffix_lengths: list[int]
    query_ends: list[int]
    lengths_on_device: tuple[Any, Any] | None = field(default=None)
    layers_done: int = 0
    tier: Any = None
    _tables: tuple[Any, Any] | None = field(default=None)
    _on_device: tuple[Any, Any, Any] | None = field(default=None)

    @property
    def prefix_table(self) -> Any:
        """int32 device tensor [1, P / block_size]: the shared blocks, as one sequence."""
        return self._cut_tables()[0]

    @property
    def suffix_table(self) -> Any:
        """int32 device tensor [T, columns]: every request's blocks behind the prefix."""
        return self._cut_tables()[1]

    def _cut_tables(self) -> tuple[Any, Any]:
        # Cut when a layer first asks, once for all layers, and not at all by kernels that read the whole table.
        if self._tables is None:
            blocks = self.prefix_tokens // self.block_size
            columns = blocks - (-max(self.suffix_lengths) // self.block_size)
            self._tables = (
                self.block_table[:1, :blocks].contiguous(),
                self.block_table[: self.rows, blocks:columns].contiguous(),
            )
        return self._tables

    def on_device(self) -> tuple[Any, Any, Any]:
        """Block table [T, columns], sequence lengths [T] and prefix length [1], int32 on the device.

        The one copy is from host to device and waits for nothing.

        Raises:
            PlanError: the host has no sequence lengths on the device.
        """
        if self._on_device is None:
            if self.device_lengths is None:
                raise PlanError("the host keeps no sequence lengths on the device in this step")
            import torch

            prefix = torch.tensor([self.prefix_tokens], dtype=torch.int32)
            self._on_device = (
                self.block_table[: self.rows],
                self.device_lengths[: self.rows].to(torch.int32),
                prefix.to(self.block_table.device, non_blocking=True),
            )
        return self._on_device


def suffix_lengths(sequence_lengths: list[int], rows: int, requests: int, prefix_tokens: int) -> list[int]:
    """Keys behind the prefix per row: sequence length minus prefix for requests, one key for padding rows.

    Args:
        sequence_lengths: tokens per row including the one computed in this step; rows from `requests` on are padding.
        rows: T. requests: real requests, the first ones.
        prefix_tokens: P.

    Raises:
        PlanError: fewer lengths than rows, or a request that is not longer than the prefix.
    """
    if len(sequence_lengths) < rows:
        raise PlanError(f"the step has {rows} query rows but only {len(sequence_lengths)} sequence lengths")
    lengths = [length - prefix_tokens for length in sequence_lengths[:requests]]
    shortest = min(lengths, default=0)
    if shortest < 1:
        raise PlanError(
            f"a request of {shortest + prefix_tokens} tokens is not longer than the shared prefix of {prefix_tokens}"
        )
    return lengths + [PADDING_SUFFIX] * (rows - requests)


def make_plan(
    metadata: Any, *, prefix_tokens: int, block_size: int, requests: int, device_lengths: Any = None
) -> StepPlan:
    """The plan of a step, from the host's attention metadata of this step.

    Args:
        metadata: the host's `AscendMetadata`: host-side `actual_seq_lengths_q` (cumulative) and `seq_lens_list`, device
            tensor `block_tables` [>= T, columns] int32.
        prefix_tokens: P > 0, a multiple of `block_size`.
        requests: real requests of the step.
        device_lengths: the host's sequence lengths on the device [>= T] int32, if it has any.

    Raises:
        PlanError: the metadata does not describe one query row per request, or too few blocks.
    """
    query_ends = metadata.actual_seq_lengths_q
    rows = len(query_ends)
    if not 0 < requests <= rows or query_ends[-1] != rows:
        raise PlanError(
            f"{requests} requests, {rows} query lengths and {query_ends[-1:]} query rows are not one row each"
        )
    lengths = suffix_lengths(metadata.seq_lens_list, rows, requests, prefix_tokens)
    prefix_blocks = prefix_tokens // block_size
    suffix_blocks = -(-max(lengths) // block_size)
    table = metadata.block_tables
    if prefix_tokens % block_size or table.shape[0] < rows or table.shape[1] < prefix_blocks + suffix_blocks:
        raise PlanError(
            f"a block table of {tuple(table.shape)} does not hold {rows} rows of {prefix_blocks}+{suffix_blocks} blocks"
        )
    return StepPlan(
        rows=rows,
        requests=requests,
        prefix_tokens=prefix_tokens,
        block_size=block_size,
        block_table=table,
        device_lengths=device_lengths,
        suffix_lengths=lengths,
        query_ends=list(query_ends),
    )
