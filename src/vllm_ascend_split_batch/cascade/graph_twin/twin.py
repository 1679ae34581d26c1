"""The twin of one captured graph, and one replay of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from vllm_ascend_split_batch.cascade.step_plan import PlanError, suffix_lengths
from vllm_ascend_split_batch.cascade.two_stage import Heads


class TwinError(RuntimeError):
    """A twin cannot run this step; the host's own graph runs it."""


@dataclass
class StepLengths:
    """What one step asks of one group of a twin.

    Attributes:
        prefix_tokens: P. block_ids: the ids of the P / block size shared blocks, from the host's memory.
        suffix_lengths: T host integers >= 1.
        block_table: the step's device table [>= requests, columns] int32.
        device_lengths: the host's sequence lengths on the device [>= requests] int32.
        requests: real requests, the first rows.
    """

    prefix_tokens: int
    block_ids: bytes
    suffix_lengths: list[int]
    block_table: Any
    device_lengths: Any
    requests: int


class GroupTwin(Protocol):
    """One attention group of a twin: the layers that share a block table."""

    def warm_up(self, query: Any, heads: Heads) -> None:
        """A layer passes by in the run before the capture: allocate what the capture needs."""

    def record(self, query: Any, key_cache: Any, value_cache: Any, heads: Heads, causal_mask: Any) -> Any:
        """A layer passes by in the capture: capture both stages; the result [T, H, D]."""

    def fill(self, step: StepLengths) -> None:
        """Copy what the replay reads from the device's memory, on the current stream."""

    def update(self, stream: Any) -> None:
        """Give the captured calls the step's host-side lengths, on the update stream."""

    def release(self, stream: Any) -> None:
        """Let a launched replay end that `update` did not complete; its results are thrown away."""

    def kept(self) -> bool:
        """Whether the last update left the prefix stages alone."""


@dataclass
class Twin:
    """The twin of one captured graph.

    Attributes:
        descriptor: the host's key of the graph it stands beside. rows: T.
        device: `torch.npu`. groups: by metadata builder.
        layers: attention layers that the graph computes in two stages, from the query to the layer's output.
        usable: False once something went wrong in a replay: what its events hold is then unknown.
    """

    descriptor: Any
    rows: int
    device: Any
    groups: dict[Any, GroupTwin] = field(default_factory=dict)
    layers: int = 0
    usable: bool = True

    def lengths_of(self, metadata: Any, prefix: Any, device_lengths: Any) -> StepLengths:
        """What a step asks of a group.

        Args:
            metadata: the host's attention metadata: `seq_lens_list`, `block_tables`.
            prefix: the `SharedPrefix` of the group.
            device_lengths: the host's sequence lengths on the device.

        Raises:
            PlanError: the metadata contradicts what was admitted.
        """
        requests = prefix.step.requests
        if requests > self.rows:
            raise PlanError(f"{requests} requests do not fit into a twin of {self.rows} rows")
        if metadata.block_tables.shape[0] < requests:
            raise PlanError(f"{requests} requests, but a block table of {tuple(metadata.block_tables.shape)}")
        known = metadata.seq_lens_list[:requests]
        if len(known) < requests:
            raise PlanError(f"{requests} requests, but {len(known)} sequence lengths")
        lengths = suffix_lengths(known + [0] * (self.rows - requests), self.rows, requests, int(prefix))
        return StepLengths(int(prefix), prefix.block_ids, lengths, metadata.block_tables, device_lengths, requests)


@dataclass
class Replay:
    """One replay of a twin.

    Attributes:
        steps: what the step asks of each group.
        launched: the host was asked to replay. updated: every group has the step's lengths.
    """

    twin: Twin
    steps: list[tuple[GroupTwin, StepLengths]]
    launched: bool = False
    updated: bool = False

    def fill(self) -> None:
        """Copy what the replay reads from the device's memory, on the current stream.

        The replay follows on the same stream, and the one before it has read its own by then.
        """
        for group, step in self.steps:
            group.fill(step)

    def update(self, stream: Any) -> None:
        """Give the captured calls the step's lengths, on the update stream.

        The device starts a layer as soon as it may, while the host goes on with the next.
        """
        with self.twin.device.stream(stream):
            for group, _ in self.steps:
                group.update(stream)
        self.updated = True

    def release(self, stream: Any) -> None:
        """Let a launched replay end. Its results are to be thrown away."""
        with self.twin.device.stream(stream):
            for group, _ in self.steps:
                group.release(stream)
        self.twin.device.current_stream().synchronize()
