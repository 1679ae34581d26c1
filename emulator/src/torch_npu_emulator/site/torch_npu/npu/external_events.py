"""Events that captured graphs wait for, and that the host records."""

from __future__ import annotations

import torch

from torch_npu.npu.streams import Stream, current_stream, key_of


class ExternalEvent:
    """In a capture, ``wait``, ``reset`` and ``record`` become nodes of the graph; outside they take effect at once.

    A replay waits at an event that is not recorded, and runs on when ``record`` is called outside.
    """

    def __init__(self) -> None:
        self._event = torch.classes.npu_emulator.ExternalEvent()

    def record(self, stream: Stream | None = None) -> None:
        self._event.record(key_of(stream or current_stream()))

    def wait(self, stream: Stream | None = None) -> None:
        self._event.wait(key_of(stream or current_stream()))

    def reset(self, stream: Stream | None = None) -> None:
        self._event.reset(key_of(stream or current_stream()))
