"""The ops of split_batch_kernels' own cascade, ``torch.ops.split_batch.cascade_prefix`` and the rest, on npu tensors.

On hardware they are Triton kernels, compiled by triton-ascend; no kernel wheel takes part. Here
``NPU_EMU_KERNELS=reference`` (default) serves their CPU reference, ``triton`` the kernels themselves in Triton's
interpreter, and ``none`` nothing, as where triton-ascend is not installed. Calls are counted and logged like the
device's own operators, and ``NPU_EMU_DEVICE_LIMITS=1`` enforces what the device build takes.
"""

from __future__ import annotations

import functools
import importlib
import os
import types
from collections.abc import Callable
from typing import Any

import torch

from torch_npu import _backend
from torch_npu.emulator import counters, oplog, settings
from torch_npu.host import triton_kernels
from torch_npu.host.import_hooks import after_import


def _serve(_: types.ModuleType) -> None:
    # The package itself is still being imported.
    limits, registration, schemas = (
        importlib.import_module(f"split_batch_kernels.{name}") for name in ("limits", "registration", "schemas")
    )
    kernels = os.environ.get("NPU_EMU_KERNELS", "reference")
    if kernels == "none":
        return

    def adapt(op: str, implementation: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(implementation)
        def run(*args: Any, **kwargs: Any) -> Any:
            name = op.removesuffix(".out")
            if settings.DEVICE_LIMITS:
                limits.check_device_limits(name, *args, **{k: v for k, v in kwargs.items() if k not in _RESULTS})
            result = implementation(*args, **kwargs)
            _ACCOUNTS.get(name, _account_merge)(name, *args)
            return result

        return run

    # Under the emulation's key, on CPU tensors that share the memory of the call's npu tensors.
    registration.register("PrivateUse2", adapt, implementation=kernels, ops=schemas.OWN_SCHEMAS)
    for op in schemas.OWN_SCHEMAS:
        _backend.bind(*op.split("::"))


_RESULTS = frozenset({"out", "outs", "lse", "lses", "out_dtype"})


def _row_bytes(key: torch.Tensor) -> int:
    """Keys and values of one token, in bytes."""
    return int(2 * key.shape[2] * key.shape[3] * key.element_size())


def _account(op: str, rows: int, query_lengths: list[int], begin: int, ends: list[int], key: torch.Tensor) -> None:
    """Counts and logs one attention call whose sequences read keys ``begin`` to ``end - 1`` each."""
    page, row_bytes = key.shape[1], _row_bytes(key)
    lengths = [max(0, end - begin) for end in ends]
    pages = sum(-(-end // page) - begin // page for end in ends if end > begin)
    kv_bytes = sum(lengths) * row_bytes, pages * page * row_bytes
    counters.add_kv_bytes(*kv_bytes)
    if oplog.active():
        oplog.write(
            op,
            layout="TND",
            query_rows=rows,
            query_lengths=query_lengths,
            kv_lengths=lengths,
            paged=True,
            kv_bytes=kv_bytes,
            lse=op.endswith("prefix"),
        )


def _account_prefix(op: str, *args: Any) -> None:
    query, key, _, _, prefix_length = args[:5]
    rows = query.shape[0]
    _account(op, rows, [rows], 0, [int(prefix_length)], key)


def _account_suffix(op: str, *args: Any) -> None:
    query, key, _, _, sequence_lengths, prefix_length = args[:6]
    rows = query.shape[0]
    _account(op, rows, [1] * rows, int(prefix_length), sequence_lengths.tolist(), key)


def _account_merge(op: str, *args: Any) -> None:
    if oplog.active():
        out = args[0][0] if op.endswith("stack") else args[0]
        oplog.write(op, layout="rows", query_rows=out.shape[:-1].numel())


_ACCOUNTS = {"split_batch::cascade_prefix": _account_prefix, "split_batch::cascade_suffix": _account_suffix}


def install() -> None:
    if os.environ.get("NPU_EMU_KERNELS") == "triton":
        # The host leaves empty modules in place of parts of Triton that the interpreter needs.
        triton_kernels.import_gluon_early()
    after_import("split_batch_kernels.definitions", _serve)
