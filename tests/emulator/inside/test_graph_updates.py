"""Task groups: what an update changes, and what it must match."""

from __future__ import annotations

import pytest
import torch
import torch_npu

from tests.emulator.inside.graph_helpers import CAUSAL, HEADS, PAGE, SIZE, Attention, captured, planted


@pytest.fixture
def attention():
    made = Attention()
    made.capture()
    return made


def test_an_update_serves_the_replay_that_waits(attention):
    for lengths in ([300, 17], [1, 512], [129, 128]):
        assert torch.equal(attention.step(lengths), (attention.expected(lengths) * 2).cpu())


def test_its_mutant_an_update_without_effect(attention):
    with planted("ignore_task_update"):
        stale = attention.step([300, 17])
    assert not torch.equal(stale, (attention.expected([300, 17]) * 2).cpu())
    assert torch.equal(stale, (attention.expected([1, 1]) * 2).cpu())  # the parameters of the capture


def test_an_update_before_the_replay_needs_the_host_to_have_waited(attention):
    """The order of hosts that update first."""
    attention.step([5, 5])  # its last line waits for the replay
    attention.update([300, 17])
    attention.event.record(attention.update_stream)
    attention.graph.replay()
    assert torch.equal(attention.result.cpu(), (attention.expected([300, 17]) * 2).cpu())


def test_an_update_while_a_replay_may_run_is_a_race(attention):
    attention.update([300, 17])
    attention.event.record(attention.update_stream)
    attention.graph.replay()
    with pytest.raises(RuntimeError, match=r"its tasks may be changed while they run\. Synchronise before the update"):
        attention.update([1, 1])
    torch.npu.synchronize()
    attention.update([1, 1])


@pytest.mark.parametrize("how", ["stream", "event", "item", "update stream waits"])
def test_what_orders_an_update_behind_a_replay(attention, how):
    attention.event.record()
    attention.graph.replay()
    done = torch.npu.current_stream().record_event()
    if how == "stream":
        torch.npu.current_stream().synchronize()
    elif how == "event":
        done.synchronize()
    elif how == "item":
        attention.result[0, 0, 0].item()
    else:
        attention.update_stream.wait_event(done)
    attention.update([1, 1])


def test_waiting_for_another_stream_orders_nothing(attention):
    attention.event.record()
    attention.graph.replay()
    torch.npu.Stream().synchronize()
    with pytest.raises(RuntimeError, match="Synchronise before the update"):
        attention.update([1, 1])


def new(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype).npu()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"atten_mask": None, "sparse_mode": 0}, "argument 'atten_mask' was given when the graph was captured"),
        ({"query": new(2, HEADS, SIZE).half()}, "dtype|of Half|float16"),
        ({"into": new(2, HEADS, SIZE * 2)}, r"out\[0\]"),
        ({"block_table": new(2, 4, dtype=torch.int64)}, "int32"),
        ({"actual_seq_lengths_kv": [5000, 1]}, "sequence 0 has 5000 keys"),
        ({"workspace": new(1, dtype=torch.uint8)}, "argument 'workspace' was not given when the graph was captured"),
    ],
)
def test_an_update_must_match_what_was_captured(attention, changes, message):
    with pytest.raises(RuntimeError, match=message):
        attention.update(changes.pop("actual_seq_lengths_kv", [5, 5]), **changes)
    # The tasks are what they were.
    attention.event.record()
    attention.graph.replay()
    assert torch.equal(attention.result.cpu(), (attention.expected([1, 1]) * 2).cpu())


def test_the_query_keeps_its_shape(attention):
    longer = Attention(batch=3)
    with pytest.raises(RuntimeError, match=r"argument 'query' of shape \[3, 4, 64\], captured with \[2, 4, 64\]"):
        attention.update(
            [5, 5, 5],
            query=longer.query,
            block_table=longer.table,
            actual_seq_lengths=[1, 2, 3],
            into=torch.empty_like(longer.query),
        )


def test_another_operator(attention):
    with torch.npu.stream(attention.update_stream):
        torch.npu.graph_task_update_begin(attention.update_stream, attention.handle)
        with pytest.raises(RuntimeError, match=r"task update with npu::npu_swiglu, captured was npu::npu_fused"):
            torch_npu.npu_swiglu(attention.query)
        with pytest.raises(RuntimeError, match="a copy between graph_task_update_begin"):
            attention.out.copy_(attention.query)
        with pytest.raises(RuntimeError, match="after 0 of the task group's 1 tasks"):
            torch.npu.graph_task_update_end(attention.update_stream)
    assert (attention.query + 1).shape == attention.query.shape  # the update is over


