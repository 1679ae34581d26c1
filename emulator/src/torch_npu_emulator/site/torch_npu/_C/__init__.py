"""Names of the published package's extension module that the host uses."""

from __future__ import annotations

import torch


class _NPUTaskGroupHandle:
    """An annotation in the host; `torch.npu.graph_task_group_end` returns such handles."""


def _weak_ref_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """An npu tensor on the same memory that does not keep it in use: it may be overwritten once its owner gave it up.

    Other tensors are returned as they are.
    """
    return torch.ops.npu_emulator.weak_reference(tensor) if tensor.device.type == "npu" else tensor
