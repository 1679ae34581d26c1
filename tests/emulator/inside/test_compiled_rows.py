"""The compiled forms of row operators do what torch's own operators do, which take the inputs that they do not.

A tensor that is not contiguous goes the long way; its contiguous copy the compiled one.
"""

from __future__ import annotations

import pytest
import torch
import torch_npu
from torch_npu.ops import activation, norm, rope

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDTHS = (1, 15, 16, 17, 577)


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def spread(x: torch.Tensor) -> torch.Tensor:
    """The same values with every second element of memory unused."""
    return torch.stack((x, torch.full_like(x, torch.nan)), -1)[..., 0]


def alike(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.dtype == b.dtype
    step = torch.finfo(a.dtype).eps
    torch.testing.assert_close(a.double(), b.double(), rtol=max(step, 2e-6), atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms(dtype, width):
    x, more, gamma = (rand(7, width, dtype=dtype, seed=seed) for seed in range(3))
    x[2], x[3, 0], x[4, 0] = 0, torch.nan, torch.inf
    for one, other in zip(norm.rms_norm(x, gamma, 1e-6), norm.rms_norm(spread(x), gamma, 1e-6), strict=True):
        alike(one, other)
    pair = norm.add_rms_norm(x, more, gamma, 1e-6), norm.add_rms_norm(spread(x), more, gamma, 1e-6)
    for one, other in zip(*pair, strict=True):
        alike(one, other)
    assert norm.rms_norm(x, gamma, 1e-6)[0][3].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_swiglu(dtype, width):
    x = rand(5, 2 * width, dtype=dtype) * 4
    x[0], x[1], x[2, 0] = 60000.0, -60000.0, torch.nan
    alike(activation.npu_swiglu(x), activation.npu_swiglu(spread(x)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("rotary", [32, 64])
def test_rotary(dtype, half, rotary):
    positions, cache = torch.tensor([3, 0, 9, 3]), rand(10, rotary, dtype=dtype, seed=1)
    x = rand(4, 5 * 64, dtype=dtype)
    x[1, 3] = torch.nan
    alike(rope._apply(positions, x, cache, 64, half), rope._apply(positions, spread(x), cache, 64, half))
    fused = torch.cat((x, x), 1)  # query rows as they lie in the product of all projections
    alike(rope._apply(positions, fused[:, 320:], cache, 64, half), rope._apply(positions, x, cache, 64, half))


@pytest.mark.parametrize("position", [-1, 10])
def test_a_position_outside_of_the_cache_is_refused(position):
    with pytest.raises(IndexError, match=f"position {position} is outside of the cosine and sine cache of 10 rows"):
        rope._apply(torch.tensor([position]), rand(1, 64), rand(10, 64), 64, True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_two_rows_with_one_slot_the_later_one_stays(dtype):
    rows, cache = rand(3, 2, 8, dtype=dtype), torch.zeros(2, 4, 2, 8, dtype=dtype).npu()
    slots = torch.tensor([5, -1, 5], dtype=torch.int32).npu()
    torch_npu._npu_reshape_and_cache(rows.npu(), rows.npu(), cache, cache, slots)
    expected = torch.zeros(2, 4, 2, 8, dtype=dtype)
    expected[1, 1] = rows[2]
    assert torch.equal(cache.cpu(), expected)


MUTANTS = {
    "the norm of another epsilon": lambda x, g: norm.rms_norm(x, g, 1e-2),
    "not scaled": lambda x, g: norm.rms_norm(x, torch.ones_like(g), 1e-6),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_a_difference_would_be_noticed(mutant):
    x, gamma = rand(3, 16), rand(16, seed=1)
    with pytest.raises(AssertionError):
        alike(mutant(x, gamma)[0], norm.rms_norm(spread(x), gamma, 1e-6)[0])
