"""The two ways in which hosts capture, update and replay attention, on several layers that share a pool.

Releases up to 0.28 keep handles, events and weak references in lists per graph size (task groups); later ones derive a
graph that registers its tasks itself (updatable graph). Both launch the replay first and update while it waits.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch_npu

from tests.emulator.inside.graph_helpers import HEADS, SIZE, Attention, planted

LAYERS = 3
weak = torch_npu._C._weak_ref_tensor


class Model:
    """Layers of attention over caches of their own, a projection between them; the input lies in one fixed buffer."""

    def __init__(self, batch: int) -> None:
        self.layers = [Attention(batch=batch, seed=layer) for layer in range(LAYERS)]
        generator = torch.Generator().manual_seed(9)
        self.weights = [
            (torch.randn(HEADS * SIZE, HEADS * SIZE, generator=generator) * 0.1).npu() for _ in range(LAYERS)
        ]
        self.buffer = torch.zeros(batch, HEADS * SIZE).npu()
        self.batch = batch

    def forward(self, attend: Any) -> torch.Tensor:
        hidden = self.buffer
        for layer, weight in zip(self.layers, self.weights, strict=True):
            query = (hidden @ weight).view(self.batch, HEADS, SIZE)
            out = torch.empty_like(query)
            attend(layer, query, out)
            hidden = hidden + out.view(self.batch, -1)
        return hidden

    def eager(self, lengths: list[int]) -> torch.Tensor:
        return self.forward(lambda layer, query, out: layer.call(lengths, out, query=query)).cpu()


class TaskGroups:
    """Lists per graph size, beside the graph."""

    def __init__(self, model: Model, pool: Any) -> None:
        self.model, self.tasks = model, []
        self.update_stream = torch.npu.Stream()
        self.graph = torch.npu.NPUGraph()

        def attend(layer: Attention, query: torch.Tensor, out: torch.Tensor) -> None:
            stream = torch.npu.current_stream()
            event = torch.npu.ExternalEvent()
            event.wait(stream)
            event.reset(stream)
            torch.npu.graph_task_group_begin(stream)
            layer.call([1] * model.batch, out, query=query)
            handle = torch.npu.graph_task_group_end(stream)
            self.tasks.append((layer, weak(query), weak(out), handle, event))

        with torch.npu.graph(self.graph, pool=pool):
            self.output = weak(model.forward(attend))

    def step(self, lengths: list[int]) -> torch.Tensor:
        torch.npu.current_stream().synchronize()
        self.graph.replay()
        with torch.npu.stream(self.update_stream):
            for layer, query, out, handle, event in self.tasks:
                torch.npu.graph_task_update_begin(self.update_stream, handle)
                layer.call(lengths, out, query=query)
                torch.npu.graph_task_update_end(self.update_stream)
                event.record(self.update_stream)
        return self.output


class Updatable(torch.npu.NPUGraph):
    """A graph that registers its tasks: operation, arguments, and where the step's arguments come from."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[tuple[Any, dict[str, Any], Any, Any]] = []
        self.capturing = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        super().capture_begin(pool=pool, capture_error_mode=capture_error_mode)
        self.capturing = True

    def capture_end(self) -> None:
        super().capture_end()
        self.capturing = False

    def register(self, operation: Any, arguments: dict[str, Any]) -> None:
        assert self.capturing
        stream = torch.npu.current_stream()
        event = torch.npu.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        operation(**arguments)
        handle = torch.npu.graph_task_group_end(stream)
        kept = {key: weak(value) if isinstance(value, torch.Tensor) else value for key, value in arguments.items()}
        self.tasks.append((operation, kept, handle, event))

    def apply(self, stream: torch.npu.Stream, changes: dict[str, Any]) -> None:
        with torch.npu.stream(stream):
            for operation, arguments, handle, event in self.tasks:
                torch.npu.graph_task_update_begin(stream, handle)
                operation(**(arguments | changes))
                torch.npu.graph_task_update_end(stream)
                event.record(stream)


class UpdatableGraphs:
    def __init__(self, model: Model, pool: Any) -> None:
        self.graph, self.update_stream = Updatable(), torch.npu.Stream()

        def attend(layer: Attention, query: torch.Tensor, out: torch.Tensor) -> None:
            self.graph.register(layer.call, {"lengths": [1] * model.batch, "query": query, "out": out})

        with torch.npu.graph(self.graph, pool=pool):
            self.output = weak(model.forward(attend))

    def step(self, lengths: list[int]) -> torch.Tensor:
        torch.npu.current_stream().synchronize()
        self.graph.replay()
        self.graph.apply(self.update_stream, {"lengths": lengths})
        return self.output


protocols = pytest.mark.parametrize("protocol", [TaskGroups, UpdatableGraphs])


def run(protocol: Any, steps: int = 6) -> list[bool]:
    """Graphs of two sizes in one pool, used in turn with new inputs and lengths: whether each step equals eager."""
    pool = torch.npu.graph_pool_handle()
    models = [Model(4), Model(2)]
    captured = [protocol(model, pool) for model in models]
    gc.collect()
    generator = torch.Generator().manual_seed(1)
    equal = []
    for step in range(steps):
        model, graph = models[step // 2 % 2], captured[step // 2 % 2]
        model.buffer.copy_(torch.randn(model.batch, HEADS * SIZE, generator=generator))
        lengths = torch.randint(1, 512, (model.batch,), generator=generator).tolist()
        expected = model.eager(lengths)
        equal.append(torch.equal(graph.step(lengths).cpu(), expected))
    return equal


@protocols
def test_every_step_equals_eager(protocol):
    assert all(run(protocol))


@protocols
@pytest.mark.parametrize("fault", ["ignore_task_update", "skip_replay"])
def test_a_host_on_a_faulty_device_does_not(protocol, fault):
    with planted(fault):
        assert not any(run(protocol))


@protocols
def test_an_event_that_is_forgotten_is_noticed(protocol):
    model = Model(2)
    graph = protocol(model, torch.npu.graph_pool_handle())
    forgotten = graph.graph.tasks if protocol is UpdatableGraphs else graph.tasks
    last = forgotten.pop()
    graph.step([5, 5])
    with pytest.raises(RuntimeError, match=rf"waits at external event {LAYERS} of {LAYERS}"):
        graph.output.cpu()
    last[-1].record(graph.update_stream)
    graph.output.cpu()
