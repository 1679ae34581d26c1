"""Task groups: operators of a captured graph whose arguments can be replaced before, or while, it is replayed."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu.npu.streams import Stream, key_of


def graph_task_group_begin(stream: Stream) -> None:
    """The operators of the capture from here to `graph_task_group_end` are the tasks of one group."""
    torch.ops.npu_emulator.begin_task_group(key_of(stream))


def graph_task_group_end(stream: Stream) -> Any:
    """Ends the group; returns its handle."""
    return torch.ops.npu_emulator.end_task_group(key_of(stream))


def graph_task_update_begin(stream: Stream, handle: Any) -> None:
    """The operators called on ``stream`` from here to `graph_task_update_end` are not run: their arguments become those
    of the group's tasks, in order.

    Raises RuntimeError where a replay of the graph may still be running, for all the host and the stream know.
    """
    torch.ops.npu_emulator.begin_task_update(key_of(stream), handle)


def graph_task_update_end(stream: Stream) -> None:
    """Ends the update. Raises RuntimeError unless every task of the group was given its arguments."""
    torch.ops.npu_emulator.end_task_update(key_of(stream))
