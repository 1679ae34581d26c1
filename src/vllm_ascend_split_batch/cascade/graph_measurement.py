"""The same cells in captured graphs: the host's own decode call as it captures it, and the twin that cascade captures.

A step is what a served step is: the replay is launched, then the captured calls get the step's lengths by task updates
while the graph waits for them. The prefix of a cell does not change, so its stages are left alone after the first time,
as in a served batch whose prefix stays. One pair of graphs is captured for each batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .graph_twin.by_device import DeviceGroupTwin
from .graph_twin.by_tasks import Stage, TaskGroupTwin, Toolbox
from .graph_twin.twin import StepLengths
from .measurement import BLOCK, Arms, Batch, Bench
from .tiers import FusedTier, OwnTier

Replay = Callable[[], None]


@dataclass(frozen=True)
class GraphTools:
    """What the graphs need beyond `Machine`.

    Attributes:
        toolbox: see `by_tasks.Toolbox`. update_stream: where captured calls get new lengths.
        capture: runs a function that enqueues work, captures it, and returns what replays it.
    """

    toolbox: Toolbox
    update_stream: Any
    capture: Callable[[Callable[[], Any]], Replay]


def npu_graph_tools(tier: FusedTier | OwnTier) -> GraphTools:
    """The tools of this process's NPU."""
    import torch
    import torch_npu

    def capture(body: Callable[[], Any]) -> Replay:
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            body()
        replay: Replay = graph.replay
        return replay

    toolbox = Toolbox(
        device=torch.npu,
        fused=torch_npu.npu_fused_infer_attention_score,
        max_workspace=torch_npu._npu_fused_infer_attention_score_get_max_workspace,
        weak=torch_npu._C._weak_ref_tensor,
        # Kernels with lengths on the device merge by themselves and never ask.
        merge=tier.merge if isinstance(tier, FusedTier) else _no_merge,
        skip_stable=True,
    )
    return GraphTools(toolbox, torch.npu.Stream(), capture)


def _no_merge(*_: Any) -> Any:
    raise AssertionError("these kernels merge by themselves")


@dataclass
class StockGraph:
    """The host's own decode calls in one graph, an event and a task group per layer."""

    tools: Toolbox
    table: Any
    stages: list[tuple[Any, Stage]] = field(default_factory=list)
    workspace: Any = None

    def record(self, arguments: dict[str, Any], out: Any, lse: Any) -> None:
        """Capture one layer. `arguments`: of the fused attention, all but KV lengths."""
        rows, columns = self.table.shape
        if self.workspace is None:
            capacity = [columns * int(arguments["block_size"])] * rows
            self.workspace = self.tools.max_workspace(**arguments, actual_seq_lengths_kv=capacity)
        device = self.tools.device
        stream = device.current_stream()
        event = device.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        arguments = arguments | {"workspace": self.workspace, "out": [out, lse]}
        device.graph_task_group_begin(stream)
        self.tools.fused.out(**arguments, actual_seq_lengths_kv=[1] * rows)
        self.stages.append((event, Stage(arguments, device.graph_task_group_end(stream))))

    def update(self, stream: Any, kv_lengths: list[int]) -> None:
        """Give every layer these lengths."""
        for event, stage in self.stages:
            stage.update(self.tools, stream, kv_lengths)
            event.record(stream)


@dataclass
class Captured:
    """Both graphs of a batch size: their inputs, how they are replayed, the results of their last layer."""

    query: Any
    stock: StockGraph
    stock_replay: Replay
    stock_out: Any
    twin: TaskGroupTwin | DeviceGroupTwin
    twin_replay: Replay
    twin_out: Any


class GraphBench(Bench):
    """`Bench` with both arms in captured graphs."""

    def __init__(self, graph_tools: GraphTools, *args: Any, most_columns: int, **kwargs: Any) -> None:
        """Allocate; capture with the first cell of each batch size.

        Args:
            most_columns: blocks of the longest request. The others: see `Bench`.
        """
        super().__init__(*args, **kwargs)
        self._tools = graph_tools
        self._columns = most_columns
        self._captured: dict[int, Captured] = {}

    def _arms(self, batch: Batch) -> Arms:
        if batch.requests not in self._captured:
            self._captured[batch.requests] = self._capture(batch)
        graphs = self._captured[batch.requests]
        graphs.query.copy_(batch.query)
        columns = batch.table.shape[1]
        graphs.stock.table[:, :columns].copy_(batch.table)
        step = StepLengths(
            batch.prefix_tokens,
            self._blocks[: batch.prefix_tokens // BLOCK].numpy().tobytes(),
            [batch.suffix_tokens] * batch.requests,
            batch.table,
            batch.lengths,
            batch.requests,
        )
        lengths = [batch.prefix_tokens + batch.suffix_tokens] * batch.requests
        device, stream = self._tools.toolbox.device, self._tools.update_stream

        def stock() -> Any:
            graphs.stock_replay()
            with device.stream(stream):
                graphs.stock.update(stream, lengths)
            return graphs.stock_out

        def cascade() -> Any:
            graphs.twin_replay()
            with device.stream(stream):
                graphs.twin.update(stream)
            return graphs.twin_out

        def plan() -> None:
            graphs.twin.fill(step)

        # The first replay sets the prefix, the next fill finds it set.
        plan()
        self._machine.npu.synchronize()
        cascade()
        self._machine.npu.synchronize()
        plan()
        return Arms(stock, cascade, plan)

    def _capture(self, batch: Batch) -> Captured:
        torch, tools, rows = self._torch, self._tools, batch.requests
        query = batch.query.clone()
        table = batch.table.new_zeros((rows, self._columns))
        stock = StockGraph(tools.toolbox, table.clone())
        outs = [torch.empty_like(query) for _ in self._caches]
        lse = torch.empty((1,), dtype=torch.float32, device=query.device)

        def record_stock() -> None:
            for (key, value), out in zip(self._caches, outs, strict=True):
                stock.record(self._stock_arguments(query, key, value, stock.table), out, lse)

        twin: TaskGroupTwin | DeviceGroupTwin
        if isinstance(self._tier, OwnTier):
            twin = DeviceGroupTwin.beside(table, rows, BLOCK, self._tier)
        else:
            twin = TaskGroupTwin.beside(table, rows, BLOCK, tools.toolbox, {})
        twin.warm_up(query, self._heads)
        results: list[Any] = []

        def record_twin() -> None:
            results[:] = [twin.record(query, key, value, self._heads, self._mask) for key, value in self._caches]

        # Kernels that are compiled when first called must not be so within a capture.
        super()._arms(batch).cascade()
        self._machine.npu.synchronize()
        stock_replay = tools.capture(record_stock)
        twin_replay = tools.capture(record_twin)
        return Captured(query, stock, stock_replay, outs[-1], twin, twin_replay, results[-1])
