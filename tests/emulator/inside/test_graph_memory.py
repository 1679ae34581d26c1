"""Memory that a graph refers to and does not own: given up, reused, overwritten. Stale reads give poison, not luck."""

from __future__ import annotations

import gc

import pytest
import torch
import torch_npu

from tests.emulator.inside.graph_helpers import captured, planted

weak = torch_npu._C._weak_ref_tensor


def stale_input():
    """A graph whose input is gone: what its replay reads."""
    x = torch.ones(8).npu()
    graph, result = captured(lambda x=x: x + 1)
    graph.replay()
    assert result.tolist() == [2.0] * 8
    del x
    graph.replay()
    return result


def stale_temporary():
    """A weak reference to a temporary, read inside the graph after the next one took its memory."""
    x = torch.ones(8).npu()

    def body():
        temporary = x + 1
        reference = weak(temporary)
        del temporary
        x.new_empty(100)  # any allocation could have got that memory
        return reference + 0

    graph, result = captured(body)
    graph.replay()
    return result


def stale_output():
    """The result of one graph, given up, after another graph of the pool ran."""
    pool, x = torch.npu.graph_pool_handle(), torch.ones(8).npu()
    first, result = captured(lambda: x + 1, pool=pool)
    result = weak(result)
    gc.collect()
    second, _ = captured(lambda: x.new_empty(1000).fill_(0), pool=pool)
    first.replay()
    assert result.tolist() == [2.0] * 8
    second.replay()
    return result


def stale_weak_reference():
    """A weak reference to memory outside of graphs whose owner is gone."""
    x = torch.ones(8).npu()
    reference = weak(x)
    assert reference.tolist() == [1.0] * 8
    del x
    return reference


STALE = (stale_input, stale_temporary, stale_output, stale_weak_reference)


@pytest.mark.parametrize("read", STALE)
def test_a_stale_read_gives_nan(read):
    assert read().isnan().all()


@pytest.mark.parametrize("read", STALE)
def test_without_poison_a_stale_read_would_look_right(read):
    with planted("no_poison"):
        result = read()
    assert not result.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_poison_is_nan_in_every_floating_dtype(dtype):
    x = torch.ones(5, dtype=dtype).npu()
    reference = weak(x)
    del x
    assert reference.isnan().all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_poison_is_no_index_of_anything(dtype):
    x = torch.ones(5, dtype=dtype).npu()
    reference = weak(x)
    del x
    assert (reference > 1 << 30).all()


def test_a_stale_block_table_stops_the_replay():
    from tests.emulator.inside.graph_helpers import Attention

    attention = Attention()
    graph, _ = captured(lambda: attention.call([5, 5], torch.empty_like(attention.query)))
    graph.replay()
    del attention.table
    with pytest.raises(RuntimeError, match="2147450879"):
        graph.replay()


def test_what_is_still_owned_is_never_overwritten():
    pool, x = torch.npu.graph_pool_handle(), torch.ones(8).npu()
    first, kept = captured(lambda: x + 1, pool=pool)
    second, _ = captured(lambda: x * 5 - 1, pool=pool)
    first.replay()
    second.replay()
    assert kept.tolist() == [2.0] * 8


def test_graphs_of_a_pool_run_in_the_order_of_their_capture():
    """The earlier graph may have used the memory that the later one's results lie in, also while they are owned."""
    pool, x = torch.npu.graph_pool_handle(), torch.ones(8).npu()
    first, _ = captured(lambda: (x + 1) * 2, pool=pool)
    second, later = captured(lambda: x + 3, pool=pool)
    second.replay()
    assert later.tolist() == [4.0] * 8
    first.replay()
    assert later.isnan().all()


def test_graphs_of_different_pools_leave_each_other_alone():
    x = torch.ones(8).npu()
    first, _ = captured(lambda: (x + 1) * 2)
    second, later = captured(lambda: x + 3)
    second.replay()
    first.replay()
    assert later.tolist() == [4.0] * 8


def test_a_chain_of_graphs_passes_its_results_on():
    """As the pieces of a model: each one's result is the next one's input, given up once the next one is captured."""
    pool, x = torch.npu.graph_pool_handle(), torch.ones(8).npu()
    pieces = []
    for size in (8, 4):
        value, chain = x[:size], []
        for step in range(4):

            def piece(value=value, step=step):
                return value * 2 + step, torch.empty_like(value)

            graph, (value, buffer) = captured(piece, pool=pool)
            buffer.copy_(value)  # what runs between the pieces
            chain.append((graph, weak(value), weak(buffer)))
            value = buffer
        pieces.append(chain)
        del value, buffer, piece
    for size, chain in zip((8, 4, 8), (pieces[0], pieces[1], pieces[0]), strict=True):
        for graph, value, buffer in chain:
            graph.replay()
            buffer.copy_(value)
        assert chain[-1][2].tolist() == [27.0] * size  # ((((1*2+0)*2+1)*2+2)*2+3


def test_the_last_result_may_be_given_up_inside_the_capture():
    """As the host does: nothing after it in the graph can get its memory."""
    x = torch.ones(8).npu()
    graph, result = captured(lambda: weak(x + 1))
    graph.replay()
    assert result.tolist() == [2.0] * 8


def test_memory_is_reused_within_a_capture_and_by_the_next():
    pool, x = torch.npu.graph_pool_handle(), torch.ones(1 << 16).npu()
    before = torch.npu.memory_allocated()

    def body():
        value = x
        for _ in range(50):
            value = value + 1
        return weak(value)

    graphs = [captured(body, pool=pool)[0] for _ in range(3)]
    assert torch.npu.memory_allocated() - before <= 3 * x.nbytes
    del graphs
    gc.collect()
    assert torch.npu.memory_allocated() == before


def test_a_weak_reference_of_another_tensor_is_the_tensor():
    x = torch.ones(3)
    assert weak(x) is x


def test_poison_can_be_traced(capfd):
    from torch_npu import _backend

    x = torch.ones(8).npu()
    graph, _ = captured(lambda x=x: x + 1)
    del x
    _backend.trace_poison(1)
    try:
        graph.replay()
    finally:
        _backend.trace_poison(0)
    assert "node 0, aten::add.out: argument 'self' holds poison" in capfd.readouterr().err
