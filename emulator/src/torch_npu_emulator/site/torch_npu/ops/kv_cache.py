"""Writes of new keys and values into the paged cache."""

from __future__ import annotations

import torch

from torch_npu.ops.registry import emulates


def _write(op: str, source: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """``cache[slot // block_size, slot % block_size] = row`` for every row with a slot that is not negative.

    A negative slot marks a row of padding, as the host writes them; the operators' documents give slots from 0 only.
    source ``[T, heads, D]``; cache ``[blocks, block_size, heads, D]``, possibly a strided view; slots ``[T]``.
    """
    if cache.dim() != 4 or source.dim() != 3 or cache.shape[2:] != source.shape[1:]:
        raise RuntimeError(
            f"{op}: rows {tuple(source.shape)} do not fit a cache {tuple(cache.shape)} "
            "of [blocks, block_size, heads, D]"
        )
    if source.dtype != cache.dtype:
        raise RuntimeError(f"{op}: rows of {source.dtype} for a cache of {cache.dtype}")
    if slots.dim() != 1 or slots.dtype not in (torch.int32, torch.int64) or slots.shape[0] != source.shape[0]:
        raise RuntimeError(
            f"{op}: slots {tuple(slots.shape)} of {slots.dtype} must be one integer per row of {tuple(source.shape)}"
        )
    blocks, block_size = cache.shape[:2]
    slots = slots.long().contiguous()
    if slots.numel() and int(slots.max()) >= blocks * block_size:
        raise RuntimeError(f"{op}: slot {int(slots.max())} is beyond the cache's {blocks} blocks of {block_size}")
    if cache.stride(-1) != 1:
        raise RuntimeError(f"{op}: the channels of the cache must lie side by side, their stride is {cache.stride(-1)}")
    torch.ops.npu_emulator.write_rows(source.contiguous(), cache, slots)


@emulates("npu_scatter_pa_kv_cache", meta=lambda *args, **kwargs: None)
def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    op = "npu_scatter_pa_kv_cache"
    if cache_mode not in (None, "Norm"):
        raise NotImplementedError(f"{op}: cache_mode={cache_mode!r} is not modelled, 'Norm' and None are")
    for name, argument in (
        ("compress_lens", compress_lens),
        ("compress_seq_offsets", compress_seq_offsets),
        ("seq_lens", seq_lens),
    ):
        if argument is not None:
            raise NotImplementedError(f"{op}: {name} is not modelled")
    _write(op, key, key_cache, slot_mapping)
    _write(op, value, value_cache, slot_mapping)


@emulates("_npu_reshape_and_cache", meta=lambda *args: None)
def _npu_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    _write("_npu_reshape_and_cache", key, key_cache, slot_indices)
    _write("_npu_reshape_and_cache", value, value_cache, slot_indices)
