"""The twin of one captured graph: what was captured, what a step fills in, and how far one replay has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_ascend_split_batch.cascade.step_plan import PlanError, suffix_lengths
from vllm_ascend_split_batch.cascade.two_stage import Heads

from .stages import LayerTasks, Results, Stage, allocate_results, stage_arguments


class TwinError(RuntimeError):
    """A twin cannot run this step; the host's own graph runs it."""


@dataclass
class Toolbox:
    """What a twin uses of the device and the host.

    Attributes:
        device: `torch.npu`: streams, external events, task groups.
        fused: the fused attention's overload packet, with `out`.
        max_workspace: sizes the fused attention's workspace.
        weak: makes a tensor reference that does not keep the graph pool's memory.
        merge: merges two partial results: (prefix out, suffix out, prefix LSE, suffix LSE) -> out [T, H, D].
    """

    device: Any
    fused: Any
    max_workspace: Callable[..., Any]
    weak: Callable[[Any], Any]
    merge: Callable[[Any, Any, Any, Any], Any]


@dataclass
class StepLengths:
    """What one step asks of one group of a twin.

    Attributes:
        prefix_tokens: P. block_ids: host ids of the P / block size shared blocks.
        suffix_lengths: T host integers >= 1.
        block_table: the step's device table [>= requests, columns] int32.
        requests: real requests, the first rows.
    """

    prefix_tokens: int
    block_ids: npt.NDArray[Any]
    suffix_lengths: list[int]
    block_table: Any
    requests: int


@dataclass
class GroupTwin:
    """One attention group of a twin.

    Attributes:
        rows: T, the captured number of query rows. block_size: tokens per block.
        prefix_table: int32 device buffer [1, columns], the shared blocks as one sequence.
        suffix_table: int32 device buffer [T, columns], every row's blocks behind the prefix.
        layers: what was captured, in the order of the capture.
        workspaces: of the prefix and the suffix stage. They are separate because two calls in flight must not share
            one, and they are kept here because a graph does not keep what it uses.
        prefix: (tokens, block ids) that the prefix stages and `prefix_table` hold now; None: unknown.
    """

    rows: int
    block_size: int
    prefix_table: Any
    suffix_table: Any
    layers: list[LayerTasks] = field(default_factory=list)
    workspaces: tuple[Any, Any] | None = None
    prefix: tuple[int, npt.NDArray[Any]] | None = None

    def holds(self, prefix_tokens: int, block_ids: npt.NDArray[Any]) -> bool:
        """Whether the prefix stages are parameterised for exactly this prefix already. Host memory only."""
        return (
            self.prefix is not None
            and self.prefix[0] == prefix_tokens
            and np.array_equal(self.prefix[1], block_ids)
        )


@dataclass
class Twin:
    """The twin of one captured graph.

    Attributes:
        descriptor: the host's key of the graph it stands beside.
        rows: T. groups: by metadata builder. results: partial results by layer shape, shared by all layers (they run
            one after the other) and by all twins of a runner.
        usable: False once something went wrong in a replay: what its events hold is then unknown.
    """

    descriptor: Any
    rows: int
    tools: Toolbox
    results: dict[Any, Results]
    groups: dict[Any, GroupTwin] = field(default_factory=dict)
    usable: bool = True

    # Capture ----------------------------------------------------------------------------------------------------------

    def open_group(self, builder: Any, block_table: Any, block_size: int) -> GroupTwin:
        """The group of `builder`, its tables as wide as the host's block table [rows, columns]."""
        if builder not in self.groups:
            columns = block_table.shape[1]
            self.groups[builder] = GroupTwin(
                self.rows,
                block_size,
                block_table.new_zeros((1, columns)),
                block_table.new_zeros((self.rows, columns)),
            )
        return self.groups[builder]

    def record(
        self, group: GroupTwin, query: Any, key_cache: Any, value_cache: Any, heads: Heads, *, causal_mask: Any
    ) -> Any:
        """Capture one layer. Called by the layer while the host captures; returns the merged result [T, H, D]."""
        tools, rows = self.tools, self.rows
        if query.shape[0] != rows:
            raise TwinError(f"the layer has {query.shape[0]} query rows in a graph of {rows}")
        key = (heads.query, heads.size, query.dtype)
        if key not in self.results or self.results[key].prefix_out.shape[0] < rows:
            raise TwinError("the warm-up run did not pass through this layer")
        results = self.results[key]
        out1, lse1 = results.prefix_out[:rows], results.prefix_lse[:rows]
        out2, lse2 = results.suffix_out[:rows], results.suffix_lse[:rows]
        common = {"block_size": group.block_size}
        prefix = stage_arguments(
            query, key_cache, value_cache, heads,
            block_table=group.prefix_table, query_ends=[rows], mask=None, **common,
        )  # fmt: skip
        suffix = stage_arguments(
            query, key_cache, value_cache, heads,
            block_table=group.suffix_table, query_ends=list(range(1, rows + 1)), mask=causal_mask, **common,
        )  # fmt: skip
        if group.workspaces is None:
            capacity = group.prefix_table.shape[1] * group.block_size
            group.workspaces = (
                tools.max_workspace(**prefix, actual_seq_lengths_kv=[capacity]),
                tools.max_workspace(**suffix, actual_seq_lengths_kv=[capacity] * rows),
            )
        stream = tools.device.current_stream()
        event = tools.device.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        stages = [
            self._capture_stage(stream, arguments | {"workspace": workspace, "out": [out, lse]}, lengths)
            for arguments, workspace, out, lse, lengths in (
                (prefix, group.workspaces[0], out1, lse1, [group.block_size]),
                (suffix, group.workspaces[1], out2, lse2, [1] * rows),
            )
        ]
        group.layers.append(LayerTasks(event, *stages))
        return tools.merge(out1, out2, lse1, lse2)

    def _capture_stage(self, stream: Any, arguments: dict[str, Any], kv_lengths: list[int]) -> Stage:
        tools = self.tools
        tools.device.graph_task_group_begin(stream)
        tools.fused.out(**arguments, actual_seq_lengths_kv=kv_lengths)
        handle = tools.device.graph_task_group_end(stream)
        # The query lives in the graph's pool, which must be free to use its memory again behind this layer.
        return Stage(arguments | {"query": tools.weak(arguments["query"])}, handle)

    def prepare_results(self, query: Any, heads: Heads) -> None:
        """Allocate the partial results of a layer shape, outside of any graph, once for the largest twin."""
        key = (heads.query, heads.size, query.dtype)
        if key not in self.results:
            self.results[key] = allocate_results(query, heads, self.rows)

    # Replay -----------------------------------------------------------------------------------------------------------

    def lengths_of(self, metadata: Any, prefix: Any) -> StepLengths:
        """What a step asks of a group.

        Args:
            metadata: the host's attention metadata: `seq_lens_list`, `block_tables`.
            prefix: the `SharedPrefix` of the group.

        Raises:
            PlanError: the metadata contradicts what was admitted.
        """
        requests = prefix.step.requests
        if requests > self.rows:
            raise PlanError(f"{requests} requests do not fit into a twin of {self.rows} rows")
        if metadata.block_tables.shape[0] < requests:
            raise PlanError(f"{requests} requests, but a block table of {tuple(metadata.block_tables.shape)}")
        sequence_lengths = metadata.seq_lens_list[:requests]
        if len(sequence_lengths) < requests:
            raise PlanError(f"{requests} requests, but {len(sequence_lengths)} sequence lengths")
        lengths = suffix_lengths(
            sequence_lengths + [0] * (self.rows - requests), self.rows, requests, int(prefix)
        )
        return StepLengths(int(prefix), prefix.block_ids, lengths, metadata.block_tables, requests)


