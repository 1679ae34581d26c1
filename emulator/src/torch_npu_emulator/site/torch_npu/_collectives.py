"""The process group 'hccl': gloo on the CPU aliases of npu tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as distributed


def _gloo_group(options: Any, pg_options: Any = None) -> Any:
    return distributed.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)


def _is_hccl_available() -> bool:
    return True


if distributed.is_available():
    torch.distributed.is_hccl_available = _is_hccl_available
    distributed.Backend.register_backend("hccl", _gloo_group, extended_api=True, devices=["npu", "cpu"])
