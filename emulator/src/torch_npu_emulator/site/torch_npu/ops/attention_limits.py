"""The documented limits of the fused attention operators, on an Atlas A2, as far as their arguments are modelled.

Where a limit is documented and where documents disagree: emulator/PROVENANCE.md. A call outside the limits raises: a
program that passes here must not fail on hardware for its shapes.
"""

from __future__ import annotations

import torch

from torch_npu.emulator import settings

MASK_SIZE = 2048  # rows and columns of the mask that sparse modes 2, 3 and 4 demand
MASK_DTYPES = (torch.bool, torch.int8, torch.uint8)
LAYOUTS = ("TND", "BSH", "BSND", "BNSD", "BNSD_BSND")
MAX_TOKENS = 1 << 20


def check_dtypes(op: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            raise NotImplementedError(f"{op}: {name} of {tensor.dtype} with a query of {query.dtype} is not modelled")
    if query.dtype == torch.float32:
        if not settings.FLOAT32_ATTENTION:
            raise RuntimeError(
                f"{op}: query of float32: hardware takes float16 and bfloat16 "
                "(NPU_EMU_FLOAT32_ATTENTION=1 is the emulator's extension for identity tests)"
            )
    elif query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"{op}: query of {query.dtype}: accepted are float16 and bfloat16")


def check_heads(op: str, layout: str, heads: int, kv_heads: int, size: int, value_size: int) -> None:
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise RuntimeError(f"{op}: {heads} query heads are no multiple of {kv_heads} key-value heads")
    if heads // kv_heads > 64:
        raise RuntimeError(f"{op}: {heads} query heads per {kv_heads} key-value heads: at most 64 may share one")
    if heads > 256:
        raise RuntimeError(f"{op}: {heads} query heads: at most 256")
    if size % 16 or value_size % 16 or max(size, value_size) > 512:
        raise RuntimeError(f"{op}: head size {size} (values {value_size}): must be a multiple of 16, at most 512")
    if layout != "TND":
        return
    if size == 512:
        raise NotImplementedError(f"{op}: layout TND with head size 512 (MLA) is not modelled")
    if heads == kv_heads:
        if (size, value_size) not in ((64, 64), (128, 128), (192, 128), (192, 192)):
            raise RuntimeError(f"{op}: layout TND without grouped heads: head size {size} must be 64, 128 or 192")
    elif size != value_size or size > 256:
        raise RuntimeError(
            f"{op}: layout TND with grouped heads: head size {size} must be at most 256, as that of values"
        )


def check_inner_precise(op: str, layout: str, value: int, query_length: int, dtype: torch.dtype, grouped: bool) -> None:
    if value not in (0, 1, 2, 3):
        raise RuntimeError(f"{op}: inner_precise={value}: accepted are 0 to 3")
    if layout == "TND":
        if value != 0 and (grouped or dtype != torch.float16 or value != 1):
            raise RuntimeError(
                f"{op}: inner_precise={value}: layout TND takes 0 (float16 without grouped heads: 0 or 1)"
            )
    elif query_length == 1 and value > 1:
        raise RuntimeError(f"{op}: inner_precise={value}: a query length of 1 takes 0 and 1")


def check_query_ends(op: str, ends: list[int] | None, tokens: int) -> list[int]:
    """TND: cumulative ends of the queries, one per sequence; the last is the number of tokens."""
    if ends is None or len(ends) == 0:
        raise RuntimeError(f"{op}: layout TND needs the query lengths (cumulative ends, one per sequence)")
    if tokens > MAX_TOKENS:
        raise RuntimeError(f"{op}: {tokens} tokens: layout TND takes at most {MAX_TOKENS}")
    if len(ends) > 4096:
        raise RuntimeError(f"{op}: {len(ends)} sequences: layout TND takes at most 4096")
    before = 0
    for i, end in enumerate(ends):
        if end < before:
            raise RuntimeError(f"{op}: query ends must not decrease: number {i} is {end} after {before}")
        before = end
    if before != tokens:
        raise RuntimeError(f"{op}: the last query end is {before}, the query has {tokens} tokens: they must be equal")
    return ends


