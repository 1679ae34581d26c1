"""Streams and events.

Every operator is finished when its call returns, so a stream orders nothing: waiting is no work. Streams keep their
identity and the current stream is per thread; synchronising is counted.
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

    def wait_event(self, event: Event) -> None:
        _expect(event, Event)

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        _backend().count_synchronize()

    def query(self) -> bool:
        return True

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

    def record(self, stream: Stream | None = None) -> None:
        self._time = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Everything recorded is finished already."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _backend().count_synchronize()

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
