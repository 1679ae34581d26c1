"""One layer's decode attention in two stages and a merge.

With P shared keys A and a request's own keys C, softmax attention over A and C together is the merge of the two partial
results by their log-sum-exp: O = (e^L_A O_A + e^L_C O_C) / (e^L_A + e^L_C). A decode query lies behind every key of A,
so the prefix stage needs no mask and can treat the rows of all requests as one sequence that reads A once.
The merge kernel treats a non-finite L as an empty part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .step_plan import StepPlan

#: `npu::lse_merge` output type: that of the first partial result, or bfloat16.
OUT_AS_FIRST, OUT_BFLOAT16 = 0, 1


@dataclass(frozen=True)
class Heads:
    """A layer's attention shape: query heads, KV heads, elements per head, factor on the logits."""

    query: int
    kv: int
    size: int
    scale: float


def attend(
    ops: Any,
    query: Any,
    key_cache: Any,
    value_cache: Any,
    plan: StepPlan,
    heads: Heads,
    *,
    causal_mask: Any,
    fp32_prefix: bool,
) -> Any:
    """Two-stage decode attention of one layer.

    Args:
        ops: the `npu` op namespace (`torch.ops.npu`).
        query: device tensor [T, H, D], one row per request.
        key_cache, value_cache: device tensors [blocks, block size, K, D], the host's paged cache.
        plan: the step's split.
        heads: H, K, D and the scale.
        causal_mask: the host's mask for its own decode call, passed on to the suffix stage.
        fp32_prefix: run the prefix stage through `fa_fp32_stage1` (float32 result).

    Returns:
        Device tensor [T, H, D]: of the query's type, or bfloat16 with `fp32_prefix`.
    """
    if fp32_prefix:
        prefix_out, prefix_lse = _prefix_fp32(ops, query, key_cache, value_cache, plan)
    else:
        prefix_out, prefix_lse = _fused(
            ops,
            query,
            key_cache,
            value_cache,
            plan,
            heads,
            block_table=plan.prefix_table,
            query_ends=[plan.rows],
            kv_lengths=[plan.prefix_tokens],
            mask=None,
        )
    suffix_out, suffix_lse = _fused(
        ops,
        query,
        key_cache,
        value_cache,
        plan,
        heads,
        block_table=plan.suffix_table,
        query_ends=plan.query_ends,
        kv_lengths=plan.suffix_lengths,
        mask=causal_mask,
    )
    merged = ops.lse_merge(
        prefix_out.view(plan.rows, heads.query, heads.size),
        suffix_out.view(plan.rows, heads.query, heads.size),
        prefix_lse,
        suffix_lse,
        OUT_BFLOAT16 if fp32_prefix else OUT_AS_FIRST,
    )
    plan.layers_done += 1
    return merged


def _fused(
    ops: Any,
    query: Any,
    key_cache: Any,
    value_cache: Any,
    plan: StepPlan,
    heads: Heads,
    *,
    block_table: Any,
    query_ends: list[int],
    kv_lengths: list[int],
    mask: Any,
) -> tuple[Any, Any]:
    """The host's fused attention over paged KV with its LSE: out [T, H, D], lse float32 [T, H, 1] (natural log).

    Lengths: cumulative query ends, but KV lengths per sequence; cumulative ones read out of range when KV is paged.
    `sparse_mode` 3 (right-down causal) goes with the host's mask, 0 without one attends to everything.
    """
    blocks = key_cache.shape[0]
    out, lse = ops.npu_fused_infer_attention_score(
        query,
        key_cache.view(blocks, plan.block_size, -1),
        value_cache.view(blocks, plan.block_size, -1),
        atten_mask=mask,
        block_table=block_table,
        input_layout="TND",
        block_size=plan.block_size,
        actual_seq_lengths=query_ends,
        actual_seq_lengths_kv=kv_lengths,
        num_key_value_heads=heads.kv,
        num_heads=heads.query,
        scale=heads.scale,
        sparse_mode=0 if mask is None else 3,
        softmax_lse_flag=True,
    )
    return out, lse


def _prefix_fp32(ops: Any, query: Any, key_cache: Any, value_cache: Any, plan: StepPlan) -> tuple[Any, Any]:
    """`fa_fp32_stage1` over the prefix: out float32 [T, H, D], lse float32 [T*H*8], every row's value eight times.

    The uniform form (last argument T) needs no look at device-side lengths, hence no synchronisation. Its scale is
    1/sqrt(D); the caller has checked the layer's.
    """
    if plan.lengths_on_device is None:
        plan.lengths_on_device = (
            _int64(query, [plan.rows]),
            _int64(query, [plan.prefix_tokens]),
        )
    query_lengths, kv_lengths = plan.lengths_on_device
    out, lse = ops.fa_fp32_stage1(
        query.contiguous(), key_cache, value_cache, plan.prefix_table, query_lengths, kv_lengths, plan.rows
    )
    return out, lse


def _int64(like: Any, values: list[int]) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int64).to(like.device, non_blocking=True)
