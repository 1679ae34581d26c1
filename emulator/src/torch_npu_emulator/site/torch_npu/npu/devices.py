"""The emulated devices: how many, which is current, what they say of themselves."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch

from torch_npu.emulator import settings

# One kind of device is emulated: the Atlas A2 training card's, as the host's build for SOC_VERSION=ascend910b1 expects.
DEVICE_NAME = "Ascend910B1"
SOC_VERSION = 220
CUBE_CORES, VECTOR_CORES = 24, 48


def _backend() -> Any:
    from torch_npu import _backend  # late: torch.npu exists before the backend is loaded

    return _backend


def index_of(device: Any) -> int:
    """The index of ``device`` (None: the current one; an int, a string, a torch.device)."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != "npu":
            raise ValueError(f"expected an npu device, got {device}")
        index = current_device() if device.index is None else device.index
    if not 0 <= index < settings.DEVICES:
        raise RuntimeError(f"npu:{index} does not exist: the emulated machine has {settings.DEVICES} (NPU_EMU_DEVICES)")
    return index


def _lazy_init() -> None:
    """Nothing is left to initialise once this package is imported."""


init = _lazy_init


def is_initialized() -> bool:
    return True


def is_available() -> bool:
    return True


def is_bf16_supported() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False  # host memory survives a fork


def device_count() -> int:
    return settings.DEVICES


def current_device() -> int:
    return int(_backend().current_device())


def set_device(device: Any) -> None:
    _backend().set_device(index_of(device))


def exchange_device(index: int) -> int:
    """Makes ``index`` current and returns the device that was; torch's contract: a negative index changes nothing."""
    before = current_device()
    if index >= 0:
        set_device(index)
    return before


maybe_exchange_device = exchange_device


class device(contextlib.ContextDecorator):
    """Makes a device current inside a ``with`` block."""

    def __init__(self, device: Any) -> None:
        self._index = index_of(device)

    def __enter__(self) -> None:
        self._before = exchange_device(self._index)

    def __exit__(self, *exc_info: object) -> None:
        set_device(self._before)


def get_device_name(device: Any = None) -> str:
    index_of(device)
    return DEVICE_NAME


def get_soc_version() -> int:
    return SOC_VERSION


def get_device_properties(device: Any = None) -> types.SimpleNamespace:
    index = index_of(device)
    return types.SimpleNamespace(
        name=DEVICE_NAME,
        total_memory=settings.DEVICE_BYTES,
        cube_core_num=CUBE_CORES,
        vector_core_num=VECTOR_CORES,
        uuid=f"emulated-npu-{index}",
    )


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def synchronize(device: Any = None) -> None:
    """The host waits for the device; see `Stream.synchronize`."""
    index_of(device)
    _backend().count_synchronize()
    torch.ops.npu_emulator.synchronize_device("torch.npu.synchronize")


def set_compile_mode(*, jit_compile: bool = False) -> None:
    """Just-in-time compilation of operators chooses among kernels of the real device: there are none here."""
    if jit_compile:
        raise NotImplementedError("the emulated NPU has no just-in-time compiled operators (jit_compile=True)")
