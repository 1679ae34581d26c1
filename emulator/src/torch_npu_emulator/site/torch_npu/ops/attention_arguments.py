"""The arguments of the fused attention operators: checked, and brought to the form of `attention_core.Call`."""

from __future__ import annotations

import torch

from torch_npu.ops import attention_limits as limits
from torch_npu.ops.attention_core import UNLIMITED, Call, Sequence


def split_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """[batch, row, heads * D] as [batch, row, heads, D], of strided tensors too."""
    return tensor.view(tensor.shape[0], tensor.shape[1], heads, tensor.shape[2] // heads)


def by_head(op: str, layout: str, name: str, tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """A query, or keys and values that are not paged, as [batch, row, head, channel]; a TND tensor is one batch."""
    dims = 4 if layout in ("BSND", "BNSD", "BNSD_BSND") else 3
    if tensor.dim() != dims:
        raise RuntimeError(f"{op}: layout {layout} takes a {name} of {dims} dimensions, got {tuple(tensor.shape)}")
    if layout == "BSH":
        if tensor.shape[2] % heads:
            raise RuntimeError(f"{op}: {name} {tuple(tensor.shape)} does not divide into {heads} heads")
        return split_heads(tensor, heads)
    view = tensor.unsqueeze(0) if layout == "TND" else tensor.transpose(1, 2) if layout.startswith("BNSD") else tensor
    if view.shape[2] != heads:
        raise RuntimeError(f"{op}: {name} {tuple(tensor.shape)} of layout {layout} must have {heads} heads")
    return view


def paged_keys(tensor: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """The cache as [block, row, head, channel]."""
    return split_heads(tensor, kv_heads) if tensor.dim() == 3 else tensor.transpose(1, 2)


def _per_batch(op: str, name: str, lengths: list[int] | None, batch: int, limit: int) -> list[int]:
    """Lengths of the batch: none given: all ``limit``; one given: the same for all; else the first ``batch``."""
    if lengths is None or len(lengths) == 0:
        return [limit] * batch
    if len(lengths) == 1:
        lengths = list(lengths) * batch
    if len(lengths) < batch:
        raise RuntimeError(f"{op}: {len(lengths)} {name} for a batch of {batch}: one, or one for each")
    for i, length in enumerate(lengths[:batch]):
        if not 0 <= length <= limit:
            raise RuntimeError(f"{op}: {name}: number {i} is {length}, must be from 0 to {limit}")
    return list(lengths[:batch])


def _sequences(
    op: str,
    layout: str,
    queries: torch.Tensor,
    keys: torch.Tensor,
    query_lengths: list[int] | None,
    kv_lengths: list[int] | None,
    paged: bool,
) -> list[Sequence]:
    batch, rows = queries.shape[:2]
    if layout == "TND":
        ends = limits.check_query_ends(op, query_lengths, rows)
        if kv_lengths is None or len(kv_lengths) != len(ends):
            given = "none" if kv_lengths is None else len(kv_lengths)
            raise RuntimeError(f"{op}: layout TND needs as many key lengths as query lengths: {len(ends)}, got {given}")
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        if paged:
            _check_not_negative(op, kv_lengths)
            return [Sequence(0, a, b - a, i, 0, kv_lengths[i]) for i, (a, b) in enumerate(spans)]
        kv_spans = list(zip([0, *kv_lengths[:-1]], kv_lengths, strict=True))
        for i, (a, b) in enumerate(kv_spans):
            if b < a:
                raise RuntimeError(f"{op}: key ends must not decrease: number {i} is {b} after {a}")
        if kv_lengths[-1] > keys.shape[1]:
            raise RuntimeError(f"{op}: the last key end is {kv_lengths[-1]}, there are {keys.shape[1]} keys")
        return [Sequence(0, a, b - a, 0, c, d - c) for (a, b), (c, d) in zip(spans, kv_spans, strict=True)]
    # A query length of 1 takes no query lengths: the argument has no effect then.
    lengths = [rows] * batch if rows == 1 else _per_batch(op, "query lengths", query_lengths, batch, rows)
    if paged:
        if kv_lengths is None or len(kv_lengths) == 0:
            raise RuntimeError(f"{op}: a paged cache needs the key lengths")
        kv = _per_batch(op, "key lengths", kv_lengths, batch, UNLIMITED)
    else:
        if keys.shape[0] != batch:
            raise RuntimeError(f"{op}: keys of batch {keys.shape[0]} with a query of batch {batch}")
        kv = _per_batch(op, "key lengths", kv_lengths, batch, keys.shape[1])
    return [Sequence(i, 0, lengths[i], i, 0, kv[i]) for i in range(batch)]


def _check_not_negative(op: str, lengths: list[int]) -> None:
    for i, length in enumerate(lengths):
        if length < 0:
            raise RuntimeError(f"{op}: key lengths: number {i} is {length}")


def _explicit_mask(op: str, mask: torch.Tensor, batch: int, rows: int, keys: int) -> torch.Tensor:
    """The mask as bool [batch or 1, row, key]; it may be larger than rows and keys (aligned up)."""
    limits.check_mask_dtype(op, mask)
    shape = tuple(mask.shape)
    if mask.dim() == 4:
        if shape[1] != 1:
            raise RuntimeError(f"{op}: atten_mask {shape} must have 1 as its second dimension")
        mask = mask.squeeze(1)
    elif mask.dim() == 2:
        mask = mask.unsqueeze(1) if rows == 1 and shape[0] == batch else mask.unsqueeze(0)
    if mask.dim() != 3 or mask.shape[0] not in (1, batch) or mask.shape[1] < rows or mask.shape[2] < keys:
        raise RuntimeError(f"{op}: atten_mask {shape} does not cover a batch of {batch}, {rows} queries, {keys} keys")
    return mask.bool().contiguous()


def _visibility(
    op: str, call: Call, sparse_mode: int, mask: torch.Tensor | None, pre_tokens: int, next_tokens: int, keys: int
) -> None:
    """Sets which keys a query of ``call`` sees."""
    limits.check_sparse_mode(op, call.layout, sparse_mode, mask)
    batch, rows = call.query.shape[:2]
    if call.layout != "TND" and rows == 1 and sparse_mode >= 2:
        return  # documented: with a query length of 1 the mode has no effect
    if sparse_mode >= 2:
        limits.check_causal_mask(op, sparse_mode, mask)
        call.aligned_at_end = sparse_mode != 2
        call.after = 0
        if sparse_mode == 4:
            if pre_tokens + next_tokens < 0:
                raise RuntimeError(
                    f"{op}: sparse_mode=4: pre_tokens {pre_tokens} + next_tokens {next_tokens} is negative"
                )
            call.before, call.after = min(pre_tokens, UNLIMITED), min(next_tokens, UNLIMITED)
    elif mask is not None:
        call.mask = _explicit_mask(op, mask, batch, rows, keys)
        if sparse_mode == 0 and rows > 1:
            call.before, call.after = min(pre_tokens, UNLIMITED), min(next_tokens, UNLIMITED)


def prepare(
    op: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None,
    query_lengths: list[int] | None,
    kv_lengths: list[int] | None,
    block_table: torch.Tensor | None,
    heads: int,
    kv_heads: int,
    scale: float,
    pre_tokens: int,
    next_tokens: int,
    layout: str,
    sparse_mode: int,
    inner_precise: int,
    block_size: int,
    with_lse: bool,
    sink: torch.Tensor | None,
) -> Call:
    """The call, without its results' memory. Raises for arguments outside the documented limits."""
    if layout not in limits.LAYOUTS:
        raise NotImplementedError(
            f"{op}: input_layout={layout!r} is not modelled; modelled are {', '.join(limits.LAYOUTS)}"
        )
    kv_heads = kv_heads or heads
    if heads < 1 or kv_heads < 1:
        raise RuntimeError(f"{op}: {heads} query heads and {kv_heads} key-value heads")
    limits.check_dtypes(op, query, key, value)
    viewed = by_head(op, layout, "query", query, heads)
    paged = block_table is not None
    if paged:
        limits.check_cache(op, layout, key, value, kv_heads)
        keys, values = paged_keys(key, kv_heads), paged_keys(value, kv_heads)
    else:
        keys = by_head(op, layout, "key", key, kv_heads)
        values = by_head(op, layout, "value", value, kv_heads)
    if keys.shape[:3] != values.shape[:3]:
        raise RuntimeError(f"{op}: key {tuple(key.shape)} and value {tuple(value.shape)} do not belong together")
    size, value_size = viewed.shape[3], values.shape[3]
    if keys.shape[3] != size:
        raise RuntimeError(f"{op}: query heads of {size} channels with key heads of {keys.shape[3]}")
    limits.check_heads(op, layout, heads, kv_heads, size, value_size)
    sequences = _sequences(op, layout, viewed, keys, query_lengths, kv_lengths, paged)
    longest = max((s.query_length for s in sequences), default=0) if layout == "TND" else viewed.shape[1]
    limits.check_inner_precise(op, layout, inner_precise, longest, query.dtype, heads != kv_heads)
    if layout == "BNSD_BSND" and viewed.shape[1] == 1:
        raise RuntimeError(f"{op}: layout BNSD_BSND takes query lengths above 1")
    kv_columns = keys.shape[1]
    if block_table is not None:
        lengths = [s.kv_length for s in sequences]
        limits.check_block_table(op, block_table, len(sequences), keys.shape[1], block_size, lengths, longest)
        kv_columns = block_table.shape[1] * block_size
    if sink is not None:
        limits.check_sink(op, sink, heads, value_size, query.dtype, with_lse)
        sink = sink.float().contiguous()
    nothing = viewed.new_empty(0)  # the memory of the results comes later
    call = Call(
        op,
        layout,
        _with_contiguous_channels(viewed),
        _with_contiguous_channels(keys),
        _with_contiguous_channels(values),
        nothing,
        None,
        scale,
        sequences,
        block_table,
        block_size if paged else 0,
        sparse_mode,
        sink=sink,
        settled_by_shapes=sink is None and (atten_mask is None or sparse_mode >= 2),
    )
    _visibility(op, call, sparse_mode, atten_mask, pre_tokens, next_tokens, kv_columns)
    return call


def _with_contiguous_channels(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
