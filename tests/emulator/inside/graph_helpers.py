"""What the tests of captured graphs share: a captured call, and a fused attention call that takes new lengths."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_npu
from torch_npu import _backend
from torch_npu.emulator import settings

# Each capture collects garbage first, as torch_npu's does; what is loaded by now need not be looked at again and again.
gc.freeze()

HEADS, KV_HEADS, SIZE, PAGE = 4, 2, 64, 128
CAUSAL = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1).npu()


def captured(function: Callable[[], Any], **options: Any) -> tuple[torch.npu.NPUGraph, Any]:
    """The graph of ``function()``, and what it returned in the capture."""
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, **options):
        result = function()
    return graph, result


class Attention:
    """Decode attention of a batch over a paged cache, captured as the host captures it: one task, one event."""

    def __init__(self, batch: int = 2, columns: int = 4, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.query = torch.randn(batch, HEADS, SIZE, generator=generator).npu()
        self.cache = torch.randn(batch * columns, PAGE, KV_HEADS * SIZE, generator=generator).npu()
        self.table = torch.arange(batch * columns, dtype=torch.int32).view(batch, columns).npu()
        self.lse = torch.empty(1).npu()
        self.update_stream = torch.npu.Stream()
        self.batch = batch

    def call(self, lengths: list[int], out: torch.Tensor, **changes: Any) -> None:
        arguments = {
            "query": self.query,
            "key": self.cache,
            "value": self.cache,
            "atten_mask": CAUSAL,
            "block_table": self.table,
            "input_layout": "TND",
            "block_size": PAGE,
            "actual_seq_lengths": list(range(1, self.batch + 1)),
            "actual_seq_lengths_kv": lengths,
            "num_key_value_heads": KV_HEADS,
            "num_heads": HEADS,
            "scale": SIZE**-0.5,
            "sparse_mode": 3,
            "out": [out, self.lse],
        }
        torch_npu.npu_fused_infer_attention_score.out(**(arguments | changes))

    def expected(self, lengths: list[int]) -> torch.Tensor:
        out = torch.empty_like(self.query)
        self.call(lengths, out)
        return out

    def capture(self, lengths: list[int] | None = None) -> None:
        """Captures ``result = attention * 2`` with an event before the task."""
        self.event = torch.npu.ExternalEvent()
        self.graph = torch.npu.NPUGraph()
        with torch.npu.graph(self.graph):
            stream = torch.npu.current_stream()
            self.event.wait(stream)
            self.event.reset(stream)
            self.out = torch.empty_like(self.query)
            torch.npu.graph_task_group_begin(stream)
            self.call(lengths or [1] * self.batch, self.out)
            self.handle = torch.npu.graph_task_group_end(stream)
            self.result = self.out * 2

    def update(self, lengths: list[int], *, into: torch.Tensor | None = None, **changes: Any) -> None:
        with torch.npu.stream(self.update_stream):
            torch.npu.graph_task_update_begin(self.update_stream, self.handle)
            try:
                self.call(lengths, self.out if into is None else into, **changes)
            except BaseException:
                with contextlib.suppress(RuntimeError):  # of an update that is not complete
                    torch.npu.graph_task_update_end(self.update_stream)
                raise
            torch.npu.graph_task_update_end(self.update_stream)

    def step(self, lengths: list[int]) -> torch.Tensor:
        """One replay as the host does it: launch, update, record; the result on the host."""
        torch.npu.current_stream().synchronize()
        self.graph.replay()
        self.update(lengths)
        self.event.record(self.update_stream)
        return self.result.cpu()

    def step_in_one_go(self, lengths: list[int]) -> torch.Tensor:
        """A step on a device that does not wait at the event: the update meets the replay when it is done."""
        self.graph.replay()
        torch.npu.synchronize()
        self.update(lengths)
        return self.result.cpu()


@contextlib.contextmanager
def planted(fault: str) -> Iterator[None]:
    """The backend with a fault, to show that a check notices it."""
    _backend.set_graph_faults({fault})
    try:
        yield
    finally:
        _backend.set_graph_faults(settings.ACTIVE_FAULTS)
