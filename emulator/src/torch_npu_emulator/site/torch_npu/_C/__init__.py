"""Names of the published package's extension module that the host uses."""

from __future__ import annotations

import torch


class _NPUTaskGroupHandle:
    """An annotation in the host; graphs make such handles."""


def _weak_ref_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the same memory. Unlike the published one it keeps that memory alive."""
    return tensor.detach()
