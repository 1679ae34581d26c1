"""Faults planted into graph twins before an engine starts; see `planted_faults.py`."""

from __future__ import annotations

from typing import Any


def plant(name: str) -> None:
    """Plant the named fault into this process; engine processes are forked from it.

    Raises:
        KeyError: no such fault.
    """
    faults = (_stale_lengths, _stale_tables, _running, _capture)
    {fault.__name__.lstrip("_"): fault for fault in faults}[name]()


def _stale_lengths() -> None:
    """The suffix stages keep the lengths of their capture, but every event is recorded."""
    from vllm_ascend_split_batch.cascade.graph_twin.by_tasks import Stage

    update = Stage.update

    def only_the_prefix(self: Any, tools: Any, stream: Any, kv_lengths: list[int]) -> None:
        if len(kv_lengths) == 1:
            update(self, tools, stream, kv_lengths)

    Stage.update = only_the_prefix  # type: ignore[method-assign]


def _stale_tables() -> None:
    """A changed prefix is not noticed: its blocks stay those of the first step."""
    from vllm_ascend_split_batch.cascade.graph_twin import by_tasks

    by_tasks.TaskGroupTwin._holds_prefix_of = lambda self, step: self.holds is not None  # type: ignore[method-assign]


def _running() -> None:
    """One failure each: filling, the first update, an update behind a recorded event, the replay itself."""
    from vllm_ascend_split_batch.cascade.graph_twin import by_tasks, twin

    group = by_tasks.TaskGroupTwin
    fill, update_all = group.fill, group.update
    fills: list[int] = []
    updates: list[int] = []

    def third_fill_fails(self: Any, step: Any) -> None:
        fills.append(self.rows)
        if len(fills) == 3:
            raise RuntimeError("planted: fill")
        fill(self, step)

    def sixth_update_fails(self: Any, stream: Any) -> None:
        updates.append(self.rows)
        if len(updates) == 6:
            raise RuntimeError("planted: update")
        update_all(self, stream)

    group.fill = third_fill_fails  # type: ignore[method-assign]
    group.update = sixth_update_fails  # type: ignore[method-assign]

    original = by_tasks.Stage.update

    def late(self: Any, tools: Any, stream: Any, kv_lengths: list[int]) -> Any:
        if len(kv_lengths) == 4:
            calls.append(1)
            if len(calls) == 5:
                raise RuntimeError("planted: late update")
        return original(self, tools, stream, kv_lengths)

    calls: list[int] = []
    by_tasks.Stage.update = late  # type: ignore[method-assign]

    def launched(self: Any, name: str, value: Any) -> None:
        if name == "launched" and value and self.twin.rows == 2:
            raise RuntimeError("planted: replay")
        object.__setattr__(self, name, value)

    twin.Replay.__setattr__ = launched  # type: ignore[method-assign,assignment]


def _capture() -> None:
    """The second size cannot be captured."""
    from vllm_ascend_split_batch.cascade.graph_twin import by_tasks

    record = by_tasks.TaskGroupTwin.record
    waiting = ["capture"]

    def fails(self: Any, *args: Any) -> Any:
        if self.rows == 4 and len(self.tasks) == 1 and waiting:
            raise RuntimeError(f"planted: {waiting.pop()}")
        return record(self, *args)

    by_tasks.TaskGroupTwin.record = fails  # type: ignore[method-assign]
