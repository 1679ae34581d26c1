"""Paged attention (first form)."""
import torch
from torch_npu.ops.fused_attention import _attend
from torch_npu.ops.registry import emulates


@emulates("_npu_paged_attention")
def _pa(query, key_cache, value_cache, num_kv_heads, num_heads, scale_value, block_table, context_lens, out, *, workspace=None):
    for i in range(query.shape[0]):
        L = int(context_lens[i]); bs = key_cache.shape[1]
        idx = block_table[i, : (L + bs - 1) // bs].long()
        k = key_cache[idx].reshape(-1, num_kv_heads, key_cache.shape[-1])[:L]
        v = value_cache[idx].reshape(-1, num_kv_heads, value_cache.shape[-1])[:L]
        o, _ = _attend(query[i : i + 1].view(1, num_heads, -1), k, v, scale_value, None)
        out[i : i + 1].copy_(o.to(out.dtype).view(out[i : i + 1].shape))


@emulates("_npu_paged_attention_get_workspace")
def _paws(*a, **k):
    return torch.empty(1, dtype=torch.uint8)


