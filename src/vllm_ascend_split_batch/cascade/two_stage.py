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


def prefix_stage(
    ops: Any, query: Any, key_cache: Any, value_cache: Any, plan: StepPlan, heads: Heads
) -> tuple[Any, Any]:
    """The shared prefix, read once for the rows of all requests: out [T, H, D], lse float32 [T, H, 1].

    Args:
        ops: the `npu` op namespace (`torch.ops.npu`).
        query: device tensor [T, H, D], one row per request.
        key_cache, value_cache: device tensors [blocks, block size, K, D], the host's paged cache.
        plan: the step's split. heads: H, K, D and the scale.
    """
    return fused(
        ops,
        query,
        key_cache,
        value_cache,
        heads,
        block_size=plan.block_size,
        block_table=plan.prefix_table,
        query_ends=[plan.rows],
        kv_lengths=[plan.prefix_tokens],
        mask=None,
    )


def suffix_stage(
    ops: Any, query: Any, key_cache: Any, value_cache: Any, plan: StepPlan, heads: Heads, causal_mask: Any
) -> tuple[Any, Any]:
    """Every row's own keys behind the prefix: out [T, H, D], lse float32 [T, H, 1].

    Args:
        causal_mask: the host's mask for its own decode call, passed on.
    """
    return fused(
        ops,
        query,
        key_cache,
        value_cache,
        heads,
        block_size=plan.block_size,
        block_table=plan.suffix_table,
        query_ends=plan.query_ends,
        kv_lengths=plan.suffix_lengths,
        mask=causal_mask,
    )


def fused(
    ops: Any,
    query: Any,
    key_cache: Any,
    value_cache: Any,
    heads: Heads,
    *,
    block_size: int,
    block_table: Any,
    query_ends: list[int],
    kv_lengths: list[int],
    mask: Any,
) -> tuple[Any, Any]:
    """The host's fused attention over paged KV with its LSE: out [T, H, D], lse float32 [T, H, 1] (natural log).

    Lengths: cumulative query ends, but KV lengths per sequence; cumulative ones read out of range when KV is paged.
    """
    arguments = fused_arguments(
        query,
        key_cache,
        value_cache,
        heads,
        block_size=block_size,
        block_table=block_table,
        query_ends=query_ends,
        mask=mask,
    )
    out, lse = ops.npu_fused_infer_attention_score(**arguments, actual_seq_lengths_kv=kv_lengths)
    return out, lse


def fused_arguments(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    heads: Heads,
    *,
    block_size: int,
    block_table: Any,
    query_ends: list[int],
    mask: Any,
) -> dict[str, Any]:
    """All arguments of the fused attention but the KV lengths.

    `sparse_mode` 3 (right-down causal) goes with the host's mask, 0 without one attends to everything.

    Args:
        query: [T, H, D]. key_cache, value_cache: [blocks, block size, K, D], seen with heads and elements joined.
        block_table: int32 [sequences, columns]. query_ends: cumulative query rows per sequence.
    """
    blocks = key_cache.shape[0]
    return {
        "query": query,
        "key": key_cache.view(blocks, block_size, -1),
        "value": value_cache.view(blocks, block_size, -1),
        "atten_mask": mask,
        "block_table": block_table,
        "input_layout": "TND",
        "block_size": block_size,
        "actual_seq_lengths": query_ends,
        "num_key_value_heads": heads.kv,
        "num_heads": heads.query,
        "scale": heads.scale,
        "sparse_mode": 0 if mask is None else 3,
        "softmax_lse_flag": True,
    }


def prefix_fp32(ops: Any, query: Any, key_cache: Any, value_cache: Any, plan: StepPlan) -> tuple[Any, Any]:
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
