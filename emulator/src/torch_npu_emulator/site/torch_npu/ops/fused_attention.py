"""``npu_fused_infer_attention_score``, its second version, and their ``.out`` and workspace forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_npu.ops import attention_limits as limits
from torch_npu.ops.attention_core import UNLIMITED, Call, Sequence, run
from torch_npu.ops.registry import emulates

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"


def _split_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """[batch, row, heads * D] as [batch, row, heads, D], of strided tensors too."""
    return tensor.view(tensor.shape[0], tensor.shape[1], heads, tensor.shape[2] // heads)


def _queries(op: str, layout: str, query: torch.Tensor, heads: int) -> torch.Tensor:
    """The query as [batch, row, head, channel]; a TND query is one batch."""
    dims = 4 if layout in ("BSND", "BNSD", "BNSD_BSND") else 3
    if query.dim() != dims:
        raise RuntimeError(f"{op}: layout {layout} takes a query of {dims} dimensions, got {tuple(query.shape)}")
    if layout == "BSH":
        if query.shape[2] % heads:
            raise RuntimeError(f"{op}: query {tuple(query.shape)} does not divide into {heads} heads")
        return _split_heads(query, heads)
    view = query.unsqueeze(0) if layout == "TND" else query.transpose(1, 2) if layout.startswith("BNSD") else query
    if view.shape[2] != heads:
        raise RuntimeError(f"{op}: query {tuple(query.shape)} of layout {layout} must have {heads} heads")
    return view


def _dense_keys(op: str, layout: str, name: str, tensor: torch.Tensor, kv_heads: int) -> torch.Tensor:
    dims = 4 if layout in ("BSND", "BNSD", "BNSD_BSND") else 3
    if tensor.dim() != dims:
        raise RuntimeError(f"{op}: layout {layout} takes a {name} of {dims} dimensions, got {tuple(tensor.shape)}")
    if layout == "BSH":
        if tensor.shape[2] % kv_heads:
            raise RuntimeError(f"{op}: {name} {tuple(tensor.shape)} does not divide into {kv_heads} heads")
        return _split_heads(tensor, kv_heads)
    view = tensor.unsqueeze(0) if layout == "TND" else tensor.transpose(1, 2) if layout.startswith("BNSD") else tensor
    if view.shape[2] != kv_heads:
        raise RuntimeError(f"{op}: {name} {tuple(tensor.shape)} of layout {layout} must have {kv_heads} heads")
    return view


def _paged_keys(tensor: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """The cache as [block, row, head, channel]."""
    return _split_heads(tensor, kv_heads) if tensor.dim() == 3 else tensor.transpose(1, 2)


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


def _output_view(layout: str, out: torch.Tensor, heads: int) -> torch.Tensor:
    if layout == "TND":
        return out.unsqueeze(0)
    if layout == "BSH":
        return _split_heads(out, heads)
    return out.transpose(1, 2) if layout == "BNSD" else out


def _output_shape(layout: str, queries: torch.Tensor, value_size: int) -> list[int]:
    batch, rows, heads = queries.shape[:3]
    return {
        "TND": [rows, heads, value_size],
        "BSH": [batch, rows, heads * value_size],
        "BNSD": [batch, heads, rows, value_size],
    }.get(layout, [batch, rows, heads, value_size])


def _lse_shape(layout: str, queries: torch.Tensor) -> list[int]:
    batch, rows, heads = queries.shape[:3]
    return [rows, heads, 1] if layout == "TND" else [batch, heads, rows, 1]


def _prepare(
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
    """Checks the arguments against the documented limits; returns the call without its results' memory."""
    if layout not in limits.LAYOUTS:
        raise NotImplementedError(
            f"{op}: input_layout={layout!r} is not modelled; modelled are {', '.join(limits.LAYOUTS)}"
        )
    kv_heads = kv_heads or heads
    if heads < 1 or kv_heads < 1:
        raise RuntimeError(f"{op}: {heads} query heads and {kv_heads} key-value heads")
    limits.check_dtypes(op, query, key, value)
    queries = _queries(op, layout, query, heads)
    paged = block_table is not None
    if paged:
        limits.check_cache(op, layout, key, value, kv_heads)
        keys, values = _paged_keys(key, kv_heads), _paged_keys(value, kv_heads)
    else:
        keys = _dense_keys(op, layout, "key", key, kv_heads)
        values = _dense_keys(op, layout, "value", value, kv_heads)
    if keys.shape[:3] != values.shape[:3]:
        raise RuntimeError(f"{op}: key {tuple(key.shape)} and value {tuple(value.shape)} do not belong together")
    size, value_size = queries.shape[3], values.shape[3]
    if keys.shape[3] != size:
        raise RuntimeError(f"{op}: query heads of {size} channels with key heads of {keys.shape[3]}")
    limits.check_heads(op, layout, heads, kv_heads, size, value_size)
    sequences = _sequences(op, layout, queries, keys, query_lengths, kv_lengths, paged)
    longest = max((s.query_length for s in sequences), default=0) if layout == "TND" else queries.shape[1]
    limits.check_inner_precise(op, layout, inner_precise, longest, query.dtype, heads != kv_heads)
    if layout == "BNSD_BSND" and queries.shape[1] == 1:
        raise RuntimeError(f"{op}: layout BNSD_BSND takes query lengths above 1")
    kv_columns = keys.shape[1]
    if block_table is not None:
        lengths = [s.kv_length for s in sequences]
        limits.check_block_table(op, block_table, len(sequences), keys.shape[1], block_size, lengths, longest)
        kv_columns = block_table.shape[1] * block_size
    if sink is not None:
        limits.check_sink(op, sink, heads, value_size, query.dtype, with_lse)
        sink = sink.float().contiguous()
    nothing = queries.new_empty(0)  # the memory of the results comes later
    call = Call(
        op,
        layout,
        _with_contiguous_channels(queries),
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
    )
    _visibility(op, call, sparse_mode, atten_mask, pre_tokens, next_tokens, kv_columns)
    return call


