"""What a capture is, and what a replay of it computes."""

from __future__ import annotations

import pytest
import torch
import torch_npu
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_npu.emulator import counters
from torch_npu.npu.launches import launch

from tests.emulator.inside.graph_helpers import Attention, captured


def test_a_capture_runs_nothing():
    x, target = torch.ones(4).npu(), torch.zeros(4).npu()

    def body():
        target.add_(x)
        return x + 1

    _, result = captured(body)
    assert target.tolist() == [0.0] * 4
    assert result.isnan().all()


def test_a_replay_computes_from_what_is_there_then():
    x = torch.ones(4).npu()
    graph, result = captured(lambda: (x * 2).sum(0, keepdim=True).expand(3).contiguous())
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert result.tolist() == [8 * value] * 3


def test_in_place_and_out_and_views():
    x, target = torch.arange(6.0).npu(), torch.zeros(2, 3).npu()

    def body():
        rows = x.view(2, 3)
        rows[1].mul_(10)
        torch.add(rows, 1, out=target)
        target[0].copy_(rows[1])

    graph, _ = captured(body)
    graph.replay()
    assert x.tolist() == [0, 1, 2, 30, 40, 50]
    assert target.tolist() == [[30, 40, 50], [31, 41, 51]]


def test_numbers_are_those_of_the_capture():
    x, number = torch.ones(2).npu(), torch.tensor(3.0)
    graph, result = captured(lambda: x * number)
    number.fill_(100)
    graph.replay()
    assert result.tolist() == [3.0, 3.0]


OPERATIONS = {
    "add": lambda a, b: a + b,
    "matmul": lambda a, b: a @ b,
    "softmax": lambda a, b: torch.softmax(a, -1),
    "norm": lambda a, b: torch_npu.npu_rms_norm(a, b[0].contiguous())[0],
    "add_norm": lambda a, b: torch_npu.npu_add_rms_norm(a, b, b[0].contiguous())[2],
    "swiglu": lambda a, b: torch.cat([torch_npu.npu_swiglu(a), torch_npu.npu_swiglu(b)], -1),
    "transpose": lambda a, b: a.t(),
    "in_place": lambda a, b: a.clone().mul_(b),
    "gather": lambda a, b: a[b.argmax(-1)],
    "sort": lambda a, b: torch.sort(a, -1).values,
    "where": lambda a, b: torch.where(a > b, a, b),
    "fill": lambda a, b: torch.full_like(a, 2.0) - b,
    "scatter": lambda a, b: torch.zeros_like(a).index_put_((b.argmax(-1),), a),
}


@given(
    program=st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.integers(0, 9)), max_size=12),
    kept=st.integers(0, 9),
    seed=st.integers(0, 9),
)
@settings(max_examples=60)
def test_any_program_replays_as_it_runs(program, kept, seed):
    """Temporaries are dropped on the way, so that their memory is reused: nothing that is read later may be."""
    torch.manual_seed(seed)
    inputs = [torch.randn(4, 4).npu() for _ in range(2)]

    def run():
        values = list(inputs)
        for name, first, second in program:
            made = OPERATIONS[name](values[first % len(values)], values[second % len(values)])
            values = [*values[-3:], made] if kept % 2 else [*values, made]
        return values[-1] + 0

    graph, result = captured(run)
    for _ in range(2):
        for tensor in inputs:
            tensor.copy_(torch.randn(4, 4).npu())
        expected = run().cpu()
        graph.replay()
        assert torch.equal(result.cpu(), expected)


def test_the_property_test_would_notice_memory_reused_too_early(monkeypatch):
    """Its mutant: a result whose memory the graph itself gives to the next temporary."""
    x = torch.ones(64).npu()

    def body():
        kept = x + 1
        weak = torch_npu._C._weak_ref_tensor(kept)
        del kept
        again = x * 5  # the same size
        return weak + 0, again

    graph, (result, _) = captured(body)
    graph.replay()
    assert result.tolist() == [5.0] * 64 or result.isnan().all()


HOST_READS = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0] > 0),
    "cpu": lambda x: x.cpu(),
    "cpu, not blocking": lambda x: x.to("cpu", non_blocking=True),
    "nonzero": lambda x: x.nonzero(),
    "boolean index": lambda x: x[x > 0],
    "a new tensor from the host": lambda x: torch.tensor([1.0], device="npu"),
    "indices on the host": lambda x: x.index_put_((torch.tensor([1]),), x.new_ones(1)),
    "synchronize": lambda x: torch.npu.synchronize(),
    "stream": lambda x: torch.npu.current_stream().synchronize(),
    "event": lambda x: torch.npu.Event().synchronize(),
    "query": lambda x: torch.npu.Event().query(),
}


@pytest.mark.parametrize("name", HOST_READS)
def test_the_host_cannot_wait_or_read_in_a_capture(name):
    x = torch.ones(4).npu()
    HOST_READS[name](x)  # outside it can
    with pytest.raises(RuntimeError, match="while a graph is captured: the host cannot wait"):
        captured(lambda: HOST_READS[name](x))
    # The failed capture is gone.
    assert not torch.npu.is_current_stream_capturing()
    assert (x + 1).tolist() == [2.0] * 4


