"""Twins whose stages are calls of the host's fused attention: new lengths travel by task updates.

The host's fused attention takes its lengths from host memory, so a captured call is frozen to the lengths of its
capture. The device offers task groups for that: a captured group of calls can be given new arguments while the graph
waits at an event in front of it. A layer here has one event and two groups, the prefix stage and the suffix stage, so
that the prefix stage, whose arguments rarely change, is left alone while it may be.

Block tables are buffers of fixed place that a step fills before the replay; only host-side lengths travel by update.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from vllm_ascend_split_batch.cascade.two_stage import Heads, fused_arguments

from .twin import StepLengths, TwinError


@dataclass
class Toolbox:
    """What these twins use of the device and the host.

    Attributes:
        device: `torch.npu`: streams, external events, task groups.
        fused: the fused attention's overload packet, with `out`.
        max_workspace: sizes the fused attention's workspace.
        weak: makes a tensor reference that does not keep the graph pool's memory.
        merge: merges two partial results: (prefix out, suffix out, prefix LSE, suffix LSE) -> out [T, H, D].
        skip_stable: leave prefix stages alone while their prefix is unchanged.
    """

    device: Any
    fused: Any
    max_workspace: Callable[..., Any]
    weak: Callable[[Any], Any]
    merge: Callable[[Any, Any, Any, Any], Any]
    skip_stable: bool


@dataclass
class Stage:
    """One captured call of the fused attention.

    Attributes:
        arguments: everything that stays as captured; the query as a weak reference (the graph's pool owns it).
        handle: the task group that holds the call.
    """

    arguments: dict[str, Any]
    handle: Any

    def update(self, tools: Toolbox, stream: Any, kv_lengths: list[int]) -> None:
        """Give the call new KV lengths (host integers, one per sequence), on the update stream."""
        tools.device.graph_task_update_begin(stream, self.handle)
        try:
            tools.fused.out(**self.arguments, actual_seq_lengths_kv=kv_lengths)
        except BaseException:
            # Left open, it would take in the updates of the host's own graph, which runs the step now.
            with suppress(Exception):
                tools.device.graph_task_update_end(stream)
            raise
        tools.device.graph_task_update_end(stream)


@dataclass
class LayerTasks:
    """A layer's event, which the replay waits at in front of both stages, and the two stages."""

    event: Any
    prefix: Stage
    suffix: Stage


@dataclass
class Results:
    """Partial results of a layer's stages: outputs [T, H, D] of the model's type, LSE float32 [T, H, 1]."""

    prefix_out: Any
    prefix_lse: Any
    suffix_out: Any
    suffix_lse: Any

    @classmethod
    def allocate(cls, query: Any, heads: Heads, rows: int) -> Results:
        """Buffers for `rows` query rows of the type and device of `query`."""
        import torch

        def pair() -> tuple[Any, Any]:
            return (
                torch.empty((rows, heads.query, heads.size), dtype=query.dtype, device=query.device),
                torch.empty((rows, heads.query, 1), dtype=torch.float32, device=query.device),
            )

        return cls(*pair(), *pair())

    def first(self, rows: int) -> Results:
        """The first rows of each."""
        return Results(*(getattr(self, name)[:rows] for name in self.__dataclass_fields__))


@dataclass
class TaskGroupTwin:
    """One attention group of a twin.

    Attributes:
        rows: T. block_size: tokens per block.
        prefix_table: int32 device buffer [1, columns], the shared blocks as one sequence.
        suffix_table: int32 device buffer [T, columns], every row's blocks behind the prefix.
        results: partial results by layer shape. All layers share them (they run one after the other on one stream), and
            all twins of a runner do; per layer and size they would cost gigabytes.
        tasks: what was captured, in the order of the capture.
        workspaces: of the prefix and the suffix stage. They are separate because two calls in flight must not share
            one, and they are kept here because a graph does not keep what it uses.
        holds: (tokens, block ids) that the prefix stages and `prefix_table` hold now; None: unknown.
    """

    tools: Toolbox
    rows: int
    block_size: int
    prefix_table: Any
    suffix_table: Any
    results: dict[Any, Results]
    tasks: list[LayerTasks] = field(default_factory=list)
    workspaces: tuple[Any, Any] | None = None
    holds: tuple[int, bytes] | None = None
    #: The part of `suffix_table` that belongs to the last step's requests.
    _own: Any = None
    _step: StepLengths | None = None
    _stable: bool = False
    _recorded: int = 0

    @classmethod
    def beside(cls, block_table: Any, rows: int, block_size: int, tools: Toolbox, results: dict[Any, Results]) -> Any:
        """A group whose tables are as wide as the host's `block_table` [rows, columns]."""
        columns = block_table.shape[1]
        tables = block_table.new_zeros((1, columns)), block_table.new_zeros((rows, columns))
        return cls(tools, rows, block_size, *tables, results)

    # Capture ----------------------------------------------------------------------------------------------------------

    def warm_up(self, query: Any, heads: Heads) -> None:
        """Allocate the partial results of a layer shape, outside of any graph; the largest twin comes first."""
        key = self._shape(query, heads)
        if key not in self.results:
            self.results[key] = Results.allocate(query, heads, self.rows)

    def record(self, query: Any, key_cache: Any, value_cache: Any, heads: Heads, causal_mask: Any) -> Any:
        """Capture both stages of a layer and the merge: [T, H, D].

        The two calls get lengths of one key a row; each replay sets its own.
        """
        tools, rows = self.tools, self.rows
        if query.shape[0] != rows:
            raise TwinError(f"the layer has {query.shape[0]} query rows in a graph of {rows}")
        results = self.results[self._shape(query, heads)].first(rows)
        prefix = fused_arguments(
            query, key_cache, value_cache, heads,
            block_size=self.block_size, block_table=self.prefix_table, query_ends=[rows], mask=None,
        )  # fmt: skip
        suffix = fused_arguments(
            query, key_cache, value_cache, heads,
            block_size=self.block_size, block_table=self.suffix_table, query_ends=list(range(1, rows + 1)),
            mask=causal_mask,
        )  # fmt: skip
        if self.workspaces is None:
            capacity = self.prefix_table.shape[1] * self.block_size
            self.workspaces = (
                tools.max_workspace(**prefix, actual_seq_lengths_kv=[capacity]),
                tools.max_workspace(**suffix, actual_seq_lengths_kv=[capacity] * rows),
            )
        prefix |= {"workspace": self.workspaces[0], "out": [results.prefix_out, results.prefix_lse]}
        suffix |= {"workspace": self.workspaces[1], "out": [results.suffix_out, results.suffix_lse]}
        stream = tools.device.current_stream()
        event = tools.device.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        stages = self._capture(stream, prefix, [self.block_size]), self._capture(stream, suffix, [1] * rows)
        self.tasks.append(LayerTasks(event, *stages))
        return tools.merge(results.prefix_out, results.suffix_out, results.prefix_lse, results.suffix_lse)

    def _capture(self, stream: Any, arguments: dict[str, Any], kv_lengths: list[int]) -> Stage:
        tools = self.tools
        tools.device.graph_task_group_begin(stream)
        try:
            tools.fused.out(**arguments, actual_seq_lengths_kv=kv_lengths)
        except BaseException:
            # The host's attention is captured in place of a layer that failed, and opens groups of its own.
            with suppress(Exception):
                tools.device.graph_task_group_end(stream)
            raise
        handle = tools.device.graph_task_group_end(stream)
        # The query lives in the graph's pool, which must be free to use its memory again behind this layer.
        return Stage(arguments | {"query": tools.weak(arguments["query"])}, handle)

    @staticmethod
    def _shape(query: Any, heads: Heads) -> tuple[Any, ...]:
        return heads.query, heads.size, query.dtype

    # Replay -----------------------------------------------------------------------------------------------------------

    def fill(self, step: StepLengths) -> None:
        """Copy the step's block ids into the tables, device to device.

        Columns behind a row's suffix are not read; rows of no request read one key of block 0.
        """
        blocks = step.prefix_tokens // self.block_size
        columns = blocks - (-max(step.suffix_lengths) // self.block_size)
        table = step.block_table
        if columns > min(table.shape[1], self.suffix_table.shape[1]):
            raise TwinError(f"{columns} blocks a row do not fit into a block table of {tuple(table.shape)}")
        same = self._holds_prefix_of(step)
        if not same:
            self.holds = None
            self.prefix_table[:, :blocks].copy_(table[:1, :blocks], non_blocking=True)
        shape = step.requests, columns - blocks
        if self._own is None or self._own.shape != shape:
            # As large as in the step before, in most steps: then rows of no request still read block 0.
            self._own = None
            if step.requests < self.rows:
                self.suffix_table[step.requests :, :1].zero_()
            self._own = self.suffix_table[: step.requests, : columns - blocks]
        self._own.copy_(table[: step.requests, blocks:columns], non_blocking=True)
        self._step, self._stable, self._recorded = step, same and self.tools.skip_stable, 0

    def _holds_prefix_of(self, step: StepLengths) -> bool:
        """Whether the tokens and blocks of the step's prefix are those of the last update."""
        return self.holds == (step.prefix_tokens, step.block_ids)

    def update(self, stream: Any) -> None:
        """Give every stage the step's lengths and record every event."""
        step = self._step
        if step is None:
            raise TwinError("no step was filled in")
        self.holds = None
        for layer in self.tasks:
            if not self._stable:
                layer.prefix.update(self.tools, stream, [step.prefix_tokens])
            layer.suffix.update(self.tools, stream, step.suffix_lengths)
            layer.event.record(stream)
            self._recorded += 1
        self.holds = step.prefix_tokens, step.block_ids

    def release(self, stream: Any) -> None:
        """Record the events that `update` did not come to."""
        for layer in self.tasks[self._recorded :]:
            layer.event.record(stream)
            self._recorded += 1

    def kept(self) -> bool:
        return self._stable
