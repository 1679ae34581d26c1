"""The operators of torch_npu: all schemas of the published package, one module per family of emulated ones."""

from torch_npu.ops import (
    activation,
    attention_update,
    formats,
    fused_attention,
    kv_cache,
    norm,
    paged_attention,
    quant,
    rope,
    sampling,
)
from torch_npu.ops.registry import NAMES, bind_all

bind_all()

__all__ = [
    "NAMES",
    "activation",
    "attention_update",
    "formats",
    "fused_attention",
    "kv_cache",
    "norm",
    "paged_attention",
    "quant",
    "rope",
    "sampling",
]
