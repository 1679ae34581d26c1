"""Twins whose kernels read lengths and block tables from device memory: a replay needs no new parameters.

Nothing waits for the host and nothing is re-parameterised layer by layer: before the replay three small buffers are
filled, whatever the number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_ascend_split_batch.cascade.tiers import OwnTier
from vllm_ascend_split_batch.cascade.two_stage import Heads

from .twin import StepLengths, TwinError


@dataclass
class DeviceGroupTwin:
    """One attention group of a twin.

    Attributes:
        tier: the kernels. rows: T. block_size: tokens per block.
        table: int32 device buffer [T, columns], every row's blocks from its first token on.
        lengths: int32 device buffer [T], all keys of each row. prefix_length: int32 device buffer [1].
        splits: parts of the prefix, fixed at capture.
    """

    tier: OwnTier
    rows: int
    block_size: int
    table: Any
    lengths: Any
    prefix_length: Any

    @classmethod
    def beside(cls, block_table: Any, rows: int, block_size: int, tier: OwnTier) -> DeviceGroupTwin:
        """A group whose table is as wide as the host's `block_table` [rows, columns]."""
        return cls(
            tier,
            rows,
            block_size,
            block_table.new_zeros((rows, block_table.shape[1])),
            block_table.new_ones((rows,)),
            block_table.new_zeros((1,)),
        )

    def warm_up(self, query: Any, heads: Heads) -> None:
        """Nothing to allocate."""

    def record(self, query: Any, key_cache: Any, value_cache: Any, heads: Heads, causal_mask: Any) -> Any:
        """Capture both launches of a layer: [T, H, D]."""
        if query.shape[0] != self.rows:
            raise TwinError(f"the layer has {query.shape[0]} query rows in a graph of {self.rows}")
        # The number of parts is part of the captured launch; the longest prefix that fits needs the most.
        splits = self.tier.splits(self.rows, heads.query, heads.kv, self.table.shape[1] * self.block_size)
        return self.tier.launch(
            query, key_cache, value_cache, self.table, self.lengths, self.prefix_length, heads, splits
        )

    def fill(self, step: StepLengths) -> None:
        """Copy tables and lengths device to device, and the prefix length as a constant of a fill."""
        requests, columns = step.requests, min(step.block_table.shape[1], self.table.shape[1])
        needed = -(-(step.prefix_tokens + max(step.suffix_lengths)) // self.block_size)
        if needed > columns:
            raise TwinError(f"{needed} blocks a row do not fit into a block table of {tuple(step.block_table.shape)}")
        if step.device_lengths is None:
            raise TwinError("the host keeps no sequence lengths on the device in this step")
        self.table[:requests, :needed].copy_(step.block_table[:requests, :needed], non_blocking=True)
        self.lengths[:requests].copy_(step.device_lengths[:requests], non_blocking=True)
        if requests < self.rows:
            # Rows of no request have no key of their own; what they read of the prefix is thrown away.
            self.lengths[requests:].zero_()
        self.prefix_length.fill_(step.prefix_tokens)

    def update(self, stream: Any) -> None:
        """Nothing travels by update."""

    def release(self, stream: Any) -> None:
        """Nothing waits."""

    def kept(self) -> bool:
        return True
