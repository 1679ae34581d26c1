"""``torch.npu``: devices, memory, streams, random numbers of the emulated NPU."""

from torch_npu.npu import config as _config
from torch_npu.npu import graphs, memory
from torch_npu.npu.devices import (
    _is_in_bad_fork,
    _lazy_init,
    current_device,
    device,
    device_count,
    exchange_device,
    get_amp_supported_dtype,
    get_device_name,
    get_device_properties,
    get_soc_version,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    maybe_exchange_device,
    set_compile_mode,
    set_device,
    synchronize,
)
from torch_npu.npu.external_events import ExternalEvent
from torch_npu.npu.graphs import NPUGraph, graph, graph_pool_handle, is_current_stream_capturing
from torch_npu.npu.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from torch_npu.npu.random import get_rng_state, initial_seed, manual_seed, manual_seed_all, set_rng_state
from torch_npu.npu.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torch_npu.npu.task_groups import (
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
)

config = _config.Config()
# torch's device-neutral code asks for these spellings.
_exchange_device = exchange_device
_maybe_exchange_device = maybe_exchange_device

__all__ = [
    "Event",
    "ExternalEvent",
    "NPUGraph",
    "Stream",
    "StreamContext",
    "_exchange_device",
    "_is_in_bad_fork",
    "_lazy_init",
    "_maybe_exchange_device",
    "config",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "exchange_device",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_soc_version",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "graphs",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "maybe_exchange_device",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_compile_mode",
    "set_device",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
]