def check_block_table(
    op: str, table: torch.Tensor, sequences: int, page: int, block_size: int, kv_lengths: list[int], query_length: int
) -> None:
    if table.dtype != torch.int32 or table.dim() != 2:
        raise RuntimeError(f"{op}: block_table {tuple(table.shape)} of {table.dtype} must be two-dimensional int32")
    if table.shape[0] != sequences:
        raise RuntimeError(f"{op}: block_table has {table.shape[0]} rows for {sequences} sequences: one row each")
    if block_size != page:
        raise RuntimeError(f"{op}: block_size={block_size}, but the cache has {page} tokens in a block")
    step = 128 if query_length > 1 else 16
    if block_size % step or not step <= block_size <= 512:
        raise RuntimeError(
            f"{op}: block_size={block_size}: must be a multiple of {step}, at most 512, "
            f"for a query length of {'more than ' if query_length > 1 else ''}1"
        )
    capacity = table.shape[1] * block_size
    for i, length in enumerate(kv_lengths):
        if length > capacity:
            raise RuntimeError(
                f"{op}: sequence {i} has {length} keys, its row of block_table holds "
                f"{table.shape[1]} blocks of {block_size}"
            )


def check_cache(op: str, layout: str, key: torch.Tensor, value: torch.Tensor, kv_heads: int) -> None:
    """The paged cache: [blocks, block_size, heads * D]; for TND and BNSD also [blocks, heads, block_size, D]."""
    if key.shape != value.shape:
        raise RuntimeError(f"{op}: key cache {tuple(key.shape)} and value cache {tuple(value.shape)} must be alike")
    if key.dim() == 3:
        if key.shape[2] % kv_heads:
            raise RuntimeError(f"{op}: cache {tuple(key.shape)} does not divide into {kv_heads} heads")
        if key.shape[2] > 65535:
            raise RuntimeError(
                f"{op}: a cache of [blocks, block_size, heads * D] takes heads * D up to 65535, got {key.shape[2]}"
            )
    elif key.dim() == 4:
        if layout not in ("TND", "BNSD", "BNSD_BSND"):
            raise RuntimeError(f"{op}: layout {layout} takes a cache of [blocks, block_size, heads * D] only")
        if key.shape[1] != kv_heads:
            raise RuntimeError(
                f"{op}: cache {tuple(key.shape)} must be [blocks, heads, block_size, D] with {kv_heads} heads"
            )
    elif key.dim() == 5:
        raise NotImplementedError(f"{op}: a cache in NZ format {tuple(key.shape)} is not modelled")
    else:
        raise RuntimeError(f"{op}: cache {tuple(key.shape)}: accepted are three or four dimensions")


def check_causal_mask(op: str, sparse_mode: int, mask: torch.Tensor | None) -> None:
    """Sparse modes 2, 3, 4: a lower-triangular mask of fixed size stands for the mode; its values are not read."""
    if mask is None:
        raise RuntimeError(f"{op}: sparse_mode={sparse_mode} needs atten_mask of {MASK_SIZE} x {MASK_SIZE}")
    if mask.shape[-2:] != (MASK_SIZE, MASK_SIZE) or mask.numel() != MASK_SIZE**2 or mask.dim() > 4:
        raise RuntimeError(
            f"{op}: sparse_mode={sparse_mode} needs atten_mask of {MASK_SIZE} x {MASK_SIZE}, got {tuple(mask.shape)}"
        )
    check_mask_dtype(op, mask)


def check_mask_dtype(op: str, mask: torch.Tensor) -> None:
    if mask.dtype not in MASK_DTYPES:
        raise RuntimeError(f"{op}: atten_mask of {mask.dtype}: accepted are bool, int8, uint8")


def check_sparse_mode(op: str, layout: str, sparse_mode: int, mask: torch.Tensor | None) -> None:
    if sparse_mode not in (0, 1, 2, 3, 4):
        raise RuntimeError(f"{op}: sparse_mode={sparse_mode}: accepted are 0 to 4")
    if layout == "TND":
        if sparse_mode not in (0, 3, 4):
            raise RuntimeError(f"{op}: sparse_mode={sparse_mode}: layout TND takes 0, 3 and 4")
        if sparse_mode == 0 and mask is not None:
            raise RuntimeError(f"{op}: layout TND with sparse_mode=0 takes no atten_mask")
    if sparse_mode == 1 and mask is None:
        raise RuntimeError(f"{op}: sparse_mode=1 needs atten_mask")


def check_sink(op: str, sink: torch.Tensor, heads: int, value_size: int, query_dtype: torch.dtype, lse: bool) -> None:
    if tuple(sink.shape) != (heads,):
        raise RuntimeError(f"{op}: learnable_sink {tuple(sink.shape)} must be [{heads}]")
    if sink.dtype not in (torch.float16, torch.bfloat16) and sink.dtype != query_dtype:
        raise RuntimeError(f"{op}: learnable_sink of {sink.dtype}: accepted are float16 and bfloat16")
    if value_size not in (64, 128):
        raise RuntimeError(f"{op}: learnable_sink needs values of head size 64 or 128, got {value_size}")
    if lse:
        raise NotImplementedError(f"{op}: the log-sum-exp beside a learnable_sink is not documented and not modelled")