def test_too_many_and_too_few(attention):
    with torch.npu.stream(attention.update_stream):
        torch.npu.graph_task_update_begin(attention.update_stream, attention.handle)
        attention.call([5, 5], attention.out)
        with pytest.raises(RuntimeError, match="the group has only 1 tasks"):
            attention.call([5, 5], attention.out)
        torch.npu.graph_task_update_end(attention.update_stream)


def test_an_operator_that_makes_its_result_is_refused():
    """Its new result would lie where the graph does not look for it."""
    attention = Attention()
    parts = [torch.randn(2, 8).npu(), torch.randn(2, 8).npu()]
    lses = [torch.randn(2).npu(), torch.randn(2).npu()]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        torch_npu.npu_attention_update(lses, parts, 0)
        handle = torch.npu.graph_task_group_end(stream)
    with torch.npu.stream(attention.update_stream):
        torch.npu.graph_task_update_begin(attention.update_stream, handle)
        with pytest.raises(RuntimeError, match="makes a new tensor for its result"):
            torch_npu.npu_attention_update(lses, parts, 0)
        with pytest.raises(RuntimeError, match="after 0 of"):
            torch.npu.graph_task_update_end(attention.update_stream)


def test_the_update_belongs_to_its_stream(attention):
    torch.npu.graph_task_update_begin(attention.update_stream, attention.handle)
    with pytest.raises(RuntimeError, match="the update was begun on stream"):
        attention.call([5, 5], attention.out)  # on the current stream
    with pytest.raises(RuntimeError, match="begun on stream"):
        torch.npu.graph_task_update_end(torch.npu.current_stream())


def test_the_graph_of_a_handle_must_live(attention):
    attention.graph.reset()
    with pytest.raises(RuntimeError, match="the graph of this handle is gone"):
        attention.update([5, 5])


def test_groups_belong_to_captures():
    stream = torch.npu.current_stream()
    with pytest.raises(RuntimeError, match="graph_task_group_begin outside a capture"):
        torch.npu.graph_task_group_begin(stream)
    with pytest.raises(RuntimeError, match="graph_task_group_end without"):
        torch.npu.graph_task_group_end(stream)
    with pytest.raises(RuntimeError, match="graph_task_update_end without"):
        torch.npu.graph_task_update_end(stream)
    with pytest.raises(RuntimeError, match="the capture ends inside a task group"):
        captured(lambda: torch.npu.graph_task_group_begin(torch.npu.current_stream()))


def test_several_tasks_of_one_group_are_updated_in_order():
    first, second = Attention(seed=1), Attention(seed=2)
    outs = [torch.empty_like(first.query) for _ in range(2)]
    event, graph = torch.npu.ExternalEvent(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        first.call([1, 1], outs[0])
        second.call([1, 1], outs[1])
        handle = torch.npu.graph_task_group_end(stream)
    graph.replay()
    update = torch.npu.Stream()
    with torch.npu.stream(update):
        torch.npu.graph_task_update_begin(update, handle)
        first.call([200, 3], outs[0])
        second.call([4, 400], outs[1])
        torch.npu.graph_task_update_end(update)
        event.record(update)
    assert torch.equal(outs[0].cpu(), first.expected([200, 3]).cpu())
    assert torch.equal(outs[1].cpu(), second.expected([4, 400]).cpu())


def test_paged_attention_takes_its_lengths_from_the_host():
    query = torch.randn(2, HEADS, SIZE).npu()
    cache = torch.randn(8, PAGE, 2, SIZE).npu()
    table = torch.arange(8, dtype=torch.int32).view(2, 4).npu()
    out = torch.empty_like(query)

    def call(lengths, into):
        torch_npu._npu_paged_attention(
            query, cache, cache, 2, HEADS, 0.125, table, torch.tensor(lengths, dtype=torch.int32), into
        )

    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        call([1, 1], out)
        handle = torch.npu.graph_task_group_end(stream)
    update = torch.npu.Stream()
    with torch.npu.stream(update):
        torch.npu.graph_task_update_begin(update, handle)
        call([300, 17], out)
        torch.npu.graph_task_update_end(update)
    graph.replay()
    expected = torch.empty_like(query)
    call([300, 17], expected)
    assert torch.equal(out.cpu(), expected.cpu())


def test_workspaces_are_answered_on_the_host():
    """The query is no task: it is captured as nothing, and may be asked inside a group."""
    attention = Attention()

    def body():
        return torch_npu._npu_fused_infer_attention_score_get_max_workspace(
            query=attention.query,
            key=attention.cache,
            value=attention.cache,
            atten_mask=CAUSAL,
            block_table=attention.table,
            input_layout="TND",
            block_size=PAGE,
            actual_seq_lengths=[1, 2],
            actual_seq_lengths_kv=[5, 5],
            num_key_value_heads=2,
            num_heads=HEADS,
            sparse_mode=3,
        )

    graph, workspace = captured(body)
    assert graph.nodes() == []
    assert workspace.device.type == "npu"
