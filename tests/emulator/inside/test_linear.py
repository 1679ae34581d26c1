"""Linear layers on few rows: the compiled product where it fits, torch's own elsewhere, the same numbers from both."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

ROWS = (0, 1, 15, 16, 17, 48, 64, 65)
SHAPES = ((64, 2), (65, 34), (63, 32), (200, 576), (192, 31))  # of a weight: width, depth


def rand(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    exact = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert (got.device.type, got.dtype, got.is_contiguous()) == ("npu", x.dtype, True)
    # Sums are made in float32, of terms whose size is that of the largest results, and rounded once.
    torch.testing.assert_close(got.cpu().double(), exact, rtol=2**-8, atol=1e-5 * max(1, x.shape[1]) ** 0.5)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_against_float64(rows, shape, with_bias):
    x, weight, bias = rand(rows, shape[1]), rand(*shape, seed=1), rand(shape[0], seed=2) if with_bias else None
    close(linear(x.npu(), weight.npu(), None if bias is None else bias.npu()), x, weight, bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_types(dtype):
    x, weight, bias = rand(5, 64, dtype=dtype), rand(96, 64, seed=1, dtype=dtype), rand(96, seed=2, dtype=dtype)
    torch.testing.assert_close(linear(x.npu(), weight.npu(), bias.npu()).cpu(), linear(x, weight, bias))


def test_rows_and_weights_that_are_parts_of_larger_ones():
    wide, weights = rand(20, 300), rand(400, 200, seed=1)
    x, weight = wide[3:12, 100:228], weights[17:300, 40:168]
    close(linear(wide.npu()[3:12, 100:228], weights.npu()[17:300, 40:168]), x, weight)
    close(linear(x.t().contiguous().npu().t(), weight.contiguous().npu()), x, weight)
    close(x.npu() @ weight.t().contiguous().npu(), x, weight)


def test_what_is_not_finite_stays_in_its_row():
    x, weight = rand(6, 64), rand(80, 64, seed=1)
    x[1, 5], x[2, 7] = torch.nan, torch.inf
    got = linear(x.npu(), weight.npu()).cpu()
    assert got[1].isnan().all()
    assert not got[2].isfinite().any()
    close(linear(x.npu(), weight.npu())[3:], x[3:], weight)


@pytest.mark.parametrize("factors", [{"alpha": 2}, {"beta": 0.5}])
def test_scaled_sums(factors):
    x, weight, bias = rand(5, 64), rand(96, 64, seed=1), rand(96, seed=2)
    expected = torch.addmm(bias.double(), x.double(), weight.double().t(), **factors)
    got = torch.addmm(bias.npu(), x.npu(), weight.npu().t(), **factors)
    torch.testing.assert_close(got.cpu().double(), expected, rtol=2**-7, atol=0.05)


@pytest.mark.parametrize("bias", [None, 96])
def test_shapes_that_do_not_fit_are_refused(bias):
    given = None if bias is None else rand(bias).npu()
    with pytest.raises(RuntimeError, match=r"cannot be multiplied|must match|expand"):
        linear(rand(5, 64).npu(), rand(96, 66).npu(), given)


def test_the_library_behind_the_products_can_be_switched_off_between_calls(monkeypatch):
    x, weight = rand(5, 64), rand(96, 64, seed=1)
    close(linear(x.npu(), weight.npu()), x, weight)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    close(linear(x.npu(), weight.npu()), x, weight)


@pytest.mark.parametrize("change", ["weight", "bias", "rows exchanged"])
def test_a_difference_would_be_noticed(change):
    x, weight, bias = rand(4, 64), rand(96, 64, seed=1), rand(96, seed=2)
    got = linear(x.npu(), weight.npu(), bias.npu())
    if change == "weight":
        weight[95, 63] += 1
    elif change == "bias":
        bias[95] += 0.5
    else:
        x = x.flip(0)
    with pytest.raises(AssertionError):
        close(got, x, weight, bias)