def test_a_copy_from_the_host_is_made_at_each_replay():
    host, x = torch.zeros(2), torch.zeros(2).npu()
    graph, _ = captured(lambda: x.copy_(host, non_blocking=True))
    host.fill_(7)
    graph.replay()
    assert x.tolist() == [7.0, 7.0]


def test_a_failed_capture_cannot_be_replayed():
    graph = torch.npu.NPUGraph()
    with pytest.raises(ZeroDivisionError), torch.npu.graph(graph):
        torch.ones(1, device="npu") + 1 / 0
    with pytest.raises(RuntimeError, match="nothing was captured"):
        graph.replay()
    with pytest.raises(RuntimeError, match="nothing was captured"):
        graph.pool()


def test_captures_do_not_nest_and_are_not_repeated():
    x = torch.ones(1).npu()
    with pytest.raises(RuntimeError, match="while another one is under way"):
        captured(lambda: torch.npu.NPUGraph().capture_begin())
    graph, _ = captured(lambda: x + 1)
    with pytest.raises(RuntimeError, match=r"captured before; reset\(\) it"), torch.npu.graph(graph):
        pass
    graph.reset()
    with torch.npu.graph(graph):
        x.add_(1)
    graph.replay()
    assert x.tolist() == [2.0]


def test_whether_a_stream_captures():
    assert torch.npu.is_current_stream_capturing() is False
    captured(lambda: None if torch.npu.is_current_stream_capturing() else pytest.fail("it does"))
    assert torch.npu.is_current_stream_capturing() is False


def test_an_operator_without_a_shape_function_is_named():
    library = torch.library.Library("graph_tests", "FRAGMENT")
    library.define("shapeless(Tensor x) -> Tensor")
    library.impl("shapeless", torch.clone, "CPU")
    x = torch.ones(2).npu()
    assert torch.ops.graph_tests.shapeless(x).tolist() == [1.0, 1.0]
    with pytest.raises(NotImplementedError, match=r"graph_tests::shapeless.*(no shape function|no fake impl)"):
        captured(lambda: torch.ops.graph_tests.shapeless(x))


def test_arguments_are_checked_when_they_are_captured():
    attention = Attention()
    with pytest.raises(RuntimeError, match="sequence 0 has 5000 keys"):
        attention.capture([5000, 1])


def test_captures_count_as_nothing_and_replays_as_calls():
    attention = Attention()
    with counters.window() as in_capture:
        attention.capture()
    assert in_capture["launches"] == {}
    assert in_capture["kv_bytes"] == {"token": 0, "page": 0}
    assert in_capture["graphs"] == {"captures": 1, "replays": 0, "task_updates": 0}
    with counters.window() as eager:
        attention.expected([300, 5]) * 2
    with counters.window() as replayed:
        attention.step([300, 5])
    assert replayed["graphs"] == {"captures": 0, "replays": 1, "task_updates": 1}
    assert replayed["launches"] == eager["launches"]
    assert replayed["kv_bytes"] == eager["kv_bytes"]  # of the lengths it was updated to
    assert replayed["copies"]["device_to_host"] == 1  # that of the test


def test_a_launch_that_is_no_operator_is_captured_by_address():
    x = torch.ones(3).npu()
    calls = []

    def kernel(tensor, factor):
        calls.append(factor)
        tensor.mul_(factor)

    graph, _ = captured(lambda: launch("triton::scale", kernel, (x,), {"factor": 3}))
    assert calls == []
    with counters.window() as counted:
        graph.replay()
        graph.replay()
    assert x.tolist() == [9.0] * 3
    assert counted["launches"]["triton::scale"] == 2


class UpdatableGraph(torch.npu.NPUGraph):
    """As the host derives from NPUGraph from 0.29 on."""

    def __init__(self):
        super().__init__()
        self.log = []

    def capture_begin(self, pool=None, capture_error_mode="global"):
        super().capture_begin(pool=pool, capture_error_mode=capture_error_mode)
        self.log.append("begin")

    def capture_end(self):
        super().capture_end()
        self.log.append("end")


def test_the_host_can_derive_from_it():
    x, pool = torch.ones(1).npu(), torch.npu.graph_pool_handle()
    graph = UpdatableGraph()
    with torch.npu.graph(graph, pool=pool):
        x.add_(1)
    assert graph.log == ["begin", "end"]
    assert graph.pool() == pool
    graph.replay()
    assert x.tolist() == [2.0]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: torch.npu.NPUGraph(keep_graph=True), "keep_graph"),
        (lambda: torch.npu.NPUGraph().update(), "NPUGraph.update"),
        (lambda: torch.npu.NPUGraph().debug_dump("x"), "debug_dump"),
        (lambda: torch.npu.graph(torch.npu.NPUGraph(), auto_dispatch_capture=True), "auto_dispatch_capture"),
    ],
)
def test_what_is_not_modelled_says_so(call, named):
    with pytest.raises(NotImplementedError, match=f"{named}.* is not modelled by the emulated NPU"):
        call()


def test_the_graph_compiler_runs_graphs_as_they_are():
    import torchair

    config = torchair.CompilerConfig()
    with pytest.raises(NotImplementedError, match="run_eagerly=False"):
        torchair.get_npu_backend(compiler_config=config)
    config.mode, config.debug.run_eagerly = "reduce-overhead", True
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    assert torchair.get_npu_backend(compiler_config=config)(graph, [])(torch.ones(1))[0].item() == 2