@dataclass
class Replay:
    """One replay of a twin.

    Attributes:
        steps: what the step asks of each group. skip_stable: leave prefix stages alone while their prefix is unchanged.
        recorded: events recorded so far. updated: all were.
        prefix_updates, prefix_kept: groups whose prefix stages were, or were not, given new lengths.
    """

    twin: Twin
    steps: list[tuple[GroupTwin, StepLengths]]
    skip_stable: bool
    launched: bool = False
    recorded: int = 0
    updated: bool = False
    prefix_updates: int = 0
    prefix_kept: int = 0
    _stable: list[bool] = field(default_factory=list)

    def fill_tables(self) -> None:
        """Copy the step's block ids into the twin's tables, device to device, on the current stream.

        The replay follows on the same stream, and the one before has read its tables by then. Columns behind a row's
        suffix are not read; rows of no request read one key of block 0.
        """
        for group, step in self.steps:
            blocks = step.prefix_tokens // group.block_size
            suffix_blocks = -(-max(step.suffix_lengths) // group.block_size)
            table = step.block_table
            if table.shape[1] < blocks + suffix_blocks or group.prefix_table.shape[1] < blocks:
                raise TwinError(
                    f"a block table of {tuple(table.shape)} does not hold {blocks}+{suffix_blocks} blocks a row"
                )
            stable = group.holds(step.prefix_tokens, step.block_ids)
            self._stable.append(stable and self.skip_stable)
            if not stable:
                group.prefix = None
                group.prefix_table[:, :blocks].copy_(table[:1, :blocks], non_blocking=True)
            group.suffix_table[: step.requests, :suffix_blocks].copy_(
                table[: step.requests, blocks : blocks + suffix_blocks], non_blocking=True
            )
            if step.requests < group.rows:
                group.suffix_table[step.requests :, :1].zero_()

    def update(self, stream: Any) -> None:
        """Give every stage the step's lengths and record every event, on the update stream.

        The device starts a layer as soon as its event is recorded, while the host goes on with the next.
        """
        tools = self.twin.tools
        with tools.device.stream(stream):
            for (group, step), stable in zip(self.steps, self._stable, strict=True):
                group.prefix = None
                for layer in group.layers:
                    if not stable:
                        layer.prefix.update(tools.device, tools.fused, stream, [step.prefix_tokens])
                    layer.suffix.update(tools.device, tools.fused, stream, step.suffix_lengths)
                    layer.event.record(stream)
                    self.recorded += 1
                group.prefix = (step.prefix_tokens, step.block_ids)
                self.prefix_kept += stable
                self.prefix_updates += not stable
        self.updated = True

    def release(self, stream: Any) -> None:
        """Record what `update` did not come to, so that a launched replay ends. Its results are to be thrown away."""
        device = self.twin.tools.device
        layers = [layer for group, _ in self.steps for layer in group.layers]
        with device.stream(stream):
            for layer in layers[self.recorded :]:
                layer.event.record(stream)
                self.recorded += 1
        device.current_stream().synchronize()
