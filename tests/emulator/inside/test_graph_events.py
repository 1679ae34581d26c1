"""The order of work: external events that a replay waits for, ordinary events, streams of a capture."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.inside.graph_helpers import Attention, captured, planted


@pytest.fixture
def waiting():
    """A replay that waits at its event; released at the end."""
    attention = Attention()
    attention.capture()
    attention.graph.replay()
    yield attention
    attention.event.record(attention.update_stream)
    torch.npu.synchronize()


HOST_WAITS = {
    "device": lambda a: torch.npu.synchronize(),
    "accelerator": lambda a: torch.accelerator.synchronize(),
    "stream": lambda a: torch.npu.current_stream().synchronize(),
    "event": lambda a: torch.npu.current_stream().record_event().synchronize(),
    "a stream behind it": lambda a: wait_behind(torch.npu.Stream()),
    "copy": lambda a: a.result.cpu(),
    "item": lambda a: a.query[0, 0, 0].item(),
    "nonzero": lambda a: a.query.nonzero(),
    "print": lambda a: str(a.query),
}


def wait_behind(stream):
    stream.wait_stream(torch.npu.current_stream())
    stream.synchronize()


@pytest.mark.parametrize("name", HOST_WAITS)
def test_a_host_that_waits_for_a_waiting_replay_would_hang(waiting, name):
    with pytest.raises(RuntimeError, match=r"would never end: graph \d+ waits at external event 1 of 1|queued behind"):
        HOST_WAITS[name](waiting)


@pytest.mark.parametrize("name", HOST_WAITS)
def test_once_the_event_is_recorded_the_host_may_wait(name):
    attention = Attention()
    attention.capture()
    attention.graph.replay()
    attention.event.record(attention.update_stream)
    HOST_WAITS[name](attention)


@pytest.mark.parametrize(
    "work",
    [
        lambda a: a.query + 1,
        lambda a: a.query.copy_(a.out),
        lambda a: a.query.copy_(torch.zeros_like(a.query, device="cpu"), non_blocking=True),
        lambda a: a.expected([1, 1]),
        lambda a: a.graph.replay(),
        lambda a: a.event.record(),  # on the stream that waits for it
    ],
)
def test_work_behind_a_waiting_replay_is_refused(waiting, work):
    with pytest.raises(RuntimeError, match="is queued behind a replay that waits"):
        work(waiting)


def test_work_on_other_streams_goes_on(waiting):
    with torch.npu.stream(torch.npu.Stream()):
        assert (waiting.query.new_zeros(2) + 1).tolist() == [1.0, 1.0]
        torch.npu.current_stream().synchronize()


def test_a_replay_of_a_waiting_graph_on_another_stream_is_refused(waiting):
    with torch.npu.stream(torch.npu.Stream()), pytest.raises(RuntimeError, match="while its last replay still waits"):
        waiting.graph.replay()


def test_events_and_streams_tell_whether_work_is_done(waiting):
    stream = torch.npu.current_stream()
    assert not stream.query()
    event = stream.record_event()
    assert not event.query()
    assert torch.npu.Stream().query()
    waiting.event.record(waiting.update_stream)
    assert stream.query()
    assert event.query()


def test_the_replay_does_nothing_behind_its_event_before_it_is_recorded(waiting):
    host = torch.empty(waiting.result.shape)
    with torch.npu.stream(torch.npu.Stream()):
        host.copy_(waiting.result)
        assert host.isnan().all()


def test_its_mutant_a_replay_that_does_not_wait():
    attention = Attention()
    attention.capture()
    with planted("stale_event"):
        stale = attention.step_in_one_go([300, 17])
    assert torch.equal(stale, (attention.expected([1, 1]) * 2).cpu())


def test_the_graph_resets_its_event():
    attention = Attention()
    attention.capture()
    attention.event.record()
    attention.graph.replay()
    attention.result.cpu()  # it did not wait
    attention.graph.replay()
    with pytest.raises(RuntimeError, match="would never end"):
        torch.npu.synchronize()
    attention.event.record(attention.update_stream)
    torch.npu.synchronize()


def test_a_reset_event_is_not_recorded():
    attention = Attention()
    attention.capture()
    attention.event.record()
    attention.event.reset()
    attention.graph.replay()
    with pytest.raises(RuntimeError, match="would never end"):
        torch.npu.synchronize()
    attention.event.record(attention.update_stream)
    torch.npu.synchronize()


def test_several_events_are_waited_for_one_after_the_other():
    x, events = torch.zeros(1).npu(), [torch.npu.ExternalEvent() for _ in range(3)]

    def body():
        for event in events:
            event.wait()
            event.reset()
            x.add_(1)

    graph, _ = captured(body)
    graph.replay()
    side, seen = torch.npu.Stream(), []
    with torch.npu.stream(side):
        for event in (events[1], events[0], events[2]):  # the second is recorded early
            seen.append(x.item())
            event.record(side)
        seen.append(x.item())
    assert seen == [0, 0, 2, 3]
    torch.npu.synchronize()


def test_one_graph_can_release_another():
    x, event = torch.zeros(1).npu(), torch.npu.ExternalEvent()

    def wait_and_add():
        event.wait()
        x.add_(1)

    waits, _ = captured(wait_and_add)
    releases, _ = captured(lambda: event.record())
    waits.replay()
    with torch.npu.stream(torch.npu.Stream()):
        releases.replay()
    assert x.item() == 1


def test_waiting_outside_of_a_graph():
    event = torch.npu.ExternalEvent()
    with pytest.raises(NotImplementedError, match="for an event that is not recorded"):
        event.wait()
    event.record()
    event.wait()


class TestStreamsOfACapture:
    def test_a_stream_joins_and_is_joined(self):
        x, side = torch.ones(2).npu(), torch.npu.Stream()

        def body():
            main = torch.npu.current_stream()
            side.wait_stream(main)
            with torch.npu.stream(side):
                y = x * 3
            main.wait_stream(side)
            return y + 1

        graph, result = captured(body)
        graph.replay()
        assert result.tolist() == [4.0, 4.0]

    def test_work_on_a_foreign_stream_is_refused(self):
        x = torch.ones(2).npu()

        def body():
            with torch.npu.stream(torch.npu.Stream()):
                return x + 1

        with pytest.raises(RuntimeError, match=r"does not belong to the capture .* let it wait for that stream first"):
            captured(body)

    def test_a_stream_that_is_not_joined_is_refused(self):
        x, side = torch.ones(2).npu(), torch.npu.Stream()

        def body(late):
            main = torch.npu.current_stream()
            side.wait_stream(main)
            with torch.npu.stream(side):
                event = side.record_event()
                x.add_(1)
            if late:
                main.wait_event(event)  # recorded before the work

        for late in (False, True):
            with pytest.raises(RuntimeError, match="an unjoined stream"):
                captured(lambda late=late: body(late))

    def test_an_event_of_a_capture_stays_in_it(self):
        events = []
        captured(lambda: events.append(torch.npu.current_stream().record_event()))
        with pytest.raises(RuntimeError, match="recorded in a capture, outside that capture"):
            torch.npu.current_stream().wait_event(events[0])
