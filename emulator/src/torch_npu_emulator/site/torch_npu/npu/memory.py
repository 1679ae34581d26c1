"""Device memory: real numbers of the emulated allocator, which keeps nothing back (reserved equals allocated)."""

from __future__ import annotations

from typing import Any

from torch_npu.emulator import settings
from torch_npu.npu.devices import _backend, index_of


def memory_allocated(device: Any = None) -> int:
    return int(_backend().allocated(index_of(device)))


def max_memory_allocated(device: Any = None) -> int:
    return int(_backend().peak(index_of(device)))


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def memory_stats(device: Any = None) -> dict[str, int]:
    """Bytes in use now and at most, under the names of torch's caching allocators."""
    current, peak = memory_allocated(device), max_memory_allocated(device)
    return {
        "allocated_bytes.all.current": current,
        "allocated_bytes.all.peak": peak,
        "reserved_bytes.all.current": current,
        "reserved_bytes.all.peak": peak,
    }


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes."""
    return settings.DEVICE_BYTES - memory_allocated(device), settings.DEVICE_BYTES


def reset_peak_memory_stats(device: Any = None) -> None:
    _backend().reset_peak(index_of(device))


reset_max_memory_allocated = reset_peak_memory_stats


def empty_cache() -> None:
    """The emulated allocator returns memory at once: there is nothing to give back."""


class _NotModelled:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(
            f"torch.npu.memory.{type(self).__name__} (sleep mode) is not modelled by the emulated NPU"
        )


class NPUPluggableAllocator(_NotModelled):
    pass


class MemPool(_NotModelled):
    pass


class use_mem_pool(_NotModelled):
    pass


def memory_snapshot(*args: object, **kwargs: object) -> list[Any]:
    raise NotImplementedError("torch.npu.memory.memory_snapshot is not modelled by the emulated NPU")
