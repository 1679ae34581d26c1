"""Checks of this package's own ops that shapes, dtypes and devices alone can decide, and those that read elements."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import FLOAT_DTYPES, contiguous, same_device
from .errors import violation
from .schemas import ATTENTION_MERGE, ATTENTION_MERGE_STACK, CASCADE_PREFIX, CASCADE_SUFFIX

_FLOAT_NAMES = "torch.bfloat16, torch.float16 or torch.float32"
#: Parts of the keys that one prefix call may make; the tail of the suffix stage reads each.
MAX_SPLITS = 16


def check_partial(op: str, names: tuple[str, str], out: Tensor, lse: Tensor) -> None:
    """``out`` (..., D) of a float type, ``lse`` float32 of the shape before D, any strides, one device."""
    name, lse_name = names
    if out.dim() < 1:
        raise violation(op, f"rank of {name}", out.dim(), "at least 1: (..., head size)")
    if out.dtype not in FLOAT_DTYPES:
        raise violation(op, f"dtype of {name}", out.dtype, _FLOAT_NAMES)
    if lse.dtype != torch.float32:
        raise violation(op, f"dtype of {lse_name}", lse.dtype, torch.float32)
    if lse.shape != out.shape[:-1]:
        expected = f"{tuple(out.shape[:-1])}, the shape of {name} without its last"
        raise violation(op, f"shape of {lse_name}", tuple(lse.shape), expected)
    if out.shape[-1] < 16 or out.shape[-1] % 16:
        raise violation(op, f"head size of {name}", out.shape[-1], "a multiple of 16")
    same_device(op, (name, out), ((lse_name, lse),))


def check_attention_merge(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> None:
    """Raise :class:`OpContractError` for the first rule of ``attention_merge`` that the inputs' metadata break."""
    op = ATTENTION_MERGE
    check_partial(op, ("o1", "lse1"), o1, lse1)
    check_partial(op, ("o2", "lse2"), o2, lse2)
    if o2.shape != o1.shape:
        raise violation(op, "shape of o2", tuple(o2.shape), f"{tuple(o1.shape)}, the shape of o1")
    same_device(op, ("o1", o1), (("o2", o2),))


def check_attention_merge_stack(outs: Tensor, lses: Tensor) -> None:
    """Likewise for ``attention_merge_stack``."""
    op = ATTENTION_MERGE_STACK
    if outs.dim() < 2:
        raise violation(op, "rank of outs", outs.dim(), "at least 2: (parts, ..., head size)")
    check_partial(op, ("outs", "lses"), outs, lses)
    if outs.shape[0] < 1:
        raise violation(op, "number of parts in outs", 0, "at least 1")


def check_merge_result(op: str, out: Tensor, lse: Tensor, first: tuple[str, Tensor], parts: tuple[Tensor, ...]) -> None:
    """``out`` and ``lse`` can take the merge of `parts`, of which each has the shape of ``first``.

    ``out`` may be one of the parts. Any other overlap with one would be read after it was written.
    """
    name, like = first
    check_partial(op, ("out", "lse"), out, lse)
    if out.shape != like.shape:
        raise violation(op, "shape of out", tuple(out.shape), f"{tuple(like.shape)}, that of {name}")
    same_device(op, (name, like), (("out", out),))
    contiguous(op, (("out", out), ("lse", lse)))
    if out.is_meta or torch.compiler.is_compiling() or not out.numel():
        return
    for part in parts:
        same = part.data_ptr() == out.data_ptr() and part.stride() == out.stride() and part.dtype == out.dtype
        if not same and overlap(part, out):
            raise violation(op, "memory of out", "partly an input's", "its own, or exactly an input's")


