"""``lse_merge``: the merge is total, exact where it can be, and equal to the softmax over all keys."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from split_batch_kernels import merge

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EMPTY = [-math.inf, math.inf, math.nan]
finite = st.floats(-1e4, 1e4, width=32)
quick = settings(max_examples=60)


def partials(rows, head_size=16, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, rows, head_size, generator=generator).to(dtype).unbind()


def float64_merge(o1, o2, l1, l2):
    lse = torch.stack([l1.double(), l2.double()])
    weights = torch.softmax(lse, 0).unsqueeze(-1)
    return weights[0] * o1.double() + weights[1] * o2.double()


def agrees_with_float64(implementation):
    for dtype in DTYPES:
        o1, o2 = partials(200, dtype=dtype)
        generator = torch.Generator().manual_seed(1)
        l1, l2 = torch.randn(2, 200, generator=generator) * 4
        l1[:4], l2[:4] = torch.tensor([30.0, 5.0, -40.0, 0.0]), torch.tensor([35.0, 5.0, 40.0, 80.0])
        want = float64_merge(o1, o2, l1, l2)
        for first in (l1, l1.repeat_interleave(8)):
            for second in (l2, l2.repeat_interleave(8)):
                got = implementation(o1, o2, first, second, 2)
                assert got.dtype == torch.float32
                torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)


def test_against_float64():
    agrees_with_float64(torch.ops.npu.lse_merge)


@pytest.mark.parametrize("dtype1", DTYPES, ids=str)
@pytest.mark.parametrize("dtype2", DTYPES, ids=str)
@pytest.mark.parametrize("code", [0, 1, 2])
def test_result_dtype_is_rounded_once(dtype1, dtype2, code):
    o1, _ = partials(40, dtype=dtype1)
    _, o2 = partials(40, dtype=dtype2)
    l1, l2 = torch.randn(2, 40)
    got = torch.ops.npu.lse_merge(o1, o2, l1, l2, code)
    expected_dtype = (dtype1, torch.bfloat16, torch.float32)[code]
    assert got.dtype == expected_dtype
    full = torch.ops.npu.lse_merge(o1, o2, l1, l2, 2)
    assert torch.equal(got, full.to(expected_dtype))


@pytest.mark.parametrize("shape", [(64, 40, 128), (7, 4, 16), (13, 8, 128), (1, 1, 32), (3, 64), (48,)], ids=str)
def test_result_has_the_shape_of_the_first(shape):
    o1, o2 = torch.randn(2, *shape)
    l1, l2 = torch.randn(2, o1.numel() // shape[-1])
    assert torch.ops.npu.lse_merge(o1, o2, l1, l2).shape == shape
    rows = o1.numel() // shape[-1]
    assert torch.ops.npu.lse_merge(o1, o2.view(rows, 1, shape[-1]), l1, l2.view(rows, 1)).shape == shape


def test_no_rows():
    empty = torch.zeros(0, 4, 32, dtype=torch.bfloat16)
    result = torch.ops.npu.lse_merge(empty, empty, torch.zeros(0), torch.zeros(0, 4, 8), 2)
    assert (result.shape, result.dtype) == ((0, 4, 32), torch.float32)


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.view(torch.int16 if a.itemsize == 2 else torch.int32),
                                              b.view(torch.int16 if b.itemsize == 2 else torch.int32))


def ignores_an_empty_partial(implementation):
    for dtype in DTYPES:
        o, garbage = partials(6, dtype=dtype)
        o[0], o[1, 0], o[2] = -0.0, 0.0, torch.finfo(dtype).max
        garbage[0], garbage[1], garbage[2] = math.nan, math.inf, -math.inf
        lse = torch.tensor([0.0, -300.0, 3e38, 1e-30, -3e38, 7.5])
        for value in EMPTY:
            nothing = torch.full((6,), value)
            assert same_bits(implementation(o, garbage, lse, nothing), o)
            assert same_bits(implementation(garbage, o, nothing, lse), o)


@pytest.mark.parametrize("stride", [1, 8])
def test_merging_with_an_empty_partial_is_the_identity_bit_for_bit(stride):
    ignores_an_empty_partial(
        lambda o1, o2, l1, l2: torch.ops.npu.lse_merge(
            o1, o2, l1.repeat_interleave(stride), l2.repeat_interleave(stride))
    )


@pytest.mark.parametrize("first", EMPTY)
@pytest.mark.parametrize("second", EMPTY)
def test_two_empty_partials_are_zero(first, second):
    garbage = torch.full((3, 16), math.nan)
    out, lse = merge.merge_partials(garbage, torch.full((3,), first), garbage, torch.full((3,), second))
    assert same_bits(out, torch.zeros(3, 16))
    assert torch.isneginf(lse).all()
    assert same_bits(torch.ops.npu.lse_merge(garbage, garbage, torch.full((3,), first), torch.full((3,), second)), out)


@pytest.mark.parametrize("level", [-0.0, 0.0, -3.0, 80.0])
@pytest.mark.parametrize("empty", EMPTY)
def test_with_an_empty_partial_the_log_sum_exp_is_the_other_ones_bit_for_bit(level, empty):
    o = torch.ones(2, 16)
    one, none = torch.full((2,), level), torch.full((2,), empty)
    assert same_bits(merge.merge_partials(o, one, o, none)[1], one)
    assert same_bits(merge.merge_partials(o, none, o, one)[1], one)


any_lse = st.one_of(finite, st.sampled_from(EMPTY), st.floats(width=32))


@quick
@given(lses=st.lists(st.tuples(any_lse, any_lse), min_size=1, max_size=9), seed=st.integers(0, 999))
def test_commutes_bit_for_bit(lses, seed):
    o1, o2 = partials(len(lses), seed=seed)
    l1, l2 = (torch.tensor(part, dtype=torch.float32) for part in zip(*lses, strict=True))
    forward, backward = merge.merge_partials(o1, l1, o2, l2), merge.merge_partials(o2, l2, o1, l1)
    assert same_bits(forward[0], backward[0])
    assert same_bits(forward[1], backward[1])


@quick
@given(lses=st.lists(st.tuples(any_lse, any_lse), min_size=1, max_size=9), seed=st.integers(0, 999))
def test_lies_between_its_partials_and_never_nan(lses, seed):
    o1, o2 = partials(len(lses), seed=seed)
    l1, l2 = (torch.tensor(part, dtype=torch.float32) for part in zip(*lses, strict=True))
    out, lse = merge.merge_partials(o1, l1, o2, l2)
    assert not out.isnan().any()
    assert not lse.isnan().any()
    both = torch.isfinite(l1) & torch.isfinite(l2)
    low, high = torch.minimum(o1, o2)[both], torch.maximum(o1, o2)[both]
    slack = 4 * torch.finfo(torch.float32).eps * torch.maximum(low.abs(), high.abs())
    assert (out[both] >= low - slack).all()
    assert (out[both] <= high + slack).all()


@quick
@given(
    lses=st.lists(st.tuples(st.integers(-4096, 4096), st.integers(-4096, 4096)), min_size=1, max_size=9),
    shift=st.integers(-(2**16), 2**16),
    seed=st.integers(0, 999),
)
def test_shift_invariance(lses, shift, seed):
    """Multiples of 1/64 below 2**12 add without rounding, so the outputs are equal bit for bit."""
    o1, o2 = partials(len(lses), seed=seed)
    l1, l2 = (torch.tensor(part, dtype=torch.float32) / 64 for part in zip(*lses, strict=True))
    out, lse = merge.merge_partials(o1, l1, o2, l2)
    moved, moved_lse = merge.merge_partials(o1, l1 + shift / 64, o2, l2 + shift / 64)
    assert same_bits(out, moved)
    torch.testing.assert_close(moved_lse, lse + shift / 64, rtol=2e-7, atol=2e-7)


def test_with_itself_adds_ln_2():
    o, _ = partials(50)
    lse = torch.linspace(-50, 50, 50)
    out, doubled = merge.merge_partials(o, lse, o, lse)
    assert same_bits(out, o)
    torch.testing.assert_close(doubled, lse + math.log(2), rtol=2e-7, atol=2e-7)


def test_associates():
    o1, o2 = partials(100)
    o3, _ = partials(100, seed=5)
    l1, l2, l3 = torch.randn(3, 100) * 3
    left = merge.merge_partials(*merge.merge_partials(o1, l1, o2, l2), o3, l3)
    right = merge.merge_partials(o1, l1, *merge.merge_partials(o2, l2, o3, l3))
    torch.testing.assert_close(left[0], right[0], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(left[1], right[1], rtol=1e-6, atol=1e-6)


def chain_agrees(dense, stage1_op, merge_op):
    """Prefix by stage 1, suffix per request, merged: equal to attention over all keys of each request."""
    generator = torch.Generator().manual_seed(3)
    page, heads, kv_heads, head_size = 16, 6, 2, 32
    prefix, suffixes = 64, [1, 16, 29]
    query = torch.randn(3, heads, head_size, generator=generator)
    key, value = torch.randn(2, 12, page, kv_heads, head_size, generator=generator)
    table = torch.tensor(
        [[3, 1, 4, 0, 5, 99], [3, 1, 4, 0, 9, 99], [3, 1, 4, 0, 2, 6]], dtype=torch.int32)
    want, _ = dense(query, key, value, table, [1, 1, 1], [prefix + s for s in suffixes])
    o1, l1 = stage1_op(query, key, value, table[:1, :4], torch.tensor([3]), torch.tensor([prefix]), 3)
    o2, l2 = stage1_op(
        query, key, value, table[:, 4:].contiguous(), torch.ones(3, dtype=torch.int64), torch.tensor(suffixes), 1)
    got = merge_op(o1, o2, l1, l2[::8].contiguous(), 2)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6)


def test_two_stages_are_attention(dense):
    chain_agrees(dense, torch.ops.npu.fa_fp32_stage1, torch.ops.npu.lse_merge)


def an_empty_row_changes_no_other_row(merge_op):
    """Rows of which some are empty go another way through the code than rows of which none is."""
    generator = torch.Generator().manual_seed(5)
    o1, o2 = torch.randn(2, 6, 16, generator=generator)
    lse1, lse2 = 4 * torch.randn(2, 6, generator=generator)
    alone = merge_op(o1, o2, lse1, lse2, 2)
    extended = [torch.cat((part, torch.full_like(part[:1], torch.nan))) for part in (o1, o2)]
    levels = [torch.cat((part, torch.full((1,), -torch.inf))) for part in (lse1, lse2)]
    together = merge_op(*extended, *levels, 2)
    assert torch.equal(alone, together[:6])
    assert torch.equal(together[6], torch.zeros(16))


def is_the_merge(implementation, dense):
    agrees_with_float64(implementation)
    an_empty_row_changes_no_other_row(implementation)
    ignores_an_empty_partial(implementation)
    chain_agrees(dense, torch.ops.npu.fa_fp32_stage1, implementation)


def test_the_implementation_passes_what_the_mutants_fail(dense):
    is_the_merge(merge.lse_merge, dense)


MUTANTS = {
    "level shifted": ("torch.softmax(levels,", "torch.softmax(levels + torch.tensor([[0.0], [0.01]]),"),
    "base 2": ("torch.softmax(levels,", "torch.softmax(levels * 0.6931472,"),
    "plain average": ("torch.softmax(levels, 0)", "torch.softmax(levels, 0).fill_(0.5)"),
    "not normalised": ("torch.softmax(levels, 0)", "(levels - levels.amax(0)).exp_()"),
    "partials exchanged": ("(first * weights[0]).add_(second * weights[1])",
                           "(second * weights[0]).add_(first * weights[1])"),
    "mixed though one is empty": ("bool(used.all())", "bool(used.any())"),
    "always the mix": ("torch.where(used.all(0), mixed, single)", "mixed"),
    "infinity is a value": ("posinf=-math.inf", "posinf=math.inf"),
    "NaN is a value": ("nan=-math.inf", "nan=0.0"),
    "replicas as rows": ("lse2.view(-1, stride2)[:, 0]", "lse2.view(-1)[: o2.numel() // head_size]"),
}


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_noticed(change, dense, mutant):
    broken = mutant(merge, *change).lse_merge
    with pytest.raises(AssertionError):
        is_the_merge(broken, dense)
