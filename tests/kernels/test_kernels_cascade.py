"""The cascade ops, reference and interpreted Triton: equal to one pass in float64, and total where there is no key."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from split_batch_kernels import cascade, triton_ops
from split_batch_kernels.cascade import prefix_splits

from .attention_cases import Case, attention, error_bar, inputs, one_pass

bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
triton = pytest.param(triton_ops, marks=pytest.mark.interpreter, id="triton")
both = pytest.mark.parametrize("ops", [pytest.param(cascade, id="reference"), triton])

CASES = {
    "one request": Case((5,), 16, 1, 1, 64, 16),
    "group of 5": Case((1, 16, 17), 48, 2, 5, 64, 16, splits=2),
    "MQA, group of 8": Case((3, 30), 64, 1, 8, 128, 32, splits=3),
    "prefix ends inside a page": Case((1, 20, 40), 33, 2, 2, 64, 16, splits=4),
    "prefix shorter than a page": Case((16, 2), 7, 1, 3, 64, 16),
    "pages of 128": Case((1, 129), 129, 1, 2, 128, 128),
    "head size 80": Case((9, 4), 32, 2, 1, 80, 16, splits=2),
    "pages of 48": Case((50, 1), 96, 1, 4, 64, 48),
    "more parts than pages": Case((2, 3), 16, 1, 2, 64, 16, splits=5),
    "padding rows": Case((0, 4, 0), 32, 2, 2, 64, 16, splits=2),
    "no prefix": Case((17, 1, 40), 0, 2, 2, 64, 16, splits=2),
    "several blocks a part": Case((5, 40), 80, 2, 2, 64, 16, splits=2, spread=2.0),
    "extreme scores": Case((5, 18), 48, 1, 2, 64, 16, splits=3, spread=12.0),
    "more rows than a block": Case((3,) * 13, 16, 1, 6, 64, 16),
}


HALF = Case((40, 65), 256, 2, 5, 128, 64, dtype=bf16, splits=2)


def two_stages(ops, given):
    case = given.case
    outs, lses = ops.cascade_prefix(*given.common, given.prefix, case.scale, case.splits)
    return ops.cascade_suffix(*given.common, given.lengths, given.prefix, outs, lses, case.scale)


def agrees(ops, case):
    given = inputs(case)
    got = two_stages(ops, given)
    expected = one_pass(given)
    assert got.dtype == case.dtype
    bar = 1e-5 * max(1.0, case.spread) if case.dtype == fp32 else error_bar(given, expected)
    worst = float((got.double() - expected).abs().max())
    assert worst <= bar, f"{worst} above {bar}"  # NaN fails too


def agree(ops, *cases):
    for case in cases:
        agrees(ops, case)


@both
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_two_stages_are_one_pass(ops, case):
    agrees(ops, case)


@both
@pytest.mark.parametrize("dtype", [bf16, fp16], ids=str)
def test_error_of_half_precision(ops, dtype):
    agrees(ops, replace(HALF, dtype=dtype))
    agrees(ops, Case((16,) * 6, 128, 1, 8, 64, 32, dtype=dtype, spread=2.5))


@both
@pytest.mark.parametrize("splits", [1, 2, 3, 5])
def test_each_part_is_attention_over_its_run_of_pages(ops, splits):
    case = Case((4, 9), 75, 2, 3, 64, 16, splits=splits)
    given = inputs(case)
    outs, lses = ops.cascade_prefix(*given.common, given.prefix, case.scale, splits)
    assert (outs.shape, lses.shape) == ((splits, 2, 6, 64), (splits, 2, 6))
    pages = -(-75 // 16)
    run = -(-pages // splits) * 16
    for part in range(splits):
        begin, end = min(part * run, 75), min((part + 1) * run, 75)
        for token in range(2):
            rows = slice(token * 3, token * 3 + 3)
            if begin == end:
                assert torch.equal(outs[part, :, rows], torch.zeros(2, 3, 64))
                assert torch.isneginf(lses[part, :, rows]).all()
                continue
            # All requests hold the same prefix, so request 0 stands for the keys and each token for itself.
            one = inputs(case)
            one.query[0] = given.query[token]
            want, want_lse = attention(one, 0, begin, end)
            torch.testing.assert_close(outs[part, :, rows].double().reshape(6, 64), want, atol=1e-5, rtol=0)
            torch.testing.assert_close(lses[part, :, rows].double().reshape(6), want_lse, atol=1e-5, rtol=0)


@both
def test_without_a_prefix_the_suffix_stage_is_decode_attention_whatever_the_parts_hold(ops):
    case = Case((17, 3), 0, 1, 4, 64, 16)
    given = inputs(case)
    outs, lses = ops.cascade_prefix(*given.common, given.prefix, case.scale, 2)
    alone = ops.cascade_suffix(*given.common, given.lengths, given.prefix, outs, lses, case.scale)
    outs.fill_(math.nan)
    lses[0].fill_(math.inf)
    assert torch.equal(ops.cascade_suffix(*given.common, given.lengths, given.prefix, outs, lses, case.scale), alone)


@both
def test_a_request_without_any_key_is_zero(ops):
    case = Case((0, 3), 0, 1, 2, 64, 16)
    given = inputs(case)
    got = two_stages(ops, given)
    assert torch.equal(got[0], torch.zeros(2, 64))
    assert not got.isnan().any()


@both
def test_later_lengths_are_read_from_their_tensors(ops):
    """The same tensors with other contents: what a captured pair of calls does on replay."""
    given = inputs(Case((20, 33), 32, 1, 2, 64, 16))
    first = two_stages(ops, given)
    given.prefix.fill_(16)
    assert torch.allclose(two_stages(ops, given), first, atol=1e-5)
    given.lengths.sub_(2)
    expected = one_pass(given)
    assert float((two_stages(ops, given).double() - expected).abs().max()) < 1e-5
    assert not torch.allclose(two_stages(ops, given), first, atol=1e-3)


@both
def test_no_rows(ops):
    given = inputs(Case((3,), 16, 2, 2, 64, 16))
    query = given.query[:0]
    outs, lses = ops.cascade_prefix(query, given.key, given.value, given.table, given.prefix, 0.1, 2)
    assert (outs.shape, lses.shape) == ((2, 2, 0, 64), (2, 2, 0))
    got = ops.cascade_suffix(
        query, given.key, given.value, given.table[:0], given.lengths[:0], given.prefix, outs, lses, 0.1
    )
    assert got.shape == (0, 4, 64)


@both
def test_a_table_that_is_a_slice_of_a_wider_one(ops):
    given = inputs(Case((5, 18), 32, 2, 2, 64, 16))
    wide = torch.full((2, given.table.shape[1] + 5), 2**30, dtype=torch.int32)
    wide[:, : given.table.shape[1]] = given.table
    expected = two_stages(ops, given)
    given.table = wide[:, : given.table.shape[1]]
    assert not given.table.is_contiguous()
    assert torch.equal(two_stages(ops, given), expected)


@both
def test_the_same_twice_bit_for_bit(ops):
    given = inputs(Case((5, 18), 48, 2, 2, 64, 16, dtype=bf16, splits=2))
    assert torch.equal(two_stages(ops, given), two_stages(ops, given))


MUTANTS = {
    "no rescaling": ("prefix_triton", "mixed * before[:, None] + added", "mixed + added"),
    "sum not rescaled": ("prefix_triton", "total * before + tl.sum(weights, 1)", "total + tl.sum(weights, 1)"),
    "all keys of a page": ("prefix_triton", "block * BLOCK_KEYS + within < length", "within < BLOCK_KEYS"),
    "a page less per part": (
        "prefix_triton", "tl.minimum((split + 1) * pages_per_split", "tl.minimum((split + 1) * pages_per_split - 1"),
    "heads of a group interleaved": (
        "prefix_triton", "kv_head * GROUP + readable_row % GROUP", "kv_head + (readable_row % GROUP) * KV_HEADS"),
    "base-2 log-sum-exp": ("prefix_triton", "peak + tl.log(divisor)", "peak + tl.log2(divisor)"),
    "weights cut off instead of rounded": ("prefix_triton", "COMPUTE != ELEMENT)", "False)"),
    "one key too many": ("suffix_triton", "(number < length)", "(number <= length)"),
    "the prefix twice": ("suffix_triton", "(number >= start_key) & ", ""),
    "parts of another token": ("suffix_triton", "* rows + sequence * GROUP", "* rows"),
    "the first part only": ("suffix_triton", "for part in range(parts)", "for part in range(1)"),
}


@pytest.mark.interpreter
@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_noticed(change, triton_mutant):
    triton_mutant(*change)
    with pytest.raises(AssertionError):
        agree(triton_ops, CASES["prefix ends inside a page"], CASES["several blocks a part"], HALF)


@pytest.mark.interpreter
def test_results_cut_off_instead_of_rounded_are_noticed(triton_mutant):
    triton_mutant("suffix_triton", "_rounded(merged, out.dtype.element_ty, BY_HAND)", "merged.to(tl.bfloat16)")
    with pytest.raises(AssertionError):
        agrees(triton_ops, HALF)


@pytest.mark.interpreter
def test_rows_past_the_end_are_not_read(monkeypatch):
    """The last rows of a block have no query: their addresses must lie in the tensor, whatever a mask would hide."""
    case = CASES["group of 5"]
    given = inputs(case)
    padded = torch.full((given.query.shape[0] + 9, *given.query.shape[1:]), math.nan)
    padded[: given.query.shape[0]] = given.query
    expected = two_stages(triton_ops, given)
    given.query = padded[: given.query.shape[0]]
    assert torch.equal(two_stages(triton_ops, given), expected)


@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "prefix", "expected"),
    [(8, 40, 8, 4096, 3), (64, 40, 8, 4096, 1), (1, 8, 1, 8192, 8), (256, 40, 8, 8192, 1), (8, 40, 8, 128, 1)],
)
def test_splits_fill_the_cores(tokens, heads, kv_heads, prefix, expected):
    assert prefix_splits(tokens, heads, kv_heads, prefix, cores=24, block_rows=64) == expected
