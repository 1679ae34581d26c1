"""Interleaved M-RoPE with every argument its Triton kernel needs, no more.

The host's method looks up cosines and sines by position and calls `triton_mrope`. Releases of vLLM differ in what that
function takes; the arguments are put together from its live signature.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from .defects import MROPE_ARGUMENTS

ALL_BLOCKS = "TRITON_ALL_BLOCKS_PARALLEL"
#: Rows above which the host sets the variable above, where its class does not say so itself.
GRID_LIMIT = 65535


def repaired(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement of the host's `forward_triton` that calls `kernel` by its own signature.

    The replacement takes positions int [3, tokens], query [tokens, heads * head_size] and key
    [tokens, kv_heads * head_size], and returns query and key rotated, in their shapes. It holds nothing that
    torch.compile cannot trace.

    Raises:
        LookupError: `kernel` takes a parameter without default that is not among MROPE_ARGUMENTS.
    """
    names = [
        name
        for name, parameter in inspect.signature(kernel).parameters.items()
        if name in MROPE_ARGUMENTS or parameter.default is parameter.empty
    ]
    foreign = [name for name in names if name not in MROPE_ARGUMENTS]
    if foreign:
        raise LookupError(f"triton_mrope needs {', '.join(foreign)}")

    def forward_triton(layer: Any, positions: Any, query: Any, key: Any, offsets: Any = None) -> tuple[Any, Any]:
        if positions.ndim != 2 or key is None or not layer.mrope_section:
            raise ValueError("interleaved M-RoPE takes positions of three axes, a key and a section per axis")
        # Above this many programs the host has Triton walk the blocks in one launch.
        limit = getattr(layer, "_ASCEND_TRITON_GRID_LIMIT", GRID_LIMIT)
        if query.shape[0] > limit and os.environ.get(ALL_BLOCKS) != "1":
            os.environ[ALL_BLOCKS] = "1"
        cos, sin = layer._match_cos_sin_cache_dtype(query)[positions].chunk(2, dim=-1)
        values = {
            "q": query,
            "k": key,
            "cos": cos.contiguous(),
            "sin": sin.contiguous(),
            "mrope_section": layer.mrope_section,
            "head_size": layer.head_size,
            "rotary_dim": layer.rotary_dim,
            "mrope_interleaved": layer.mrope_interleaved,
            "is_neox_style": layer.is_neox_style,
        }
        q, k = kernel(**{name: values[name] for name in names})
        return q.reshape(query.shape), k.reshape(key.shape)

    return forward_triton
