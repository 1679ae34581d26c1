"""GeGLU with the exact error function: the kernel.

``gelu(g) = g * Phi(g)`` with the normal distribution function ``Phi``. The textbook ``0.5 * (1 + erf(g / sqrt 2))``
cancels for negative g: at g = -5 float32 has two digits left, at g = -6 none. Here the tail is written as
``0.5 * exp(-g**2 / 2) * erfcx(|g| / sqrt 2)``, whose factors are all accurate, and no back end's own erf is asked.

``erfcx`` (the scaled complementary error function) is a polynomial in ``t = (z - 2.5) / (z + 2.5)`` divided by
``1 + 2 z``, the variable of Schonfelder, "Chebyshev expansions for the error and related functions", Math. Comp. 32
(1978); the coefficients are an interpolation of our own at Chebyshev nodes on 0 <= z <= 20 (relative error 5e-8).
"""

import triton
import triton.language as tl

from .lowering import Lowering

#: Coefficients of ``(1 + 2 z) * erfcx(z)`` in t, the constant first.
ERFCX = (
    1.2648382186889648,
    -0.1223568394780159,
    -0.09902415424585342,
    0.15763230621814728,
    -0.10297619551420212,
    0.03274009749293327,
    0.0009855057578533888,
    -0.004302138928323984,
    0.0003756607184186578,
    0.00048562270239926875,
)
_C0 = tl.constexpr(ERFCX[0])
_C1 = tl.constexpr(ERFCX[1])
_C2 = tl.constexpr(ERFCX[2])
_C3 = tl.constexpr(ERFCX[3])
_C4 = tl.constexpr(ERFCX[4])
_C5 = tl.constexpr(ERFCX[5])
_C6 = tl.constexpr(ERFCX[6])
_C7 = tl.constexpr(ERFCX[7])
_C8 = tl.constexpr(ERFCX[8])
_C9 = tl.constexpr(ERFCX[9])


@triton.jit
def _erfcx(z):
    """exp(z**2) * erfc(z) for 0 <= z <= 20, float32."""
    t = (z - 2.5) / (z + 2.5)
    value = _C9
    value = value * t + _C8
    value = value * t + _C7
    value = value * t + _C6
    value = value * t + _C5
    value = value * t + _C4
    value = value * t + _C3
    value = value * t + _C2
    value = value * t + _C1
    value = value * t + _C0
    return value / (1.0 + 2.0 * z)


@triton.jit
def _geglu(gate, up):
    """gelu(gate) * up in float32; the tail's exponential is split, so that a large `up` finds it not yet vanished."""
    half_scaled = 0.5 * _erfcx(tl.minimum(tl.abs(gate) * 0.7071067811865476, 20.0))
    decay = tl.exp(-0.25 * gate * gate)
    below = ((gate * half_scaled) * decay) * up * decay
    above = (gate * (1.0 - half_scaled * decay * decay)) * up
    return tl.where(gate < 0.0, below, above)


@triton.jit(do_not_specialize=["rows"])
def geglu_kernel(
    gate_up,
    out,
    rows,
    width,
    row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """out (rows, width) = gelu(gate) * up of gate_up (rows, 2 * width), the gates first; rows `row_stride` apart.

    Every program takes tiles of BLOCK_ROWS x BLOCK_COLUMNS in turn, so that the grid need not grow with the tensor.
    """
    across = (width + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS
    tiles = (rows + BLOCK_ROWS - 1) // BLOCK_ROWS * across
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile // across * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
        column = tile % across * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
        inside = (row < rows) & (column < width)
        source = row.to(tl.int64) * row_stride + column
        gate = tl.load(gate_up + source, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up + source + width, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row.to(tl.int64) * width + column, _geglu(gate, up).to(out.dtype.element_ty), mask=inside)


#: Elements per tile: with the float32 copies and the double buffers they fit the unified buffer.
TILE = 2048


def _lowering(dtype: str, block_rows: int, block_columns: int) -> Lowering:
    return Lowering(
        "geglu_kernel",
        f"{dtype}-{block_rows}x{block_columns}",
        {"gate_up": f"*{dtype}", "out": f"*{dtype}", "rows": "i32", "width": "i32", "row_stride": "i32"},
        {"BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns},
    )


LOWERINGS = (
    _lowering("bf16", 1, TILE),
    _lowering("bf16", 8, TILE // 8),
    _lowering("fp16", 1, TILE),
    _lowering("fp32", 1, TILE),
)
