"""Checks shared by the implementations: everything that shapes, dtypes and devices alone can decide.

They look at metadata only, so the Meta implementation runs them too, and reading no tensor element they cost a device
no synchronisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import violation
from .schemas import LSE_REPLICAS, MERGE, OUT_AS_FIRST, OUT_BFLOAT16, OUT_FLOAT32, STAGE1

FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_FLOAT_NAMES = "torch.bfloat16, torch.float16 or torch.float32"


def _shape(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape)


def same_device(op: str, first: tuple[str, Tensor], others: tuple[tuple[str, Tensor], ...]) -> None:
    name, reference = first
    for other, tensor in others:
        if tensor.device != reference.device:
            raise violation(op, f"device of {other}", tensor.device, f"{reference.device}, the device of {name}")


def contiguous(op: str, tensors: tuple[tuple[str, Tensor], ...]) -> None:
    for name, tensor in tensors:
        if not tensor.is_contiguous():
            raise violation(
                op, f"{name}", f"not contiguous (shape {_shape(tensor)}, stride {tensor.stride()})", "contiguous"
            )


def check_stage1(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_table: Tensor,
    actual_q_seqlens: Tensor,
    actual_kv_seqlens: Tensor,
    q_seqlen_value: int,
) -> None:
    """Raise :class:`OpContractError` for the first rule of ``fa_fp32_stage1`` that the arguments' metadata break."""
    op = STAGE1
    for name, tensor, rank, layout in (
        ("query", query, 3, "(tokens, query heads, head size)"),
        ("key", key, 4, "(blocks, page size, key-value heads, head size)"),
        ("value", value, 4, "(blocks, page size, key-value heads, head size)"),
        ("block_table", block_table, 2, "(sequences, columns)"),
        ("actual_q_seqlens", actual_q_seqlens, 1, "(sequences,)"),
        ("actual_kv_seqlens", actual_kv_seqlens, 1, "(sequences,)"),
    ):
        if tensor.dim() != rank:
            raise violation(op, f"rank of {name}", f"{tensor.dim()} (shape {_shape(tensor)})", f"{rank}: {layout}")
    if query.dtype not in FLOAT_DTYPES:
        raise violation(op, "dtype of query", query.dtype, _FLOAT_NAMES)
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            raise violation(op, f"dtype of {name}", tensor.dtype, f"{query.dtype}, the dtype of query")
    if block_table.dtype != torch.int32:
        raise violation(op, "dtype of block_table", block_table.dtype, torch.int32)
    for name, tensor in (("actual_q_seqlens", actual_q_seqlens), ("actual_kv_seqlens", actual_kv_seqlens)):
        if tensor.dtype != torch.int64:
            raise violation(op, f"dtype of {name}", tensor.dtype, torch.int64)
    arguments = (
        ("key", key),
        ("value", value),
        ("block_table", block_table),
        ("actual_q_seqlens", actual_q_seqlens),
        ("actual_kv_seqlens", actual_kv_seqlens),
    )
    same_device(op, ("query", query), arguments)
    contiguous(op, (("query", query), *arguments))
    if key.shape != value.shape:
        raise violation(op, "shape of value", _shape(value), f"{_shape(key)}, the shape of key")

    tokens, heads, head_size = query.shape
    _, page, kv_heads, kv_head_size = key.shape
    if head_size < 16 or head_size % 16:
        raise violation(op, "head size of query", head_size, "a multiple of 16")
    if kv_head_size != head_size:
        raise violation(op, "head size of key and value", kv_head_size, f"{head_size}, the head size of query")
    if page < 16 or page % 16:
        raise violation(op, "page size of key and value", page, "a multiple of 16")
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise violation(
            op, "number of query heads", heads, f"a positive multiple of the {kv_heads} key-value heads"
        )
    sequences = block_table.shape[0]
    for name, tensor in (("actual_q_seqlens", actual_q_seqlens), ("actual_kv_seqlens", actual_kv_seqlens)):
        if tensor.shape[0] != sequences:
            raise violation(op, f"length of {name}", tensor.shape[0], f"{sequences}, the rows of block_table")
    if q_seqlen_value < 0:
        raise violation(op, "q_seqlen_value", q_seqlen_value, "0 (lengths are read) or the length of every query")
    if tokens == 0:
        return
    if sequences == 0:
        raise violation(op, "number of sequences in block_table", 0, f"at least 1 for {tokens} query rows")
    if q_seqlen_value > 0 and tokens != sequences * q_seqlen_value:
        raise violation(
            op,
            "number of query rows",
            tokens,
            f"{sequences * q_seqlen_value}: {sequences} sequences of q_seqlen_value {q_seqlen_value}",
        )
    if block_table.shape[1] < 1:
        raise violation(op, "columns of block_table", 0, "at least 1")


def check_merge(o1: Tensor, o2: Tensor, lse1: Tensor, lse2: Tensor, out_code: int) -> tuple[int, int]:
    """Raise for the first rule of ``lse_merge`` that is broken; return the values per row of ``lse1`` and ``lse2``.

    They are 1 (compact) or 8 (replicated, as stage 1 writes them); for an empty partial they are 1.
    """
    op = MERGE
    for name, tensor in (("o1", o1), ("o2", o2)):
        if tensor.dim() < 1:
            raise violation(op, f"rank of {name}", tensor.dim(), "at least 1: (..., head size)")
        if tensor.dtype not in FLOAT_DTYPES:
            raise violation(op, f"dtype of {name}", tensor.dtype, _FLOAT_NAMES)
    for name, tensor in (("lse1", lse1), ("lse2", lse2)):
        if tensor.dtype != torch.float32:
            raise violation(op, f"dtype of {name}", tensor.dtype, torch.float32)
    arguments = (("o2", o2), ("lse1", lse1), ("lse2", lse2))
    same_device(op, ("o1", o1), arguments)
    contiguous(op, (("o1", o1), *arguments))
    head_size = o1.shape[-1]
    if head_size < 16 or head_size % 16:
        raise violation(op, "head size of o1", head_size, "a multiple of 16")
    if o2.shape[-1] != head_size:
        raise violation(op, "head size of o2", o2.shape[-1], f"{head_size}, the head size of o1")
    if o2.numel() != o1.numel():
        raise violation(
            op, "number of rows of o2", f"{o2.numel() // head_size} (shape {_shape(o2)})",
            f"{o1.numel() // head_size}, the rows of o1 (shape {_shape(o1)})",
        )
    if out_code not in (OUT_AS_FIRST, OUT_BFLOAT16, OUT_FLOAT32):
        raise violation(op, "out_code", out_code, "0 (the dtype of o1), 1 (torch.bfloat16) or 2 (torch.float32)")
    rows = o1.numel() // head_size
    strides = []
    for name, tensor in (("lse1", lse1), ("lse2", lse2)):
        if tensor.numel() == rows:
            strides.append(1)
        elif tensor.numel() == rows * LSE_REPLICAS:
            strides.append(LSE_REPLICAS)
        else:
            raise violation(
                op,
                f"number of values in {name}",
                f"{tensor.numel()} (shape {_shape(tensor)})",
                f"{rows} (one per row) or {rows * LSE_REPLICAS} ({LSE_REPLICAS} copies per row)",
            )
    return strides[0], strides[1]


def merge_dtype(o1: Tensor, out_code: int) -> torch.dtype:
    """The dtype of the merged output for an ``out_code`` that :func:`check_merge` has passed."""
    return (o1.dtype, torch.bfloat16, torch.float32)[out_code]
