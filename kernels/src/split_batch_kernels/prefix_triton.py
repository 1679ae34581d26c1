"""Attention of many query rows to one sequence's paged keys, without a mask: the prefix stage, split over the keys."""

import triton
import triton.language as tl

from .lowering import Lowering
from .merge_triton import _rounded


@triton.jit
def _keys(peak, total, mixed, query, key, value, allowed, scale, ELEMENT: tl.constexpr, COMPUTE: tl.constexpr):
    """One block of keys taken into a running softmax (Milakov & Gimelshein, 2018).

    Args:
        peak, total: (R,) float32. mixed: (R, D) float32, not yet divided by total. query: (R, D) in COMPUTE.
        key, value: (N, D) in COMPUTE. allowed: (N,), which keys count.
        ELEMENT: the tensors' type, to which the weights are rounded as the matrix unit takes them.
        COMPUTE: the type in which the products are formed: ELEMENT, or float32 where its arithmetic is not available.
    """
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    scores = tl.where(allowed[None, :], scores, float("-inf"))
    highest = tl.maximum(peak, tl.max(scores, 1))
    shift = tl.where(highest > float("-inf"), highest, 0.0)
    before = tl.exp(peak - shift)
    weights = tl.exp(scores - shift[:, None])
    added = tl.dot(_rounded(weights, ELEMENT, COMPUTE != ELEMENT).to(COMPUTE), value, input_precision="ieee")
    return highest, total * before + tl.sum(weights, 1), mixed * before[:, None] + added


@triton.jit
def prefix_kernel(
    query,
    key_cache,
    value_cache,
    block_table,
    kv_lengths,
    outs,
    lses,
    scale,
    rows_per_sequence,
    table_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Attend each sequence's query rows to all its keys; one part of the keys per program.

    query (T, H, D), T = sequences * rows_per_sequence; caches (blocks, PAGE, K, D); block_table (sequences, columns)
    with table_stride columns; kv_lengths (sequences,), read here, so that a captured launch serves later lengths;
    outs (SPLITS, K, T * G, D) float32, lses (SPLITS, K, T * G) float32. Part s covers the s-th of SPLITS equal runs of
    pages. A part without keys writes zeros and -inf.
    Grid: (row blocks * K, SPLITS, sequences). The G query heads of a key-value head, token by token, are its rows: a
    block of rows is full whatever G is, and one block of the results.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCKS_PER_PAGE: tl.constexpr = PAGE // BLOCK_KEYS
    kv_head = tl.program_id(0) % KV_HEADS
    split = tl.program_id(1)
    sequence = tl.program_id(2)

    row = (tl.program_id(0) // KV_HEADS) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    rows = rows_per_sequence * GROUP
    column = tl.arange(0, PADDED_SIZE)
    used = column < HEAD_SIZE
    # Rows past the end read the last row: where addresses are no simple ramp the compiler reads what a mask hides.
    readable_row = tl.minimum(row, rows - 1)
    token = sequence * rows_per_sequence + readable_row // GROUP
    source = token * HEADS + kv_head * GROUP + readable_row % GROUP
    ELEMENT: tl.constexpr = query.dtype.element_ty
    q_cell = source[:, None] * HEAD_SIZE + column[None, :]
    if PADDED_SIZE == HEAD_SIZE:
        q = tl.load(query + q_cell).to(COMPUTE)
    else:
        q = tl.load(query + q_cell, mask=used[None, :], other=0.0).to(COMPUTE)

    length = tl.load(kv_lengths + sequence).to(tl.int32)
    pages = (length + PAGE - 1) // PAGE
    pages_per_split = (pages + SPLITS - 1) // SPLITS
    first = split * pages_per_split * BLOCKS_PER_PAGE
    last = tl.minimum((split + 1) * pages_per_split * BLOCKS_PER_PAGE, (length + BLOCK_KEYS - 1) // BLOCK_KEYS)

    peak = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.full((BLOCK_ROWS,), 0.0, tl.float32)
    mixed = tl.full((BLOCK_ROWS, PADDED_SIZE), 0.0, tl.float32)
    within = tl.arange(0, BLOCK_KEYS)
    for block in range(first, last):
        page = tl.load(block_table + sequence * table_stride + block // BLOCKS_PER_PAGE).to(tl.int64)
        start = (page * PAGE + (block % BLOCKS_PER_PAGE) * BLOCK_KEYS) * (KV_HEADS * HEAD_SIZE) + kv_head * HEAD_SIZE
        slot = within[:, None] * (KV_HEADS * HEAD_SIZE) + column[None, :]
        allowed = block * BLOCK_KEYS + within < length
        readable = allowed[:, None] & used[None, :]
        k = tl.load(key_cache + start + slot, mask=readable, other=0.0).to(COMPUTE)
        v = tl.load(value_cache + start + slot, mask=readable, other=0.0).to(COMPUTE)
        peak, total, mixed = _keys(peak, total, mixed, q, k, v, allowed, scale, ELEMENT, COMPUTE)

    some = total > 0.0
    divisor = tl.where(some, total, 1.0)
    out = mixed / divisor[:, None]
    lse = tl.where(some, peak + tl.log(divisor), float("-inf"))
    target = ((split * KV_HEADS + kv_head) * tl.num_programs(2) + sequence) * rows + row
    in_range = row < rows
    tl.store(outs + target[:, None] * HEAD_SIZE + column[None, :], out, mask=in_range[:, None] & used[None, :])
    tl.store(lses + target, lse, mask=in_range)


#: Query rows per program. At 128 rows, a full tile of the matrix unit, the scores, weights and results of one block of
#: keys need 227 KiB of the vector cores' 192 KiB of buffer.
BLOCK_ROWS = 64


def block_keys(page: int) -> int:
    """Keys per step for pages of `page` tokens: the largest power of two up to 128 that divides a page."""
    return min(page & -page, 128)


def _lowering(element: str, heads: int, kv_heads: int, head_size: int, page: int, splits: int) -> Lowering:
    compute = {"bf16": tl.bfloat16, "fp16": tl.float16}[element]
    return Lowering(
        "prefix_kernel",
        f"{element}-h{heads}k{kv_heads}-d{head_size}-page{page}-splits{splits}",
        {
            "query": f"*{element}",
            "key_cache": f"*{element}",
            "value_cache": f"*{element}",
            "block_table": "*i32",
            "kv_lengths": "*i32",
            "outs": "*fp32",
            "lses": "*fp32",
            "scale": "fp32",
            "rows_per_sequence": "i32",
            "table_stride": "i32",
        },
        {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "HEAD_SIZE": head_size,
            "PADDED_SIZE": 1 << (head_size - 1).bit_length(),
            "PAGE": page,
            "SPLITS": splits,
            "BLOCK_ROWS": BLOCK_ROWS,
            "BLOCK_KEYS": block_keys(page),
            "COMPUTE": compute,
        },
    )


LOWERINGS = (
    _lowering("bf16", 40, 8, 128, 128, 1),
    _lowering("bf16", 40, 8, 128, 128, 3),
    _lowering("bf16", 14, 2, 64, 128, 1),
    _lowering("fp16", 8, 1, 128, 128, 1),
    _lowering("bf16", 8, 8, 128, 16, 1),
    _lowering("bf16", 64, 1, 128, 128, 1),
    _lowering("bf16", 4, 2, 80, 48, 1),
)
