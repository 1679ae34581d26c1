"""The suffix stage: each request's own keys through its block table, and the merge with the prefix stage's parts."""

import triton
import triton.language as tl

from .lowering import Lowering
from .merge_triton import _finish, _rounded, _take
from .prefix_triton import _keys, block_keys


@triton.jit
def suffix_kernel(
    query,
    key_cache,
    value_cache,
    block_table,
    sequence_lengths,
    prefix_length,
    prefix_outs,
    prefix_lses,
    out,
    scale,
    table_stride,
    parts,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    COMPUTE: tl.constexpr,
    BY_HAND: tl.constexpr,
):
    """Decode attention of one request and key-value head: keys prefix_length.. and the `parts` of the prefix stage.

    query (B, H, D), one row per request; caches (blocks, PAGE, K, D); block_table (B, columns), the request's whole
    table; sequence_lengths (B,), all keys of a request; prefix_length (1,); prefix_outs (parts, K, B * G, D) and
    prefix_lses (parts, K, B * G) float32; out (B, H, D) in its own type. Both lengths are read here, so that a captured
    launch serves later steps. A request without own keys gets the prefix alone; one without any key zeros.
    Grid: (K, B). The G rows are padded to BLOCK_ROWS.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCKS_PER_PAGE: tl.constexpr = PAGE // BLOCK_KEYS
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1)

    row = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, PADDED_SIZE)
    in_range = row < GROUP
    inside = in_range[:, None] & (column < HEAD_SIZE)[None, :]
    cell = row[:, None] * HEAD_SIZE + column[None, :]
    own = (sequence * HEADS + kv_head * GROUP) * HEAD_SIZE
    ELEMENT: tl.constexpr = query.dtype.element_ty
    q = tl.load(query + own + cell, mask=inside, other=0.0).to(COMPUTE)

    start_key = tl.load(prefix_length).to(tl.int32)
    length = tl.maximum(tl.load(sequence_lengths + sequence).to(tl.int32), start_key)
    peak = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.full((BLOCK_ROWS,), 0.0, tl.float32)
    mixed = tl.full((BLOCK_ROWS, PADDED_SIZE), 0.0, tl.float32)
    within = tl.arange(0, BLOCK_KEYS)
    for block in range(start_key // BLOCK_KEYS, (length + BLOCK_KEYS - 1) // BLOCK_KEYS):
        page = tl.load(block_table + sequence * table_stride + block // BLOCKS_PER_PAGE).to(tl.int64)
        start = (page * PAGE + (block % BLOCKS_PER_PAGE) * BLOCK_KEYS) * (KV_HEADS * HEAD_SIZE) + kv_head * HEAD_SIZE
        slot = within[:, None] * (KV_HEADS * HEAD_SIZE) + column[None, :]
        number = block * BLOCK_KEYS + within
        allowed = (number >= start_key) & (number < length)
        readable = allowed[:, None] & (column < HEAD_SIZE)[None, :]
        k = tl.load(key_cache + start + slot, mask=readable, other=0.0).to(COMPUTE)
        v = tl.load(value_cache + start + slot, mask=readable, other=0.0).to(COMPUTE)
        peak, total, mixed = _keys(peak, total, mixed, q, k, v, allowed, scale, ELEMENT, COMPUTE)

    rows = tl.num_programs(1) * GROUP
    for part in range(parts):
        first = (part * KV_HEADS + kv_head) * rows + sequence * GROUP
        part_out = tl.load(prefix_outs + first * HEAD_SIZE + cell, mask=inside, other=0.0)
        part_lse = tl.load(prefix_lses + first + row, mask=in_range, other=float("-inf"))
        peak, total, mixed = _take(peak, total, mixed, part_out, part_lse)
    merged, _ = _finish(peak, total, mixed)
    tl.store(out + own + cell, _rounded(merged, out.dtype.element_ty, BY_HAND), mask=inside)


#: Rows per program at least: the edge of the matrix unit's smallest tile, and what a CUDA dot asks for.
LEAST_ROWS = 16


def _lowering(element: str, heads: int, kv_heads: int, head_size: int, page: int) -> Lowering:
    compute = {"bf16": tl.bfloat16, "fp16": tl.float16}[element]
    return Lowering(
        "suffix_kernel",
        f"{element}-h{heads}k{kv_heads}-d{head_size}-page{page}",
        {
            "query": f"*{element}",
            "key_cache": f"*{element}",
            "value_cache": f"*{element}",
            "block_table": "*i32",
            "sequence_lengths": "*i32",
            "prefix_length": "*i32",
            "prefix_outs": "*fp32",
            "prefix_lses": "*fp32",
            "out": f"*{element}",
            "scale": "fp32",
            "table_stride": "i32",
            "parts": "i32",
        },
        {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "HEAD_SIZE": head_size,
            "PADDED_SIZE": head_size,
            "PAGE": page,
            "BLOCK_ROWS": max(LEAST_ROWS, 1 << (heads // kv_heads - 1).bit_length()),
            "BLOCK_KEYS": block_keys(page),
            "COMPUTE": compute,
            "BY_HAND": False,
        },
    )


LOWERINGS = (
    _lowering("bf16", 40, 8, 128, 128),
    _lowering("bf16", 14, 2, 64, 128),
    _lowering("bf16", 8, 8, 128, 16),
    _lowering("fp16", 8, 1, 128, 128),
    _lowering("bf16", 64, 1, 128, 128),
)
