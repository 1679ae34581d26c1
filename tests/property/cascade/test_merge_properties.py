"""What the merge of attention partials promises, on the reference and on the interpreted Triton kernel."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from split_batch_kernels import partial_merge, triton_ops

NO_KEY = [math.nan, math.inf, -math.inf]
TYPES = [torch.float32, torch.bfloat16, torch.float16]
HEAD_SIZE = 16

both = pytest.mark.parametrize(
    "ops",
    [
        pytest.param(partial_merge, id="reference"),
        pytest.param(triton_ops, id="triton", marks=pytest.mark.interpreter),
    ],
)
# No shrinking: an example is small, and the mutants fail on purpose. What is drawn need not tell a mutant (levels of a
# wide range rarely lie so close that several parts have a weight): the examples that are named do, for each of them.
PHASES = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
quick = settings(max_examples=25, phases=PHASES, report_multiple_bugs=False)
finite = st.floats(-1e4, 1e4, width=32)
level = st.one_of(finite, st.sampled_from(NO_KEY), st.floats(width=32))
seeds = st.integers(0, 2**16)


def rows_of(parts: int, values=level):
    return st.lists(st.tuples(*[values] * parts), min_size=1, max_size=9)


def partials(levels, seed, dtype=torch.float32):
    """Random outputs (parts, rows, D) and the levels as float32 (parts, rows)."""
    lses = torch.tensor(levels, dtype=torch.float32).T.contiguous()
    outs = torch.randn(*lses.shape, HEAD_SIZE, generator=torch.Generator().manual_seed(seed))
    return outs.to(dtype), lses


def same_bits(first, second):
    kind = torch.int16 if first.element_size() == 2 else torch.int32
    return first.dtype == second.dtype and torch.equal(first.view(kind), second.view(kind))


@both
@quick
@example(levels=[(1.0,)], nothing=-math.inf, dtype=torch.float32, place=1, seed=0)
@given(
    levels=rows_of(1, finite),
    nothing=st.sampled_from(NO_KEY),
    dtype=st.sampled_from(TYPES),
    place=st.integers(0, 2),
    seed=seeds,
)
def test_an_empty_part_changes_no_bit(ops, levels, nothing, dtype, place, seed):
    outs, lses = partials(levels, seed, dtype)
    out, lse = outs[0], lses[0]
    out[0, :3] = torch.tensor([-0.0, 0.0, torch.finfo(dtype).max])
    garbage = torch.full_like(out, math.nan)
    garbage[:, ::2] = math.inf
    empty = torch.full_like(lse, nothing)
    for got in (ops.attention_merge(out, lse, garbage, empty), ops.attention_merge(garbage, empty, out, lse)):
        assert same_bits(got[0], out)
        assert torch.equal(got[1], lse)  # a level of -0.0 may come back as 0.0
    parts, part_lses = [garbage] * 3, [empty] * 3
    parts[place], part_lses[place] = out, lse
    got = ops.attention_merge_stack(torch.stack(parts), torch.stack(part_lses))
    assert same_bits(got[0], out)
    assert torch.equal(got[1], lse)


@both
@quick
@example(levels=[(0.0, 0.5)], seed=0)
@given(levels=rows_of(2), seed=seeds)
def test_two_parts_commute_bit_for_bit(ops, levels, seed):
    outs, lses = partials(levels, seed)
    forward = ops.attention_merge(outs[0], lses[0], outs[1], lses[1])
    backward = ops.attention_merge(outs[1], lses[1], outs[0], lses[0])
    assert same_bits(forward[0], backward[0])
    assert same_bits(forward[1], backward[1])


@both
@quick
@example(levels=[(0.0, 1.0, 2.0, 3.0)], seed=0)
@given(levels=rows_of(4), seed=seeds)
def test_associates_within_rounding(ops, levels, seed):
    outs, lses = partials(levels, seed)
    at_once = ops.attention_merge_stack(outs, lses)
    left = outs[0], lses[0]
    for part in range(1, 4):
        left = ops.attention_merge(*left, outs[part], lses[part])
    right = outs[3], lses[3]
    for part in (2, 1, 0):
        right = ops.attention_merge(outs[part], lses[part], *right)
    pairs = ops.attention_merge(
        *ops.attention_merge(outs[0], lses[0], outs[1], lses[1]),
        *ops.attention_merge(outs[2], lses[2], outs[3], lses[3]),
    )
    # A level of size L has an absolute rounding error of eps * L, which is the relative error of a weight.
    size = torch.where(torch.isfinite(lses), lses.abs(), torch.zeros(())).amax(0)
    slack = 8 * torch.finfo(torch.float32).eps * (1 + size).clamp(max=1e30)
    for other in (left, right, pairs):
        close = (other[0] - at_once[0]).abs() <= (outs.abs().amax(0) * slack.unsqueeze(-1)) + 1e-6
        assert (close | (slack > 0.1).unsqueeze(-1)).all()
        same_emptiness = torch.isneginf(other[1]) == torch.isneginf(at_once[1])
        assert same_emptiness.all()
        finite_rows = ~torch.isneginf(at_once[1])
        assert ((other[1] - at_once[1]).abs() <= slack)[finite_rows].all()


@both
@quick
@example(levels=[(0, 64, 128)], shift=2**16, seed=0)
@given(levels=rows_of(3, st.integers(-4096, 4096)), shift=st.integers(-(2**16), 2**16), seed=seeds)
def test_shift_invariance(ops, levels, shift, seed):
    """Multiples of 1/64 below 2**12 add without rounding, so the outputs are equal bit for bit."""
    outs, lses = partials([[part / 64 for part in row] for row in levels], seed)
    out, lse = ops.attention_merge_stack(outs, lses)
    moved, moved_lse = ops.attention_merge_stack(outs, lses + shift / 64)
    assert same_bits(out, moved)
    # Each of the two sums was rounded once, at its own size: a moved sum near 0 carries the error of the unmoved one.
    error = torch.finfo(torch.float32).eps * (lse.abs() + moved_lse.abs() + 1)
    assert ((moved_lse - (lse + shift / 64)).abs() <= error).all()


@both
@quick
@example(levels=[(2.0, 0.0, 1.0), (math.inf, 1.0, 2.0)], dtype=torch.float32, seed=0)
@given(levels=rows_of(3), dtype=st.sampled_from(TYPES), seed=seeds)
def test_equals_softmax_in_float64_and_is_never_nan(ops, levels, dtype, seed):
    outs, lses = partials(levels, seed, dtype)
    with_key = torch.isfinite(lses)
    outs[~with_key] = math.nan
    out, lse = ops.attention_merge_stack(outs, lses, out_dtype=torch.float32)
    assert not out.isnan().any()
    known = torch.where(with_key, lses.double(), -math.inf)
    weights = torch.softmax(known, 0).nan_to_num(0.0)
    expected = (weights.unsqueeze(-1) * outs.double().nan_to_num(0.0)).sum(0)
    # float32 holds lse - max only to eps * |lse|, relative in the weights.
    size = torch.where(with_key, lses.abs(), torch.zeros(())).amax(0).double()
    slack = (1e-6 * (1 + size)).clamp(max=8.0).unsqueeze(-1)
    assert ((out.double() - expected).abs() <= slack).all()
    expected_lse = torch.logsumexp(known, 0)
    assert torch.equal(torch.isneginf(lse), torch.isneginf(expected_lse))
    rows = with_key.any(0)
    assert ((lse.double() - expected_lse).abs() <= 1e-6 * (1 + size))[rows].all()


@both
@pytest.mark.parametrize("first", NO_KEY)
@pytest.mark.parametrize("second", NO_KEY)
def test_no_part_with_a_key_is_zero(ops, first, second):
    garbage = torch.full((3, HEAD_SIZE), math.nan)
    out, lse = ops.attention_merge(garbage, torch.full((3,), first), garbage, torch.full((3,), second))
    assert same_bits(out, torch.zeros(3, HEAD_SIZE))
    assert torch.isneginf(lse).all()


@both
@quick
@given(
    rows=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    step=st.sampled_from([1, 2, 8]),
    transposed=st.booleans(),
    dtype=st.sampled_from(TYPES),
    seed=seeds,
)
def test_strides_do_not_matter(ops, rows, step, transposed, dtype, seed):
    """Levels written eight times each, levels (H, T) passed as (T, H), outputs that are a slice of wider rows."""
    generator = torch.Generator().manual_seed(seed)
    o1, o2 = torch.randn(2, *rows, HEAD_SIZE, generator=generator).to(dtype)
    l1, l2 = torch.randn(2, *rows, generator=generator)
    plain = ops.attention_merge(o1, l1, o2, l2)
    wide = torch.full((*rows, 2 * HEAD_SIZE), math.nan, dtype=dtype)
    wide[..., :HEAD_SIZE] = o1
    spread = l2.reshape(-1, 1).expand(-1, step).contiguous().view(-1, step)[:, 0].view(*rows)
    turned = l1.T.contiguous().T if transposed else l1
    got = ops.attention_merge(wide[..., :HEAD_SIZE], turned, o2, spread)
    assert same_bits(got[0], plain[0])
    assert same_bits(got[1], plain[1])


@both
@quick
@given(levels=rows_of(3), dtype=st.sampled_from(TYPES), into=st.integers(0, 2), seed=seeds)
def test_a_result_may_be_written_over_any_of_its_parts(ops, levels, dtype, into, seed):
    outs, lses = partials(levels, seed, dtype)
    expected = ops.attention_merge_stack(outs, lses)
    kept = outs.clone(), lses.clone()
    ops.attention_merge_stack_out(outs, lses, out=outs[into], lse=lses[into])
    assert same_bits(outs[into], expected[0])
    assert same_bits(lses[into], expected[1])
    untouched = [part for part in range(3) if part != into]
    assert same_bits(outs[untouched], kept[0][untouched])
    assert same_bits(lses[untouched], kept[1][untouched])
    first, second = kept[0][0].clone(), kept[0][1]
    pair = ops.attention_merge(first, kept[1][0], second, kept[1][1])
    ops.attention_merge_out(first, kept[1][0], second, kept[1][1], out=first, lse=lses[into])
    assert same_bits(first, pair[0])


@both
def test_a_partly_overlapping_result_is_refused(ops):
    memory = torch.randn(5, HEAD_SIZE)
    lse = torch.zeros(4)
    with pytest.raises(RuntimeError, match="attention_merge: memory of out is partly an input's"):
        ops.attention_merge_out(memory[:4], lse, torch.randn(4, HEAD_SIZE), lse, out=memory[1:], lse=torch.empty(4))


PROPERTIES = SimpleNamespace(
    empty=test_an_empty_part_changes_no_bit,
    commutes=test_two_parts_commute_bit_for_bit,
    associates=test_associates_within_rounding,
    shift=test_shift_invariance,
    softmax=test_equals_softmax_in_float64_and_is_never_nan,
)
MUTANTS = {
    "infinity is a level": ("(lse > float(\"-inf\")) & (lse < float(\"inf\"))", "lse > float(\"-inf\")", "softmax"),
    "always the sum": ("tl.where(both[:, None], sum_of_both, single)", "sum_of_both", "empty"),
    "a weight lost": ("out * weight[:, None]\n", "out\n", "softmax"),
    "not rescaled": ("mixed * before[:, None] +", "mixed +", "associates"),
    "no shift": ("before = tl.exp(peak - shift)\n    weight = tl.exp(lse - shift)",
                 "before = tl.exp(peak)\n    weight = tl.exp(lse)", "shift"),
    "the later part heavier": ("weight = tl.exp(lse - shift)", "weight = tl.exp(lse - shift) * 1.0001", "commutes"),
}


@pytest.mark.interpreter
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_noticed(mutant, triton_mutant):
    old, new, named = mutant
    triton_mutant("merge_triton", old, new)
    with pytest.raises(Exception):  # noqa: B017  hypothesis may report several failures as a group
        getattr(PROPERTIES, named)(triton_ops)
