"""Stand-in for the kernel wheel: the operators of split_batch_kernels, for the emulated NPU.

Importing it gives ``torch.ops.npu.fa_fp32_stage1`` and ``torch.ops.npu.lse_merge`` kernels for npu tensors. Each call
is counted and logged like the device's own operators. ``NPU_EMU_DEVICE_LIMITS=1`` enforces what the device build takes
(head size, page size, dtypes, ...). ``NPU_EMU_KERNELS=reference`` (default) serves the reference operators, ``triton``
this project's Triton kernels in Triton's interpreter (slow: for proof), and ``none`` leaves the package out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

if os.environ.get("NPU_EMU_KERNELS", "reference") == "none":
    raise ModuleNotFoundError(
        "No module named 'ascend_kernel' (left out by NPU_EMU_KERNELS=none)", name="ascend_kernel"
    )

import split_batch_kernels
import torch
from torch_npu import _backend
from torch_npu.emulator import counters, oplog, settings

__emulated__ = True
#: Whether calls beyond the device build's limits are refused here; a user of the wheel asks before it relies on more.
ENFORCES_DEVICE_LIMITS: bool = settings.DEVICE_LIMITS


def _adapt(op: str, implementation: Callable[..., Any]) -> Callable[..., Any]:
    """An operator with the device's limits, and with what a call means for the counters and the log."""

    @functools.wraps(implementation)
    def run(*args: Any, **kwargs: Any) -> Any:
        if settings.DEVICE_LIMITS:
            split_batch_kernels.check_device_limits(op, *args, **kwargs)
        result = implementation(*args, **kwargs)
        if op == split_batch_kernels.STAGE1:
            return _after_stage1(op, result, *args, **kwargs)
        return _after_merge(op, result)

    return run


def _after_stage1(
    op: str,
    result: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_table: torch.Tensor,
    actual_q_seqlens: torch.Tensor,
    actual_kv_seqlens: torch.Tensor,
    q_seqlen_value: int = 0,
) -> Any:
    if q_seqlen_value == 0:
        # Without a uniform length the device build pulls both length tensors to the host, and waits for each.
        torch.npu.current_stream().synchronize()
        torch.npu.current_stream().synchronize()
    page = key.shape[1]
    kv_lengths = actual_kv_seqlens.tolist()
    row_bytes = (key.shape[3] + value.shape[3]) * key.shape[2] * key.element_size()
    token_bytes = sum(kv_lengths) * row_bytes
    page_bytes = sum(-(-length // page) for length in kv_lengths) * page * row_bytes
    counters.add_kv_bytes(token_bytes, page_bytes)
    if settings.fault("lse_shift"):
        result[1].add_(3.0)
    if oplog.active():
        oplog.write(
            op,
            layout="TND",
            query_rows=query.shape[0],
            query_lengths=actual_q_seqlens.tolist(),
            kv_lengths=kv_lengths,
            paged=True,
            kv_bytes=(token_bytes, page_bytes),
            lse=True,
        )
    return result


def _after_merge(op: str, result: torch.Tensor) -> torch.Tensor:
    if oplog.active():
        oplog.write(op, layout="rows", query_rows=result.shape[:-1].numel())
    return result


def _capture_stage1(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_table: torch.Tensor,
    actual_q_seqlens: torch.Tensor,
    actual_kv_seqlens: torch.Tensor,
    q_seqlen_value: int = 0,
) -> Any:
    """Stage 1 in a capture: its shapes, unless it would read its lengths on the host."""
    if q_seqlen_value == 0:
        raise RuntimeError(
            f"{split_batch_kernels.STAGE1} with q_seqlen_value=0 while a graph is captured: it reads the lengths on "
            "the host, and waits for the device; give the uniform query length"
        )
    # The tensors hold no data here: the call goes to the operator's shape function.
    return torch.ops.npu.fa_fp32_stage1(
        query, key, value, block_table, actual_q_seqlens, actual_kv_seqlens, q_seqlen_value
    )


# It runs under the emulation's key, on CPU tensors that share the memory of the call's npu tensors.
split_batch_kernels.register(
    "PrivateUse2",
    _adapt,
    implementation=os.environ.get("NPU_EMU_KERNELS", "reference"),
    ops=split_batch_kernels.SCHEMAS,
)
# The log is written in Python, and so are the device's limits checked.
_backend.use_direct_form(
    split_batch_kernels.MERGE,
    os.environ.get("NPU_EMU_KERNELS", "reference") == "reference" and not (oplog.active() or settings.DEVICE_LIMITS),
)
_library = torch.library.Library("npu", "FRAGMENT")
_library.impl("fa_fp32_stage1", _capture_stage1, "PrivateUse3")
for _op in split_batch_kernels.SCHEMAS:
    _backend.bind(*_op.split("::"))
