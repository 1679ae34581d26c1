"""One layer's two stages inside a captured graph, as tasks whose lengths are set anew for every replay.

The host's fused attention takes its lengths from host memory, so a captured call is frozen to the lengths of its
capture. The device offers task groups for that: a captured group of calls can be given new arguments while the graph
waits at an event in front of it. A layer here has one event and two groups, the prefix stage and the suffix stage, so
that the prefix stage, whose arguments rarely change, is left alone while it may be.

Block tables are buffers of fixed place that a step fills before the replay; only host-side lengths travel by update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_ascend_split_batch.cascade.two_stage import Heads


@dataclass
class Stage:
    """One captured call of the fused attention.

    Attributes:
        arguments: everything that stays as captured; the query as a weak reference (the graph's pool owns it).
        handle: the task group that holds the call.
    """

    arguments: dict[str, Any]
    handle: Any

    def update(self, device: Any, fused: Any, stream: Any, kv_lengths: list[int]) -> None:
        """Give the call new KV lengths (host integers, one per sequence), on the update stream."""
        device.graph_task_update_begin(stream, self.handle)
        fused.out(**self.arguments, actual_seq_lengths_kv=kv_lengths)
        device.graph_task_update_end(stream)


@dataclass
class LayerTasks:
    """A layer's event, which the replay waits at in front of both stages, and the two stages."""

    event: Any
    prefix: Stage
    suffix: Stage


@dataclass
class Results:
    """Partial results of a layer's stages: outputs [T, H, D] of the model's type, LSE float32 [T, H, 1]."""

    prefix_out: Any
    prefix_lse: Any
    suffix_out: Any
    suffix_lse: Any


def allocate_results(query: Any, heads: Heads, rows: int) -> Results:
    """Buffers for `rows` query rows of the type and device of `query`."""
    import torch

    def out() -> Any:
        return torch.empty((rows, heads.query, heads.size), dtype=query.dtype, device=query.device)

    def lse() -> Any:
        return torch.empty((rows, heads.query, 1), dtype=torch.float32, device=query.device)

    return Results(out(), lse(), out(), lse())


def stage_arguments(
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
    """Arguments of the fused attention that no replay changes.

    Args:
        query: [T, H, D]. key_cache, value_cache: [blocks, block size, K, D], seen with heads and elements joined.
        block_table: int32 [sequences, columns]. query_ends: cumulative query rows per sequence.
        mask: None (attend to everything), or the host's causal mask for one row at the end of its sequence.
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
