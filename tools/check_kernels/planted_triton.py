"""A kernel that needs more of the unified buffer than there is: the check must notice it, in every run."""

import triton
import triton.language as tl
from split_batch_kernels.lowering import Lowering


@triton.jit
def planted_overflow_kernel(source, target, SIZE: tl.constexpr):
    """exp of SIZE float32 at once: 256 KiB for one buffer, of 192."""
    offset = tl.arange(0, SIZE)
    tl.store(target + offset, tl.exp(tl.load(source + offset)))


LOWERINGS = (
    Lowering("planted_overflow_kernel", "fp32", {"source": "*fp32", "target": "*fp32"}, {"SIZE": 1 << 16}),
)