def _with_contiguous_channels(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _covers_all_rows(call: Call) -> bool:
    """Whether every query row belongs to a sequence, so that it will be written."""
    return sum(s.query_length for s in call.sequences) == int(call.query.shape[0] * call.query.shape[1])


def _attention(op: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any) -> Any:
    with_lse = arguments["with_lse"]
    call = _prepare(op, query, key, value, **arguments)
    out = query.new_empty(_output_shape(call.layout, call.query, call.value.shape[3]))
    lse = torch.empty(_lse_shape(call.layout, call.query), dtype=torch.float32) if with_lse else torch.zeros(1)
    _compute(call, out, lse if with_lse else None)
    return out, lse


def _attention_out(
    op: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: list[torch.Tensor], **arguments: Any
) -> Any:
    """The ``.out`` form: writes into ``out = [attention, lse]``. Without the lse flag the second one stays as it is."""
    call = _prepare(op, query, key, value, **arguments)
    if len(out) != 2:
        raise RuntimeError(f"{op}.out: out must be [attention, lse], got {len(out)} tensors")
    attention, lse = out
    shape = _output_shape(call.layout, call.query, call.value.shape[3])
    if list(attention.shape) != shape or attention.dtype != query.dtype or not attention.is_contiguous():
        raise RuntimeError(
            f"{op}.out: out[0] {tuple(attention.shape)} of {attention.dtype} must be contiguous "
            f"{shape} of {query.dtype}"
        )
    with_lse = arguments["with_lse"]
    lse_shape = _lse_shape(call.layout, call.query)
    if with_lse and (list(lse.shape) != lse_shape or lse.dtype != torch.float32 or not lse.is_contiguous()):
        raise RuntimeError(
            f"{op}.out: out[1] {tuple(lse.shape)} of {lse.dtype} must be contiguous {lse_shape} of float32"
        )
    _compute(call, attention, lse if with_lse else None)
    return attention, lse


def _compute(call: Call, out: torch.Tensor, lse: torch.Tensor | None) -> None:
    if not _covers_all_rows(call):
        # Rows behind a sequence's end belong to nothing: zeros, and the mark of invalid rows.
        out.zero_()
        if lse is not None:
            lse.fill_(float("inf"))
    call.out = _output_view(call.layout, out, call.query.shape[2])
    if lse is not None:
        call.lse = lse.view(1, *lse.shape[:2]) if call.layout == "TND" else lse.squeeze(3).transpose(1, 2)
    run(call)


def _refuse_others(op: str, others: dict[str, Any], defaults: dict[str, Any]) -> None:
    for name, value in others.items():
        if value != defaults.get(name) if name in defaults else value is not None:
            raise NotImplementedError(f"{op}: the argument {name} is not modelled")


_V1_DEFAULTS = {"antiquant_mode": 0, "key_antiquant_mode": 0, "value_antiquant_mode": 0}
_V2_DEFAULTS = {"query_quant_mode": 0, "key_quant_mode": 0, "value_quant_mode": 0}


def _v1_arguments(
    op: str,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: list[int] | None = None,
    actual_seq_lengths_kv: list[int] | None = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    **others: Any,
) -> dict[str, Any]:
    _refuse_others(op, others, _V1_DEFAULTS)
    return {
        "atten_mask": atten_mask,
        "query_lengths": actual_seq_lengths,
        "kv_lengths": actual_seq_lengths_kv,
        "block_table": block_table,
        "heads": num_heads,
        "kv_heads": num_key_value_heads,
        "scale": scale,
        "pre_tokens": pre_tokens,
        "next_tokens": next_tokens,
        "layout": input_layout,
        "sparse_mode": sparse_mode,
        "inner_precise": inner_precise,
        "block_size": block_size,
        "with_lse": softmax_lse_flag,
        "sink": None,
    }


def _v2_arguments(
    op: str,
    *,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    num_query_heads: int = 1,
    softmax_scale: float = 1.0,
    return_softmax_lse: bool = False,
    learnable_sink: torch.Tensor | None = None,
    **others: Any,
) -> dict[str, Any]:
    """The second version renames arguments of the first and adds the sink."""
    shared = {"atten_mask", "block_table", "pre_tokens", "next_tokens", "input_layout", "num_key_value_heads"}
    shared |= {"sparse_mode", "inner_precise", "block_size"}
    kept = {name: others.pop(name) for name in shared if name in others}
    _refuse_others(op, others, _V2_DEFAULTS)
    arguments = _v1_arguments(
        op,
        actual_seq_lengths=actual_seq_qlen,
        actual_seq_lengths_kv=actual_seq_kvlen,
        num_heads=num_query_heads,
        scale=softmax_scale,
        softmax_lse_flag=return_softmax_lse,
        **kept,
    )
    arguments["sink"] = learnable_sink
    return arguments


def _register(op: str, read: Callable[..., dict[str, Any]]) -> None:
    def meta(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any) -> Any:
        given = read(op, **arguments)
        layout, heads, kv_heads = given["layout"], given["heads"], given["kv_heads"] or given["heads"]
        queries = _queries(op, layout, query, heads)
        paged = given["block_table"] is not None
        values = _paged_keys(value, kv_heads) if paged else _dense_keys(op, layout, "value", value, kv_heads)
        lse_shape = _lse_shape(layout, queries) if given["with_lse"] else [1]
        return (
            query.new_empty(_output_shape(layout, queries, values.shape[3])),
            query.new_empty(lse_shape, dtype=torch.float32),
        )

    @emulates(op, meta=meta)
    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any) -> Any:
        return _attention(op, query, key, value, **read(op, **arguments))

    def meta_out(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, out: list[torch.Tensor], **arguments: Any
    ) -> Any:
        return out[0], out[1]

    @emulates(f"{op}.out", meta=meta_out)
    def attention_out(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        workspace: torch.Tensor | None = None,
        out: list[torch.Tensor],
        **arguments: Any,
    ) -> Any:
        return _attention_out(op, query, key, value, out, **read(op, **arguments))

    def workspace_size(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any) -> torch.Tensor:
        read(op, **arguments)
        return query.new_empty(1, dtype=torch.uint8)  # the backend needs none

    emulates(f"_{op}_get_max_workspace", meta=workspace_size)(workspace_size)


_register(V1, _v1_arguments)
_register(V2, _v2_arguments)
