"""Rotary position embeddings. Computed in float32, cast to the input's dtype at the end."""

from __future__ import annotations

import torch

from torch_npu.ops.norm import COMPILED
from torch_npu.ops.registry import emulates


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, half: bool) -> torch.Tensor:
    """Rotates pairs of the last dimension: (i, i + D/2) if ``half``, else (2i, 2i + 1). cos, sin: ``[..., D/2]``."""
    if half:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def _apply(
    positions: torch.Tensor, x: torch.Tensor, cos_sin_cache: torch.Tensor, head_size: int, half: bool
) -> torch.Tensor:
    """Rotates ``x [T, heads * head_size]`` (or ``[T, heads, head_size]``) by its positions ``[T]``.

    cos_sin_cache ``[max_position, rotary]`` holds the cosines in its first and the sines in its second half; the
    first ``rotary`` channels of a head are rotated, the others pass.
    """
    rotary = cos_sin_cache.shape[-1]
    if x.dtype == cos_sin_cache.dtype and x.dtype in COMPILED and x.stride(-1) == 1 and cos_sin_cache.is_contiguous():
        split = x.view(x.shape[0], x.shape[1] // head_size, head_size) if x.dim() == 2 else x
        if split.shape[1] <= 1 or split.stride(1) == head_size:
            out = x.new_empty(split.shape)
            torch.ops.npu_emulator.rotate(positions.long().contiguous(), split, cos_sin_cache, half, out)
            return out.view(x.shape)
    cos, sin = cos_sin_cache.index_select(0, positions).float().unsqueeze(1).chunk(2, -1)
    heads = x.reshape(x.shape[0], x.shape[1:].numel() // head_size, head_size).float()
    rotated = _rotate(heads[..., :rotary], cos, sin, half)
    if rotary < head_size:
        rotated = torch.cat((rotated, heads[..., rotary:]), -1)
    return rotated.to(x.dtype).view(x.shape)


def _check(op: str, positions: torch.Tensor, cos_sin_cache: torch.Tensor, head_size: int, *xs: torch.Tensor) -> None:
    if positions.dim() != 1:
        raise NotImplementedError(f"{op}: positions {tuple(positions.shape)}: one-dimensional positions are modelled")
    if cos_sin_cache.shape[-1] > head_size:
        raise RuntimeError(f"{op}: cos_sin_cache {tuple(cos_sin_cache.shape)} is wider than head_size {head_size}")
    for x in xs:
        if x.shape[0] != positions.shape[0] or x.shape[1:].numel() % head_size:
            raise RuntimeError(
                f"{op}: query or key {tuple(x.shape)} does not fit {positions.shape[0]} positions "
                f"of heads of {head_size}"
            )


def _meta_mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str = "half",
    cache_mode: str = "default",
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), torch.empty_like(key)


@emulates("npu_mrope", meta=_meta_mrope)
def npu_mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str = "half",
    cache_mode: str = "default",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated copies of query and key; without sections this is the ordinary rotary embedding."""
    if mrope_section and any(mrope_section):
        raise NotImplementedError(f"npu_mrope: mrope_section={mrope_section} is not modelled")
    if rotary_mode not in ("half", "interleaved"):
        raise RuntimeError(f"npu_mrope: rotary_mode={rotary_mode!r}: accepted are 'half' and 'interleaved'")
    if cache_mode != "default":
        raise RuntimeError(f"npu_mrope: cache_mode={cache_mode!r}: without sections it must be 'default'")
    if not query.dtype == key.dtype == cos_sin_cache.dtype:
        raise RuntimeError(
            f"npu_mrope: query of {query.dtype}, key of {key.dtype}, cos_sin_cache of {cos_sin_cache.dtype} "
            "must be alike"
        )
    step = 16 if query.dtype == torch.float32 else 32
    if head_size % step or cos_sin_cache.shape[-1] % step:
        raise RuntimeError(
            f"npu_mrope: head_size {head_size} and the cache's width {cos_sin_cache.shape[-1]} "
            f"must be multiples of {step} for {query.dtype}"
        )
    if query.dim() != 2 or key.dim() != 2:
        raise RuntimeError(
            f"npu_mrope: query {tuple(query.shape)} and key {tuple(key.shape)} must be [tokens, heads * D]"
        )
    _check("npu_mrope", positions, cos_sin_cache, head_size, query, key)
    half = rotary_mode == "half"
    return (
        _apply(positions, query, cos_sin_cache, head_size, half),
        _apply(positions, key, cos_sin_cache, head_size, half),
    )


@emulates("_npu_rotary_embedding", meta=lambda *args: None)
def _npu_rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
) -> None:
    """Rotates query and key in place."""
    _check("_npu_rotary_embedding", positions, cos_sin_cache, head_size, query, key)
    for x in (query, key):
        x.copy_(_apply(positions, x, cos_sin_cache, head_size, is_neox_style))


@emulates("npu_rotary_mul", meta=lambda input, *args, **kwargs: torch.empty_like(input))
def npu_rotary_mul(
    input: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """``input * r1 + rotated(input) * r2``: r1 holds cosines, r2 sines, both of the full head size, broadcastable.

    ``rotated`` is (-b, a) for the halves (a, b) in mode 'half', and for neighbouring pairs in mode 'interleave'.
    """
    if rotate is not None:
        raise NotImplementedError("npu_rotary_mul: a rotate matrix is not modelled")
    x = input.float()
    if rotary_mode == "half":
        a, b = x.chunk(2, -1)
        rotated = torch.cat((-b, a), -1)
    elif rotary_mode == "interleave":
        rotated = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    else:
        raise NotImplementedError(f"npu_rotary_mul: rotary_mode={rotary_mode!r} is not modelled")
    return (x * r1.float() + rotated * r2.float()).to(input.dtype)
