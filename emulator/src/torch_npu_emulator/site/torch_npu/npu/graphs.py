"""Captured graphs (``torch.npu.NPUGraph``, ``torch.npu.graph``) and their memory pools.

Between the begin and the end of a capture the operators of the thread are written down and not run, as on hardware: a
result of the capture holds nothing before the first replay. The backend (``backend/tape.h``, ``backend/graph_pool.h``)
says what a replay does, and what becomes of memory that was given up.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

import torch

from torch_npu.npu.devices import _backend, synchronize
from torch_npu.npu.memory import empty_cache
from torch_npu.npu.streams import Stream, current_stream, key_of, stream

PoolHandle = tuple[int, int]

_pool_numbers = itertools.count(1)
_ERROR_MODES = ("global", "thread_local", "relaxed")


def graph_pool_handle() -> PoolHandle:
    """Names a pool that several graphs can share. Graphs of one pool may overwrite each other's results."""
    return (0, next(_pool_numbers))


def is_current_stream_capturing() -> bool:
    return bool(_backend().capturing())


class NPUGraph:
    """A captured graph. `torch.npu.graph` captures into it; the host also subclasses it."""

    def __init__(self, keep_graph: bool = False) -> None:
        if keep_graph:
            raise NotImplementedError("torch.npu.NPUGraph(keep_graph=True) is not modelled by the emulated NPU")
        self._graph = torch.classes.npu_emulator.Graph()
        self._pool: PoolHandle | None = None

    def capture_begin(self, pool: PoolHandle | None = None, capture_error_mode: str = "global") -> None:
        """Begins the capture on the current stream; ``pool`` None: a pool of its own."""
        if capture_error_mode not in _ERROR_MODES:
            raise RuntimeError(f"capture_error_mode={capture_error_mode!r}: accepted are {', '.join(_ERROR_MODES)}")
        chosen = graph_pool_handle() if pool is None else pool
        self._graph.capture_begin(chosen[1], key_of(current_stream()))
        self._pool = chosen

    def capture_end(self) -> None:
        self._graph.capture_end()

    def _abort(self) -> None:
        """Gives a capture up that failed: it leaves nothing that could be replayed."""
        self._graph.capture_abort()
        self._pool = None

    def replay(self) -> None:
        """Runs what was captured, on the current stream, until its end or an external event that is not recorded."""
        self._graph.replay(key_of(current_stream()))

    def reset(self) -> None:
        """Gives the captured graph up."""
        self._graph.reset()

    def pool(self) -> PoolHandle:
        if self._pool is None:
            raise RuntimeError("NPUGraph.pool: nothing was captured")
        return self._pool

    def nodes(self) -> list[str]:
        """What was captured, in order, by name (the emulator's own: torch_npu has no such method)."""
        return list(self._graph.nodes())

    def update(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("torch.npu.NPUGraph.update is not modelled by the emulated NPU")

    def debug_dump(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("torch.npu.NPUGraph.debug_dump is not modelled by the emulated NPU")


class graph:
    """Captures the work of a ``with`` block into ``npu_graph``, on a stream of its own unless one is given."""

    _default_stream: Stream | None = None

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: PoolHandle | None = None,
        stream: Stream | None = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
        **others: Any,
    ) -> None:
        if auto_dispatch_capture or others:
            named = ", ".join(["auto_dispatch_capture"] * auto_dispatch_capture + sorted(others))
            raise NotImplementedError(f"torch.npu.graph: {named} is not modelled by the emulated NPU")
        if stream is None:
            graph._default_stream = graph._default_stream or Stream()
            stream = graph._default_stream
        self.npu_graph = npu_graph
        self._pool = pool
        self._stream = stream
        self._error_mode = capture_error_mode

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        empty_cache()
        self._context = stream(self._stream)
        self._context.__enter__()
        try:
            self.npu_graph.capture_begin(pool=self._pool, capture_error_mode=self._error_mode)
        except BaseException:
            self._context.__exit__()
            raise

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        captured = False
        try:
            if kind is None:
                self.npu_graph.capture_end()
                captured = True
        finally:
            if not captured:
                self.npu_graph._abort()
            self._context.__exit__()
