"""What a calibration times, on a stand-in of the device: both arms compute the same, over shared blocks."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.cascade import graph_measurement, measurement
from vllm_ascend_split_batch.cascade.cost_model import AttentionShape
from vllm_ascend_split_batch.cascade.graph_measurement import GraphTools
from vllm_ascend_split_batch.cascade.graph_twin.by_tasks import Toolbox
from vllm_ascend_split_batch.cascade.measurement import Machine
from vllm_ascend_split_batch.cascade.tiers import FusedTier

from . import attention_stand_in

SHAPE = AttentionShape(query_heads=4, kv_heads=2, head_size=16, element_bytes=4)
SIZES: dict[str, Any] = {"most_blocks": 14, "layers": 2, "dtype": "float32"}


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors are tiny: threads that wait for each other take most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Event:
    def __init__(self) -> None:
        self.recorded = False

    def record(self, stream: Any) -> None:
        self.recorded = True

    def wait(self, stream: Any) -> None:
        NPU.running.program.append(("wait", self))

    def reset(self, stream: Any) -> None:
        NPU.running.program.append(("reset", self))


class NPU:
    """`torch.npu` with a queue: replays run when the host synchronises, and never end at an event nobody records."""

    running: NPU
    ExternalEvent = Event

    def __init__(self) -> None:
        NPU.running = self
        self.program: list[Any] = []
        self.queue: list[Any] = []
        self.calls: list[dict[str, Any]] = []
        self.task: dict[str, Any] | None = None

    def current_stream(self) -> Any:
        return None

    def stream(self, stream: Any) -> Any:
        return nullcontext()

    def graph_task_group_begin(self, stream: Any) -> None:
        self.task = None

    def graph_task_group_end(self, stream: Any) -> Any:
        return self.program[-1][1]

    def graph_task_update_begin(self, stream: Any, handle: Any) -> None:
        self.task = handle

    def graph_task_update_end(self, stream: Any) -> None:
        self.task = None

    def fused_out(self, **arguments: Any) -> None:
        if self.task is not None:
            self.task.update(arguments)
        else:
            self.program.append(("call", dict(arguments)))

    def merge(self, *parts: Any) -> Any:
        out = torch.zeros_like(parts[0])
        self.program.append(("merge", (parts, out)))
        return out

    def capture(self, body: Any) -> Any:
        self.program = []
        body()
        program = self.program
        return lambda: self.queue.append(program)

    def synchronize(self) -> None:
        for program in self.queue:
            for kind, what in program:
                if kind == "wait":
                    assert what.recorded, "the device waits for ever"
                elif kind == "reset":
                    what.recorded = False
                elif kind == "merge":
                    what[1].copy_(attention_stand_in.merge(*what[0]))
                else:
                    self.calls.append(what)
                    keep = {name: value for name, value in what.items() if name not in ("workspace", "out")}
                    out, lse = attention_stand_in.fused(**keep)
                    what["out"][0].copy_(out)
                    if what["softmax_lse_flag"]:
                        what["out"][1].copy_(lse)
        self.queue = []


def fused_noted(npu: NPU, attention: Any = attention_stand_in.fused) -> Any:
    def fused(**arguments: Any) -> Any:
        npu.calls.append(arguments)
        return attention(**arguments)

    return SimpleNamespace(npu_fused_infer_attention_score=fused)


def eager(module: Any = measurement, merge: Any = attention_stand_in.merge) -> tuple[Any, NPU]:
    npu = NPU()
    ops = fused_noted(npu)
    tier = FusedTier("host", ops, merge, "a stand-in", limits_apply=False)
    return module.Bench(Machine(torch.device("cpu"), npu, ops), tier, SHAPE, **SIZES), npu


def graph(module: Any = graph_measurement) -> tuple[Any, NPU]:
    npu = NPU()
    ops = fused_noted(npu)
    tier = FusedTier("host", ops, attention_stand_in.merge, "a stand-in", limits_apply=False)
    toolbox = Toolbox(npu, SimpleNamespace(out=npu.fused_out), lambda **_: None, lambda tensor: tensor, npu.merge, True)
    tools = GraphTools(toolbox, None, npu.capture)
    machine = Machine(torch.device("cpu"), npu, ops)
    return module.GraphBench(tools, machine, tier, SHAPE, most_columns=6, **SIZES), npu


@pytest.mark.parametrize("make", [eager, graph])
def test_a_cell_is_timed_and_both_arms_agree(make):
    bench, _ = make()
    for requests, prefix, suffix in ((2, 256, 100), (3, 128, 200), (2, 512, 129)):
        timing = bench.measure(requests, prefix, suffix, seconds=0.0)
        assert (timing.cell.requests, timing.cell.prefix_tokens) == (requests, prefix)
        assert timing.cell.suffix_tokens == requests * suffix
        assert min(timing.cell.stock_us, timing.cell.cascade_us, timing.stock_again_us, timing.plan_us) > 0
        assert timing.rounds == 5
        assert timing.noise >= 0


@pytest.mark.parametrize("make", [eager, graph])
def test_the_prefix_is_shared_and_read_once_by_cascade_alone(make):
    bench, npu = make()
    bench.measure(3, 256, 100, seconds=0.0)
    stock = [call for call in npu.calls if call["actual_seq_lengths_kv"] == [356] * 3]
    prefix = [call for call in npu.calls if call["actual_seq_lengths_kv"] == [256]]
    suffix = [call for call in npu.calls if call["actual_seq_lengths_kv"] == [100] * 3]
    # 12 steps of stock and 6 of cascade are timed, of 2 layers each; each arm is compared once before.
    assert len(stock) >= 2 * 13
    assert len(prefix) == len(suffix) >= 2 * 7
    table = stock[0]["block_table"]
    assert (table[:, :2] == table[0, :2]).all()
    assert len(set(table[:, 2].tolist())) == 3
    assert not any(call["softmax_lse_flag"] for call in stock)
    assert all(call["sparse_mode"] == 3 for call in stock)


def test_each_layer_has_a_cache_of_its_own():
    bench, npu = eager()
    bench.measure(2, 128, 100, seconds=0.0)
    assert len({call["key"].data_ptr() for call in npu.calls}) == 2


def test_arms_that_differ_are_not_timed():
    def wrong(first: Any, second: Any, *lses: Any) -> Any:
        return (first + second) / 2

    bench, _ = eager(merge=wrong)
    with pytest.raises(ArithmeticError, match="two stages differ from the host's attention by"):
        bench.measure(2, 256, 100, seconds=0.0)
    bench, _ = eager(merge=lambda first, *_: first * float("nan"))
    with pytest.raises(ArithmeticError, match="by nan"):
        bench.measure(2, 256, 100, seconds=0.0)


@pytest.mark.parametrize(
    ("module", "make", "old", "new", "failure"),
    [
        (measurement, eager, "[batch.prefix_tokens + batch.suffix_tokens] *", "[batch.suffix_tokens] *", Exception),
        (graph_measurement, graph, "        graphs.stock.table[:, :columns].copy_(batch.table)\n", "", ArithmeticError),
        (
            graph_measurement,
            graph,
            "                graphs.twin.update(stream)\n",
            "                pass\n",
            AssertionError,
        ),
        (graph_measurement, graph, "            event.record(stream)\n", "", AssertionError),
    ],
)
def test_a_changed_measurement_is_noticed(mutant, module, make, old, new, failure):  # noqa: F811
    bench, _ = make(mutant(module, old, new))

    def two_cells() -> None:
        bench.measure(2, 256, 100, seconds=0.0)
        bench.measure(2, 128, 300, seconds=0.0)

    with pytest.raises(failure):
        two_cells()
