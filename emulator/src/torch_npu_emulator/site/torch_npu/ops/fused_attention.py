"""``npu_fused_infer_attention_score``, its second version, and their ``.out`` and workspace forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_npu.emulator import oplog, settings
from torch_npu.ops import attention_arguments as arguments_of
from torch_npu.ops.attention_core import UNLIMITED, Call, run
from torch_npu.ops.registry import emulates

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"


def _output_view(layout: str, out: torch.Tensor, heads: int) -> torch.Tensor:
    if layout == "TND":
        return out.unsqueeze(0)
    if layout == "BSH":
        return arguments_of.split_heads(out, heads)
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


def _attention(op: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any) -> Any:
    with_lse = arguments["with_lse"]
    call = arguments_of.prepare(op, query, key, value, **arguments)
    out = query.new_empty(_output_shape(call.layout, call.query, call.value.shape[3]))
    lse = torch.empty(_lse_shape(call.layout, call.query), dtype=torch.float32) if with_lse else torch.zeros(1)
    _compute(call, out, lse if with_lse else None)
    _plan(call, with_lse, query, key, value)
    return out, lse


def _attention_out(
    op: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: list[torch.Tensor], **arguments: Any
) -> Any:
    """The ``.out`` form: writes into ``out = [attention, lse]``. Without the lse flag the second one stays as it is."""
    call = arguments_of.prepare(op, query, key, value, **arguments)
    attention, lse = _checked_out(op, call, query, out, arguments["with_lse"])
    _compute(call, attention, lse if arguments["with_lse"] else None)
    _plan(call, arguments["with_lse"], query, key, value)
    return attention, lse


def _checked_out(
    op: str, call: Call, query: torch.Tensor, out: list[torch.Tensor], with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if len(out) != 2:
        raise RuntimeError(f"{op}.out: out must be [attention, lse], got {len(out)} tensors")
    attention, lse = out
    shape = _output_shape(call.layout, call.query, call.value.shape[3])
    if list(attention.shape) != shape or attention.dtype != query.dtype or not attention.is_contiguous():
        raise RuntimeError(
            f"{op}.out: out[0] {tuple(attention.shape)} of {attention.dtype} must be contiguous "
            f"{shape} of {query.dtype}"
        )
    lse_shape = _lse_shape(call.layout, call.query)
    if with_lse and (list(lse.shape) != lse_shape or lse.dtype != torch.float32 or not lse.is_contiguous()):
        raise RuntimeError(
            f"{op}.out: out[1] {tuple(lse.shape)} of {lse.dtype} must be contiguous {lse_shape} of float32"
        )
    return attention, lse


def _compute(call: Call, out: torch.Tensor, lse: torch.Tensor | None) -> None:
    if call.query_rows() != call.query.shape[0] * call.query.shape[1]:
        # Rows behind a sequence's end belong to nothing: zeros, and the mark of invalid rows.
        out.zero_()
        if lse is not None:
            lse.fill_(float("inf"))
    call.out = _output_view(call.layout, out, call.query.shape[2])
    if lse is not None:
        call.lse = lse.view(1, *lse.shape[:2]) if call.layout == "TND" else lse.squeeze(3).transpose(1, 2)
    run(call)


def _plan(call: Call, with_lse: bool, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Tells the backend what the call came down to, so that further ones of its kind need no Python.

    That is for the form in which a model's layers read the paged cache. A log of calls and faults are made in Python.
    """
    table = call.block_table
    if table is None or call.layout != "TND" or key.dim() != 3 or oplog.active() or settings.ACTIVE_FAULTS:
        return
    in_place = all(tensor.stride(-1) == 1 for tensor in (query, key, value, table))
    if not (in_place and call.settled_by_shapes):
        return
    torch.ops.npu_emulator.plan_attention(
        call.flatten(),
        call.query.shape[2],
        call.key.shape[2],
        call.key.shape[3],
        call.value.shape[3],
        call.scale,
        call.aligned_at_end,
        call.before,
        call.after,
        with_lse,
        *call.kv_bytes(),
    )


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
        viewed = arguments_of.by_head(op, layout, "query", query, heads)
        paged = given["block_table"] is not None
        values = (
            arguments_of.paged_keys(value, kv_heads)
            if paged
            else arguments_of.by_head(op, layout, "value", value, kv_heads)
        )
        lse_shape = _lse_shape(layout, viewed) if given["with_lse"] else [1]
        return (
            query.new_empty(_output_shape(layout, viewed, values.shape[3])),
            query.new_empty(lse_shape, dtype=torch.float32),
        )

    def check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any) -> Any:
        arguments_of.prepare(op, query, key, value, **read(op, **arguments))
        return meta(query, key, value, **arguments)

    @emulates(op, meta=meta, capture=check)
    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any) -> Any:
        return _attention(op, query, key, value, **read(op, **arguments))

    def meta_out(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, out: list[torch.Tensor], **arguments: Any
    ) -> Any:
        return out[0], out[1]

    def check_out(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        workspace: torch.Tensor | None = None,
        out: list[torch.Tensor],
        **arguments: Any,
    ) -> Any:
        given = read(op, **arguments)
        call = arguments_of.prepare(op, query, key, value, **given)
        return _checked_out(op, call, query, out, given["with_lse"])

    @emulates(f"{op}.out", meta=meta_out, capture=check_out)
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
