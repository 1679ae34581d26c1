"""Names torch's PrivateUse1 backend 'npu' and connects what torch asks of a device to it."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu import _backend, npu  # noqa: F401  (the backend registers its kernels when it is loaded)

torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", npu)
torch.utils.generate_methods_for_privateuse1_backend(unsupported_dtype=None)


_record_stream = torch.Tensor.record_stream


def _record_npu_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Memory is in use until its last owner is gone, and nothing runs later than its call: nothing to record."""
    if tensor.device.type != "npu":
        _record_stream(tensor, stream)
        return
    if not isinstance(stream, npu.Stream):
        raise TypeError(f"record_stream: expected a torch.npu.Stream, got {type(stream).__name__}")


# torch's own method takes torch.Stream objects, which these streams are not.
torch.Tensor.record_stream = _record_npu_stream


def _synchronize(device: Any = None) -> None:
    npu.synchronize(device)


def _empty_cache() -> None:
    npu.empty_cache()


# The host calls these through torch's device-neutral names, which in torch 2.13 ask the C++ hooks for stream and
# cache functions that PrivateUse1 backends cannot provide.
torch.accelerator.synchronize = _synchronize
torch.accelerator.empty_cache = _empty_cache