def merge_results(op: str, like: Tensor, out_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Memory for a merge of partials of the shape of ``like``, in ``out_dtype`` or, where that is None, its own."""
    dtype = out_dtype or like.dtype
    if dtype not in FLOAT_DTYPES:
        raise violation(op, "out_dtype", dtype, _FLOAT_NAMES)
    return like.new_empty(like.shape, dtype=dtype), like.new_empty(like.shape[:-1], dtype=torch.float32)


def overlap(first: Tensor, second: Tensor) -> bool:
    """Whether the memory from the first to the last element of two tensors with elements has bytes in common."""

    def span(tensor: Tensor) -> tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    if not first.numel() or not second.numel():
        return False
    (begin, end), (other_begin, other_end) = span(first), span(second)
    return begin < other_end and other_begin < end


def _check_paged(
    op: str, query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, prefix_length: Tensor
) -> None:
    for name, tensor, rank, layout in (
        ("query", query, 3, "(tokens, query heads, head size)"),
        ("key_cache", key_cache, 4, "(blocks, page size, key-value heads, head size)"),
        ("value_cache", value_cache, 4, "(blocks, page size, key-value heads, head size)"),
        ("block_table", block_table, 2, "(sequences, columns)"),
    ):
        if tensor.dim() != rank:
            raise violation(op, f"rank of {name}", f"{tensor.dim()} (shape {tuple(tensor.shape)})", f"{rank}: {layout}")
    if query.dtype not in FLOAT_DTYPES:
        raise violation(op, "dtype of query", query.dtype, _FLOAT_NAMES)
    for name, tensor in (("key_cache", key_cache), ("value_cache", value_cache)):
        if tensor.dtype != query.dtype:
            raise violation(op, f"dtype of {name}", tensor.dtype, f"{query.dtype}, the dtype of query")
    if value_cache.shape != key_cache.shape:
        raise violation(op, "shape of value_cache", tuple(value_cache.shape), f"{tuple(key_cache.shape)}, that of keys")
    for name, tensor in (("block_table", block_table), ("prefix_length", prefix_length)):
        if tensor.dtype != torch.int32:
            raise violation(op, f"dtype of {name}", tensor.dtype, torch.int32)
    if tuple(prefix_length.shape) != (1,):
        raise violation(op, "shape of prefix_length", tuple(prefix_length.shape), (1,))
    same_device(
        op,
        ("query", query),
        (
            ("key_cache", key_cache),
            ("value_cache", value_cache),
            ("block_table", block_table),
            ("prefix_length", prefix_length),
        ),
    )
    contiguous(op, (("query", query), ("key_cache", key_cache), ("value_cache", value_cache)))
    if block_table.shape[1] > 1 and block_table.stride(1) != 1:
        raise violation(op, "stride of block_table's columns", block_table.stride(1), 1)
    _, heads, head_size = query.shape
    _, page, kv_heads, kv_head_size = key_cache.shape
    if head_size < 16 or head_size % 16:
        raise violation(op, "head size of query", head_size, "a multiple of 16")
    if kv_head_size != head_size:
        raise violation(op, "head size of the caches", kv_head_size, f"{head_size}, the head size of query")
    if page < 16 or page % 16:
        raise violation(op, "page size of the caches", page, "a multiple of 16")
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise violation(op, "number of query heads", heads, f"a positive multiple of the {kv_heads} key-value heads")
    if block_table.shape[1] < 1:
        raise violation(op, "columns of block_table", 0, "at least 1")


def check_cascade_prefix(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    prefix_length: Tensor,
    scale: float,
    splits: int = 1,
) -> tuple[int, int, int, int]:
    """Likewise for ``cascade_prefix``; returns the shape of its ``outs``, (splits, K, T * G, D)."""
    op = CASCADE_PREFIX
    _check_paged(op, query, key_cache, value_cache, block_table, prefix_length)
    if not 1 <= splits <= MAX_SPLITS:
        raise violation(op, "splits", splits, f"1 to {MAX_SPLITS}")
    if block_table.shape[0] < 1:
        raise violation(op, "rows of block_table", 0, "at least 1")
    tokens, heads, head_size = query.shape
    kv_heads = key_cache.shape[2]
    return splits, kv_heads, tokens * (heads // kv_heads), head_size


def check_prefix_results(query: Tensor, shape: tuple[int, ...], outs: Tensor, lses: Tensor) -> None:
    """``outs`` and ``lses`` are what a prefix stage whose ``outs`` has `shape` returns."""
    for name, tensor, expected in (("outs", outs, shape), ("lses", lses, shape[:-1])):
        if tensor.dtype != torch.float32:
            raise violation(CASCADE_PREFIX, f"dtype of {name}", tensor.dtype, torch.float32)
        if tuple(tensor.shape) != expected:
            raise violation(CASCADE_PREFIX, f"shape of {name}", tuple(tensor.shape), expected)
    same_device(CASCADE_PREFIX, ("query", query), (("outs", outs), ("lses", lses)))
    contiguous(CASCADE_PREFIX, (("outs", outs), ("lses", lses)))


def check_suffix_result(query: Tensor, out: Tensor) -> None:
    """``out`` can take the result of a suffix stage with this query."""
    if out.shape != query.shape:
        raise violation(CASCADE_SUFFIX, "shape of out", tuple(out.shape), f"{tuple(query.shape)}, the shape of query")
    if out.dtype not in FLOAT_DTYPES:
        raise violation(CASCADE_SUFFIX, "dtype of out", out.dtype, _FLOAT_NAMES)
    same_device(CASCADE_SUFFIX, ("query", query), (("out", out),))
    contiguous(CASCADE_SUFFIX, (("out", out),))


def check_cascade_suffix(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    sequence_lengths: Tensor,
    prefix_length: Tensor,
    prefix_outs: Tensor,
    prefix_lses: Tensor,
    scale: float,
) -> None:
    """Likewise for ``cascade_suffix``."""
    op = CASCADE_SUFFIX
    _check_paged(op, query, key_cache, value_cache, block_table, prefix_length)
    tokens = query.shape[0]
    if block_table.shape[0] != tokens:
        raise violation(op, "rows of block_table", block_table.shape[0], f"{tokens}, the rows of query")
    if sequence_lengths.dtype != torch.int32:
        raise violation(op, "dtype of sequence_lengths", sequence_lengths.dtype, torch.int32)
    if tuple(sequence_lengths.shape) != (tokens,):
        raise violation(op, "shape of sequence_lengths", tuple(sequence_lengths.shape), f"({tokens},)")
    same_device(op, ("query", query), (("sequence_lengths", sequence_lengths),))
    contiguous(op, (("sequence_lengths", sequence_lengths),))
    check_parts(op, query, key_cache, prefix_outs, prefix_lses)


def check_parts(op: str, query: Tensor, key_cache: Tensor, outs: Tensor, lses: Tensor) -> int:
    """The parts of a prefix stage over ``query`` and ``key_cache``; returns their number."""
    tokens, heads, head_size = query.shape
    kv_heads = key_cache.shape[2]
    rows = tokens * (heads // kv_heads)
    for name, tensor, expected in (
        ("prefix_outs", outs, (kv_heads, rows, head_size)),
        ("prefix_lses", lses, (kv_heads, rows)),
    ):
        if tensor.dtype != torch.float32:
            raise violation(op, f"dtype of {name}", tensor.dtype, torch.float32)
        if tensor.dim() != len(expected) + 1 or tuple(tensor.shape[1:]) != expected:
            raise violation(
                op, f"shape of {name}", tuple(tensor.shape), "(parts, " + ", ".join(map(str, expected)) + ")"
            )
    if outs.shape[0] != lses.shape[0] or not 1 <= outs.shape[0] <= MAX_SPLITS:
        raise violation(
            op, "number of parts in prefix_outs and prefix_lses", f"{outs.shape[0]} and {lses.shape[0]}",
            f"equal, 1 to {MAX_SPLITS}",
        )
    same_device(op, ("query", query), (("prefix_outs", outs), ("prefix_lses", lses)))
    contiguous(op, (("prefix_outs", outs), ("prefix_lses", lses)))
    return int(outs.shape[0])


def page_ids(op: str, row: int, table: Tensor, first: int, last: int, *, blocks: int, page: int) -> Tensor:
    """The pages that hold keys ``first`` to ``last - 1`` (one at least) of a table row, int64; each id is checked."""
    begin, end = first // page, -(-last // page)
    if end > table.shape[0]:
        raise violation(
            op, "columns of block_table", table.shape[0],
            f"at least {end} for the {last} keys of sequence {row} in pages of {page}",
        )
    ids = table[begin:end].to(torch.int64)
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= blocks:
        bad = low if low < 0 else high
        raise violation(op, f"a block id in row {row} of block_table", bad, f"0 to {blocks - 1}")
    return ids
