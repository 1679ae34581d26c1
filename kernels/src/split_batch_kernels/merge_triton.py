"""Merge of attention partials by their log-sum-exp: the device function that all kernels share, and the kernel."""

import triton
import triton.language as tl

from .lowering import Lowering


@triton.jit
def _take(peak, total, mixed, out, lse):
    """Take one more partial into a running merge.

    The state of R rows stands for the partial ``(mixed / total, peak + ln(total))``; an empty one has peak -inf and
    total 0. A partial whose log-sum-exp is not finite saw no key. What has no weight is not used at all (selected, not
    multiplied: zero times NaN is NaN), and with one partial alone its values stay as they are, bit for bit.

    Args:
        peak, total: (R,) float32. mixed: (R, D) float32. out: (R, D) float32. lse: (R,) float32, natural logarithm.
    """
    lse = tl.where((lse > float("-inf")) & (lse < float("inf")), lse, float("-inf"))
    highest = tl.maximum(peak, lse)
    shift = tl.where(highest > float("-inf"), highest, 0.0)
    before = tl.exp(peak - shift)
    weight = tl.exp(lse - shift)
    kept = total * before
    both = (kept > 0.0) & (weight > 0.0)
    sum_of_both = mixed * before[:, None] + out * weight[:, None]
    single = tl.where((kept > 0.0)[:, None], mixed, tl.where((weight > 0.0)[:, None], out, 0.0))
    return highest, kept + weight, tl.where(both[:, None], sum_of_both, single)


@triton.jit
def _finish(peak, total, mixed):
    """The partial that a running merge stands for: out (R, D) and lse (R,); zeros and -inf where no key was seen."""
    some = total > 0.0
    divisor = tl.where(some, total, 1.0)
    shift = tl.where(peak > float("-inf"), peak, 0.0)
    return mixed / divisor[:, None], tl.where(some, shift + tl.log(divisor), float("-inf"))


@triton.jit
def _rounded(value, TYPE: tl.constexpr, BY_HAND: tl.constexpr):
    """float32 as TYPE, rounded to nearest, ties to even; BY_HAND for the interpreter, which cuts bfloat16 off."""
    if BY_HAND and TYPE == tl.bfloat16:  # noqa: SIM300
        bits = value.to(tl.uint32, bitcast=True)
        up = ((bits >> 16) & 1) + 0x7FFF
        nearest = tl.add(bits, up, sanitize_overflow=False) & 0xFFFF0000
        value = tl.where(value == value, nearest.to(tl.float32, bitcast=True), value)
    return value.to(TYPE)


@triton.jit
def merge_kernel(
    outs,
    lses,
    last_out,
    last_lse,
    out,
    lse,
    rows,
    parts,
    out_part_stride,
    lse_part_stride,
    lse_row_stride,
    last_lse_row_stride,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    HAS_LAST: tl.constexpr,
    BY_HAND: tl.constexpr,
):
    """Merge `parts` stacked partials, and one more of another type where HAS_LAST.

    outs (parts, rows, D), rows contiguous; lses (parts, rows) with the given strides (8 between rows where each value
    is written eight times); last_out (rows, D), last_lse (rows,); out (rows, D) in its own type; lse (rows,) float32.
    Grid: ceil(rows / BLOCK_ROWS) programs.
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, PADDED_SIZE)
    in_range = row < rows
    inside = in_range[:, None] & (column < HEAD_SIZE)[None, :]
    cell = row[:, None] * HEAD_SIZE + column[None, :]

    peak = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.full((BLOCK_ROWS,), 0.0, tl.float32)
    mixed = tl.full((BLOCK_ROWS, PADDED_SIZE), 0.0, tl.float32)
    for part in range(parts):
        part_out = tl.load(outs + part * out_part_stride + cell, mask=inside, other=0.0).to(tl.float32)
        part_lse = tl.load(lses + part * lse_part_stride + row * lse_row_stride, mask=in_range, other=float("-inf"))
        peak, total, mixed = _take(peak, total, mixed, part_out, part_lse)
    if HAS_LAST:
        part_out = tl.load(last_out + cell, mask=inside, other=0.0).to(tl.float32)
        part_lse = tl.load(last_lse + row * last_lse_row_stride, mask=in_range, other=float("-inf"))
        peak, total, mixed = _take(peak, total, mixed, part_out, part_lse)
    merged, merged_lse = _finish(peak, total, mixed)
    tl.store(out + cell, _rounded(merged, out.dtype.element_ty, BY_HAND), mask=inside)
    tl.store(lse + row, merged_lse, mask=in_range)


#: Rows per program: a multiple of 8, so that a program's log-sum-exps fill whole 32-byte blocks, and few enough that
#: two partials, the running state and their double buffers fit the unified buffer of 192 KiB.
BLOCK_ROWS = 32


def _lowering(variant: str, parts: str, last: str, result: str, head_size: int, has_last: bool) -> Lowering:
    return Lowering(
        "merge_kernel",
        variant,
        {
            "outs": parts,
            "lses": "*fp32",
            "last_out": last,
            "last_lse": "*fp32",
            "out": result,
            "lse": "*fp32",
            "rows": "i32",
            "parts": "i32",
            "out_part_stride": "i32",
            "lse_part_stride": "i32",
            "lse_row_stride": "i32",
            "last_lse_row_stride": "i32",
        },
        {"HEAD_SIZE": head_size, "PADDED_SIZE": head_size, "BLOCK_ROWS": BLOCK_ROWS, "HAS_LAST": has_last}
        | {"BY_HAND": False},
    )


LOWERINGS = (
    _lowering("stack-fp32-to-bf16-d128", "*fp32", "*fp32", "*bf16", 128, False),
    _lowering("stack-fp32-to-fp32-d128", "*fp32", "*fp32", "*fp32", 128, False),
    _lowering("stack-fp32-to-bf16-d64", "*fp32", "*fp32", "*bf16", 64, False),
    _lowering("fp32-and-bf16-to-bf16-d128", "*fp32", "*bf16", "*bf16", 128, True),
    _lowering("bf16-and-bf16-to-bf16-d128", "*bf16", "*bf16", "*bf16", 128, True),
    _lowering("fp16-and-fp16-to-fp16-d128", "*fp16", "*fp16", "*fp16", 128, True),
)
