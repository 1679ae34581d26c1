"""Drawing a token per row of scores, without and with top-k and top-p: the kernel.

One pass over the row yields, per chunk of the vocabulary, the largest score and the mass. A chunk is then drawn by its
mass and a token within it, each with a random word of its own, so that the resolution of a draw does not get worse with
the size of the vocabulary (one 24-bit number for the whole row would round probabilities of 1/150,000 by half a per
cent). Truncation is by rejection with two pivots: a drawn token is kept if it belongs to the kept set; if not, the
pass that found out has also measured what is left above either pivot, so that a further round costs one pass, not two.

The keep rule and the pivots are those of FlashInfer's sorting-free sampling (Ye et al., "FlashInfer: efficient and
customizable attention engine for LLM inference serving", 2025, and its documentation of top_k_top_p_sampling);
the random words are Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
"""

import triton
import triton.language as tl

from .lowering import Lowering

_FLOAT_MAX = tl.constexpr(3.4028234663852886e38)
_UNIT = tl.constexpr(5.9604644775390625e-08)  # 2**-24


@triton.jit
def _philox(key_low, key_high, step, lane, turn, ROWS: tl.constexpr):
    """Two words of Philox4x32-10 at counter (step, lane, turn, 0): (ROWS,) float32 in [0, 1), 24 bits each."""
    c0 = step.to(tl.uint32, bitcast=True)
    c1 = lane.to(tl.uint32, bitcast=True)
    c2 = turn.to(tl.uint32, bitcast=True)
    c3 = c2 ^ c2
    k0 = key_low.to(tl.uint32, bitcast=True)
    k1 = key_high.to(tl.uint32, bitcast=True)
    for _ in tl.static_range(10):
        product0 = c0.to(tl.uint64) * 0xD2511F53
        product1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (product1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (product0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = (product1 & 0xFFFFFFFF).to(tl.uint32)
        c3 = (product0 & 0xFFFFFFFF).to(tl.uint32)
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    nothing = tl.zeros((ROWS,), tl.float32)
    u0 = (c0 >> 8).to(tl.int32).to(tl.float32) * _UNIT
    u1 = (c1 >> 8).to(tl.int32).to(tl.float32) * _UNIT
    return nothing + u0, nothing + u1


@triton.jit
def _scores(scores, base, column, inside, LOGITS: tl.constexpr):
    """Scores with everything that is no number made harmless: what cannot be drawn is -inf (logits) or 0 (weights)."""
    nothing = float("-inf") if LOGITS else 0.0
    value = tl.load(scores + (base + column), mask=inside, other=nothing)
    value = tl.where(value == value, value, nothing)
    value = tl.minimum(value, _FLOAT_MAX)
    if not LOGITS:
        value = tl.maximum(value, 0.0)
    return value


@triton.jit
def _weights(value, shift, LOGITS: tl.constexpr):
    """Weights relative to the row's largest logit; a weight is its own."""
    return tl.exp(value - shift) if LOGITS else value


@triton.jit
def _chunk_base(chunk, ROWS: tl.constexpr):
    """Chunk numbers as an index that broadcasts over a chunk: a plain number where there is one row."""
    return tl.max(chunk, axis=0) if ROWS == 1 else chunk[:, None]


@triton.jit
def _pick(masses, chunk_ids, u, CHUNKS: tl.constexpr):
    """Per row, a chunk drawn by its mass with the number u: never one without mass, unless there is no mass at all."""
    reached = tl.cumsum(masses, axis=1)
    total = tl.sum(masses, axis=1)
    some = masses > 0.0
    first = tl.min(tl.where(some & (reached > (u * total)[:, None]), chunk_ids, CHUNKS), axis=1)
    last = tl.max(tl.where(some, chunk_ids, 0), axis=1)
    return tl.where(first < CHUNKS, first, last)


@triton.jit
def _draw(
    scores, row_base, live, masses, chunk_ids, low, shift, u0, u1, vocabulary,
    LOGITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):
    """Per row a token drawn by weight from those heavier than `low`: its number (-1: there is none) and its weight."""
    start = _chunk_base(_pick(masses, chunk_ids, u0, CHUNKS) * BLOCK, ROWS)
    offset = tl.arange(0, BLOCK)[None, :]
    column = start + offset
    inside = live[:, None] & (column < vocabulary)
    value = _scores(scores, row_base, column, inside, LOGITS)
    weight = _weights(value, shift[:, None], LOGITS)
    eligible = weight > low[:, None]
    weight = tl.where(eligible, weight, 0.0)
    reached = tl.cumsum(weight, axis=1)
    target = u1 * tl.sum(weight, axis=1)
    first = tl.min(tl.where(eligible & (reached > target[:, None]), offset, BLOCK), axis=1)
    last = tl.max(tl.where(eligible, offset, -1), axis=1)
    offset_drawn = tl.where(first < BLOCK, first, last)
    drawn_weight = tl.sum(tl.where(offset == offset_drawn[:, None], weight, 0.0), axis=1)
    chunk_start = tl.max(tl.where(inside, column - offset, 0), axis=1)
    return tl.where(offset_drawn >= 0, chunk_start + offset_drawn, -1), drawn_weight


@triton.jit
def _heaviest(
    scores, row_base, live, peaks, top, chunk_ids, vocabulary,
    LOGITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):
    """Per row the first token of the largest score, which every truncation keeps."""
    chunk = tl.min(tl.where(peaks == top[:, None], chunk_ids, CHUNKS - 1), axis=1)
    offset = tl.arange(0, BLOCK)[None, :]
    column = _chunk_base(chunk * BLOCK, ROWS) + offset
    inside = live[:, None] & (column < vocabulary)
    value = _scores(scores, row_base, column, inside, LOGITS)
    return tl.min(tl.where(inside & (value == top[:, None]), column, vocabulary - 1), axis=1)


# What changes from step to step must not be compiled for: neither a value of 1 nor a multiple of 16.
@triton.jit(do_not_specialize=["rows", "key_low", "key_high", "step"])
def sample_kernel(
    scores,
    top_k,
    top_p,
    keys,
    tokens,
    capped,
    rows,
    vocabulary,
    row_stride,
    key_low,
    key_high,
    step,
    LOGITS: tl.constexpr,
    HAS_K: tl.constexpr,
    HAS_P: tl.constexpr,
    HAS_KEYS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    MAX_ROUNDS: tl.constexpr,
):
    """Draw one token per row of `scores` (rows, vocabulary) float32; see ``sampling.sample`` for what is drawn.

    top_k (rows,) int32 and top_p (rows,) float32 where HAS_K, HAS_P. keys (rows, 4) int32 where HAS_KEYS: a row's own
    key (two words), step and lane; otherwise all rows share key and step, and a row's lane is its number.
    tokens (rows,) int32. capped (rows,) int32: grows by one where MAX_ROUNDS rounds found no token.
    Every program takes tiles of ROWS rows in turn; CHUNKS is a power of two with CHUNKS * BLOCK >= vocabulary.
    """
    chunk_ids = tl.arange(0, CHUNKS)[None, :]
    chunks = (vocabulary + BLOCK - 1) // BLOCK
    offset = tl.arange(0, BLOCK)[None, :]
    for tile in range(tl.program_id(0), (rows + ROWS - 1) // ROWS, tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        live = row < rows
        if ROWS == 1:
            row_base = (tile + tl.zeros((), tl.int32)).to(tl.int64) * row_stride
        else:
            row_base = row[:, None].to(tl.int64) * row_stride

        # The mass of every chunk, relative to the chunk's own largest logit first.
        peaks = tl.full((ROWS, CHUNKS), float("-inf"), tl.float32)
        masses = tl.zeros((ROWS, CHUNKS), tl.float32)
        for chunk in range(chunks):
            column = chunk * BLOCK + offset
            value = _scores(scores, row_base, column, live[:, None] & (column < vocabulary), LOGITS)
            peak = tl.max(value, axis=1)
            if LOGITS:
                mass = tl.sum(tl.exp(value - tl.where(peak > float("-inf"), peak, 0.0)[:, None]), axis=1)
            else:
                mass = tl.sum(value, axis=1)
            peaks = tl.where(chunk_ids == chunk, peak[:, None], peaks)
            masses = tl.where(chunk_ids == chunk, mass[:, None], masses)
        top = tl.max(peaks, axis=1)
        shift = tl.where(top > float("-inf"), top, 0.0)
        if LOGITS:
            masses = masses * tl.exp(peaks - shift[:, None])
        total = tl.sum(masses, axis=1)
        done = (total <= 0.0) | (row >= rows)
        token = tl.zeros((ROWS,), tl.int32)
        low = tl.zeros((ROWS,), tl.float32)

        # One row has plain numbers for its words: the scalar unit draws them.
        entry = tile + tl.zeros((), tl.int32) if ROWS == 1 else row
        if HAS_KEYS:
            in_table = entry < rows
            row_key_low = tl.load(keys + entry * 4, mask=in_table, other=0)
            row_key_high = tl.load(keys + entry * 4 + 1, mask=in_table, other=0)
            row_step = tl.load(keys + entry * 4 + 2, mask=in_table, other=0)
            row_lane = tl.load(keys + entry * 4 + 3, mask=in_table, other=0)
        else:
            row_key_low = entry * 0 + key_low
            row_key_high = entry * 0 + key_high
            row_step = entry * 0 + step
            row_lane = entry

        if HAS_K or HAS_P:
            high = tl.where(top > float("-inf"), 1.0, 0.0) if LOGITS else top
            if HAS_K:
                most = tl.load(top_k + row, mask=live, other=1)
            if HAS_P:
                share = tl.load(top_p + row, mask=live, other=1.0)
            undone = tl.sum(tl.where(done, 0, 1), axis=0)
            turns = 0
            while (undone > 0) & (turns < MAX_ROUNDS):
                u0, u1 = _philox(row_key_low, row_key_high, row_step, row_lane, entry * 0 + turns, ROWS)
                drawn, weight = _draw(
                    scores, row_base, live, masses, chunk_ids, low, shift, u0, u1, vocabulary,
                    LOGITS, ROWS, BLOCK, CHUNKS,
                )
                pivot = (weight + high) * 0.5
                above = tl.zeros((ROWS, CHUNKS), tl.float32)
                above_pivot = tl.zeros((ROWS, CHUNKS), tl.float32)
                heavier = tl.zeros((ROWS,), tl.int32)
                heavier_than_pivot = tl.zeros((ROWS,), tl.int32)
                for chunk in range(chunks):
                    column = chunk * BLOCK + offset
                    value = _scores(scores, row_base, column, live[:, None] & (column < vocabulary), LOGITS)
                    each = _weights(value, shift[:, None], LOGITS)
                    over = each > weight[:, None]
                    over_pivot = each > pivot[:, None]
                    heavier += tl.sum(tl.where(over, 1, 0), axis=1)
                    heavier_than_pivot += tl.sum(tl.where(over_pivot, 1, 0), axis=1)
                    mass = tl.sum(tl.where(over, each, 0.0), axis=1)
                    mass_pivot = tl.sum(tl.where(over_pivot, each, 0.0), axis=1)
                    above = tl.where(chunk_ids == chunk, mass[:, None], above)
                    above_pivot = tl.where(chunk_ids == chunk, mass_pivot[:, None], above_pivot)
                keep = drawn >= 0
                keep_pivot = drawn >= 0
                if HAS_K:
                    keep = keep & ((heavier < most) | (most < 1))
                    keep_pivot = keep_pivot & ((heavier_than_pivot < most) | (most < 1))
                if HAS_P:
                    keep = keep & ((tl.sum(above, axis=1) < share * total) | (share >= 1.0))
                    keep_pivot = keep_pivot & ((tl.sum(above_pivot, axis=1) < share * total) | (share >= 1.0))
                keep = keep | ((drawn >= 0) & (heavier == 0))
                keep_pivot = keep_pivot | ((drawn >= 0) & (heavier_than_pivot == 0))
                token = tl.where(done, token, tl.where(keep, drawn, token))
                done = done | keep
                # What is kept lies above the drawn token, and above the pivot unless that is kept itself. Where
                # rounding left nothing to draw in the chunk, the next round draws anew.
                found = drawn >= 0
                masses = tl.where(found[:, None], tl.where(keep_pivot[:, None], above, above_pivot), masses)
                low = tl.where(found, tl.where(keep_pivot, weight, pivot), low)
                high = tl.where(keep_pivot, pivot, high)
                undone = tl.sum(tl.where(done, 0, 1), axis=0)
                turns += 1
            if tl.sum(tl.where(done, 0, 1), axis=0) > 0:
                heaviest = _heaviest(
                    scores, row_base, live, peaks, top, chunk_ids, vocabulary, LOGITS, ROWS, BLOCK, CHUNKS
                )
                token = tl.where(done, token, heaviest)
                before = tl.load(capped + row, mask=live, other=0)
                tl.store(capped + row, before + tl.where(done, 0, 1), mask=live)
        else:
            u0, u1 = _philox(row_key_low, row_key_high, row_step, row_lane, entry * 0, ROWS)
            drawn, weight = _draw(
                scores, row_base, live, masses, chunk_ids, low, shift, u0, u1, vocabulary, LOGITS, ROWS, BLOCK, CHUNKS
            )
            token = tl.where(done | (drawn < 0), token, drawn)
        tl.store(tokens + row, token, mask=live)


#: Tokens per chunk: with their weights, the running sums and the double buffers they fit the unified buffer.
BLOCK = 2048
#: Rounds after which the heaviest token is taken and counted.
MAX_ROUNDS = 64


def _lowering(variant: str, has_k: bool, has_p: bool, has_keys: bool, chunks: int = 128) -> Lowering:
    return Lowering(
        "sample_kernel",
        variant,
        {
            "scores": "*fp32",
            "top_k": "*i32",
            "top_p": "*fp32",
            "keys": "*i32",
            "tokens": "*i32",
            "capped": "*i32",
            "rows": "i32",
            "vocabulary": "i32",
            "row_stride": "i32",
            "key_low": "i32",
            "key_high": "i32",
            "step": "i32",
        },
        {
            "LOGITS": True,
            "HAS_K": has_k,
            "HAS_P": has_p,
            "HAS_KEYS": has_keys,
            "ROWS": 1,
            "BLOCK": BLOCK,
            "CHUNKS": chunks,
            "MAX_ROUNDS": MAX_ROUNDS,
        },
    )


LOWERINGS = (
    _lowering("untruncated", False, False, False),
    _lowering("top-k-top-p", True, True, False),
    _lowering("untruncated-own-keys", False, False, True),
    _lowering("top-k-top-p-own-keys", True, True, True),
)
