"""Streams and events.

Every operator is finished when its call returns. What outlasts it is a replayed graph that waits at an external event:
work behind it on its stream cannot run, and a host that waits for it would hang; both raise (``backend/streams.h``).
Streams keep their identity and the current stream is per thread; synchronising is counted.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import Any

import torch

from torch_npu.npu.devices import _backend, index_of

_numbers = itertools.count(1)
_thread = threading.local()
_defaults: dict[int, Stream] = {}


class Stream:
    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("npu", index_of(device))
        self.priority = priority
        self.stream_id = self.npu_stream = next(_numbers)

    @property
    def device_index(self) -> int:
        return int(self.device.index)

    def wait_stream(self, stream: Stream) -> None:
        _expect(stream, Stream)
        self.wait_event(stream.record_event())

    def wait_event(self, event: Event) -> None:
        _expect(event, Event)
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for the stream. Raises RuntimeError where that would never end, and in a capture."""
        _backend().count_synchronize()
        torch.ops.npu_emulator.synchronize_stream(key_of(self), "torch.npu.Stream.synchronize")

    def query(self) -> bool:
        """Whether all work of the stream is finished."""
        return self.record_event().query()

    def __enter__(self) -> Stream:
        self._before = current_stream()
        set_stream(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        set_stream(self._before)

    def __repr__(self) -> str:
        return f"<emulated torch.npu.Stream {self.stream_id} on {self.device}>"


class Event:
    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise NotImplementedError("interprocess events are not modelled by the emulated NPU")
        self._timing = enable_timing
        self._time: float | None = None
        self._event = torch.classes.npu_emulator.StreamEvent()

    def record(self, stream: Stream | None = None) -> None:
        self._time = time.perf_counter()
        self._event.record(key_of(stream or current_stream()))

    def wait(self, stream: Stream | None = None) -> None:
        """The stream waits for what the event was recorded behind."""
        self._event.wait(key_of(stream or current_stream()))

    def query(self) -> bool:
        return bool(self._event.query())

    def synchronize(self) -> None:
        """The host waits for what the event was recorded behind; see `Stream.synchronize`."""
        _backend().count_synchronize()
        self._event.synchronize()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of host time between two recorded events."""
        if not (self._timing and end._timing):
            raise RuntimeError("elapsed_time needs events made with enable_timing=True")
        if self._time is None or end._time is None:
            raise RuntimeError("elapsed_time needs two recorded events")
        return (end._time - self._time) * 1e3


def _expect(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"expected a torch.npu.{kind.__name__}, got {type(value).__name__}")


def key_of(stream: Stream) -> int:
    """The number by which the backend knows the stream."""
    _expect(stream, Stream)
    device = stream.device_index
    return -(device + 1) if stream is _defaults.get(device) else stream.stream_id


def default_stream(device: Any = None) -> Stream:
    index = index_of(device)
    if index not in _defaults:
        _defaults[index] = Stream(index)
    return _defaults[index]


def current_stream(device: Any = None) -> Stream:
    current: Stream | None = getattr(_thread, "stream", None)
    if current is None or current.device_index != index_of(device):
        return default_stream(device)
    return current


def set_stream(stream: Stream) -> None:
    _expect(stream, Stream)
    _thread.stream = stream
    _backend().set_stream(key_of(stream), stream.device_index)


class stream(contextlib.ContextDecorator):
    """Makes a stream current inside a ``with`` block; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> Stream | None:
        self._before = current_stream()
        if self._stream is not None:
            set_stream(self._stream)
        return self._stream

    def __exit__(self, *exc_info: object) -> None:
        set_stream(self._before)


StreamContext = stream
