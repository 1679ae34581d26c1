"""Launching the row kernels (sampling, GeGLU): sizes of tiles and grids, and the call. Nothing is read back."""

from __future__ import annotations

import torch
from torch import Tensor

from . import geglu, sampling
from .launch import kernel

#: Programs of one launch at most: the limit of the Ascend back end. Kernels take further tiles in turn.
GRID_LIMIT = 65_535
#: Elements a tile of the interpreter holds; its time goes with the number of programs, not with their size.
_INTERPRETER_TILE = 1 << 18
_GEGLU_TILE = 2048


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << max(0, number - 1).bit_length()


def programs(tiles: int) -> int:
    """The grid for so many tiles."""
    return max(1, min(tiles, GRID_LIMIT))


def _draw(
    scores: Tensor, top_k: Tensor | None, top_p: Tensor | None, capped: Tensor | None, key: int, step: int,
    keys: Tensor | None, logits: bool,
) -> Tensor:
    rows, vocabulary = scores.shape
    tokens = torch.empty(rows, dtype=torch.int32, device=scores.device)
    if rows == 0:
        return tokens.long()
    block = min(sampling.BLOCK, power_of_two(vocabulary))
    chunks = power_of_two(-(-vocabulary // block))
    tile_rows = 1
    if scores.device.type == "cpu":
        tile_rows = min(power_of_two(rows), max(1, _INTERPRETER_TILE // block))
    key_low, key_high = sampling.key_words(key)
    # What is absent is never read: another tensor of the type stands in for its address.
    kernel("sampling_triton", "sample_kernel", scores.device)[(programs(-(-rows // tile_rows)),)](
        scores,
        tokens if top_k is None else top_k,
        scores if top_p is None else top_p,
        tokens if keys is None else keys,
        tokens,
        tokens if capped is None else capped,
        rows,
        vocabulary,
        scores.stride(0),
        key_low,
        key_high,
        step,
        logits,
        top_k is not None,
        top_p is not None,
        keys is not None,
        tile_rows,
        block,
        chunks,
        sampling.MAX_ROUNDS,
    )
    return tokens.long()


def sample(scores: Tensor, key: int, step: int, keys: Tensor | None = None, logits: bool = True) -> Tensor:
    """:func:`sampling.sample` by the Triton kernel."""
    sampling.check(sampling.SAMPLE, scores, None, None, None, key, step, keys)
    return _draw(scores, None, None, None, key, step, keys, logits)


def sample_top_k_top_p(
    scores: Tensor, top_k: Tensor | None, top_p: Tensor | None, capped: Tensor, key: int, step: int,
    keys: Tensor | None = None, logits: bool = True,
) -> Tensor:
    """:func:`sampling.sample_top_k_top_p` by the Triton kernel."""
    sampling.check(sampling.SAMPLE_TOP_K_TOP_P, scores, top_k, top_p, capped, key, step, keys)
    return _draw(scores, top_k, top_p, capped, key, step, keys, logits)


def geglu_rows(gate_up: Tensor) -> Tensor:
    """:func:`geglu.geglu` by the Triton kernel."""
    geglu.check(gate_up)
    width = gate_up.shape[-1] // 2
    source = gate_up.reshape(-1, 2 * width)
    if source.stride(-1) != 1:
        source = source.contiguous()
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    rows = source.shape[0]
    if rows == 0:
        return out
    tile = _INTERPRETER_TILE if gate_up.device.type == "cpu" else _GEGLU_TILE
    columns = min(power_of_two(width), tile)
    tile_rows = min(power_of_two(rows), tile // columns)
    grid = programs(-(-rows // tile_rows) * -(-width // columns))
    kernel("geglu_triton", "geglu_kernel", gate_up.device)[(grid,)](
        source, out, rows, width, source.stride(0), tile_rows, columns
    )
    return out
