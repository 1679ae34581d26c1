"""``fa_fp32_stage1`` against attention written out in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from split_batch_kernels import attend, stage1

CASES = {
    # name: (query lengths, kv lengths, H, K, D, page, extra columns)
    "one sequence of many rows": ([7], [48], 8, 2, 64, 16, 0),
    "a partial last page": ([3], [41], 4, 4, 32, 16, 0),
    "one key": ([2], [1], 4, 1, 16, 16, 0),
    "ragged": ([1, 4, 2], [17, 1, 96], 6, 3, 48, 32, 0),
    "unused columns": ([2, 2], [16, 33], 5, 1, 16, 16, 3),
    "device shape": ([5], [256], 8, 1, 128, 128, 0),
    "three per group": ([16], [64], 9, 3, 64, 64, 0),
}


def inputs(case, dtype, seed=0, spread=1.0):
    q_lengths, kv_lengths, heads, kv_heads, head_size, page, extra = case
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-n // page) for n in kv_lengths]
    blocks = sum(needed) + 2
    query = (torch.randn(sum(q_lengths), heads, head_size, generator=generator) * spread).to(dtype)
    key = torch.randn(blocks, page, kv_heads, head_size, generator=generator).to(dtype)
    value = torch.randn(blocks, page, kv_heads, head_size, generator=generator).to(dtype)
    order = torch.randperm(blocks, generator=generator)
    # Columns that are not needed hold ids far outside the cache: they must not be read.
    table = torch.full((len(kv_lengths), max(needed) + extra), 2**30, dtype=torch.int32)
    used, taken = torch.zeros(blocks, page, dtype=torch.bool), 0
    for row, (count, keys) in enumerate(zip(needed, kv_lengths, strict=True)):
        ids = order[taken : taken + count]
        taken += count
        table[row, :count] = ids.to(torch.int32)
        for j in range(keys):
            used[ids[j // page], j % page] = True
    # Slots that no sequence owns hold NaN: one read too many shows.
    key[~used], value[~used] = torch.nan, torch.nan
    return query, key, value, table, torch.tensor(q_lengths), torch.tensor(kv_lengths)


def agrees_with_float64(implementation, dense, case, dtype, uniform=False, seed=0, spread=1.0):
    query, key, value, table, q_lengths, kv_lengths = inputs(case, dtype, seed, spread)
    value_or_zero = int(q_lengths[0]) if uniform else 0
    out, lse = implementation(query, key, value, table, q_lengths, kv_lengths, value_or_zero)
    tokens, heads, head_size = query.shape
    want_out, want_lse = dense(query, key, value, table, q_lengths.tolist(), kv_lengths.tolist())
    assert out.dtype == lse.dtype == torch.float32
    assert (out.shape, lse.shape) == ((tokens, heads, head_size), (tokens * heads * 8,))
    slots = lse.view(tokens * heads, 8)
    assert torch.equal(slots, slots[:, :1].expand(-1, 8))
    # The inputs are exact in every dtype, all arithmetic is float32: float32 bounds hold for bfloat16 inputs too.
    torch.testing.assert_close(out.double(), want_out, rtol=0, atol=3e-6 * spread)
    torch.testing.assert_close(slots[:, 0].view(tokens, heads).double(), want_lse, rtol=2e-6, atol=2e-6 * spread)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_against_float64(case, dtype, dense):
    agrees_with_float64(torch.ops.npu.fa_fp32_stage1, dense, case, dtype)
    if len(set(case[0])) == 1:
        agrees_with_float64(torch.ops.npu.fa_fp32_stage1, dense, case, dtype, uniform=True)


@pytest.mark.parametrize("elements", [1, 700, 5000])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_chunks_of_keys_do_not_change_the_result(case, elements, dense, monkeypatch):
    monkeypatch.setattr(attend, "CHUNK_ELEMENTS", elements)
    agrees_with_float64(torch.ops.npu.fa_fp32_stage1, dense, case, torch.float32, spread=20.0)


def test_a_later_chunk_with_a_larger_maximum(dense, monkeypatch):
    """The running maximum must rescale what was accumulated before it rose."""
    monkeypatch.setattr(attend, "CHUNK_ELEMENTS", 1)
    query = torch.ones(1, 1, 16)
    key = torch.zeros(3, 16, 1, 16)
    key[0], key[1], key[2] = -3.0, 1.0, 9.0
    value = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 16, 1, 16).contiguous()
    table = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    out, lse = torch.ops.npu.fa_fp32_stage1(query, key, value, table, torch.tensor([1]), torch.tensor([48]), 1)
    want_out, want_lse = dense(query, key, value, table, [1], [48])
    torch.testing.assert_close(out.double(), want_out, rtol=0, atol=1e-6)
    torch.testing.assert_close(lse[:1].double(), want_lse[0], rtol=1e-6, atol=0)


def test_extreme_scores_stay_finite(dense):
    """Scaled scores of +-1e4: exp would overflow without the running maximum."""
    case = ([2], [32], 4, 2, 16, 16, 0)
    query, key, value, table, q_lengths, kv_lengths = inputs(case, torch.float32)
    query, key = query.sign() * 50, key.sign() * 50
    out, lse = torch.ops.npu.fa_fp32_stage1(query, key, value, table, q_lengths, kv_lengths, 2)
    want_out, want_lse = dense(query, key, value, table, [2], [32])
    assert want_lse.abs().max() > 5e3
    torch.testing.assert_close(out.double(), want_out, rtol=0, atol=1e-5)
    torch.testing.assert_close(lse.view(2, 4, 8)[..., 0].double(), want_lse, rtol=1e-6, atol=0)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 70)), min_size=1, max_size=3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    head_size=st.sampled_from([16, 32, 80]),
    page=st.sampled_from([16, 48]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**16),
)
def test_any_shape(dense, lengths, kv_heads, group, head_size, page, dtype, seed):
    q_lengths, kv_lengths = [list(part) for part in zip(*lengths, strict=True)]
    case = (q_lengths, kv_lengths, kv_heads * group, kv_heads, head_size, page, 1)
    agrees_with_float64(torch.ops.npu.fa_fp32_stage1, dense, case, dtype, seed=seed)


def agrees_in_all_cases(implementation, dense):
    for case in CASES.values():
        agrees_with_float64(implementation, dense, case, torch.float32)


def test_the_implementation_passes_what_the_mutants_fail(dense, monkeypatch):
    monkeypatch.setattr(attend, "CHUNK_ELEMENTS", 1)
    agrees_in_all_cases(stage1.fa_fp32_stage1, dense)


OF_STAGE1 = {
    "scale 1/D": ("1.0 / math.sqrt(head_size)", "1.0 / head_size"),
    "seven copies of the log-sum-exp": ("expand(-1, LSE_REPLICAS).reshape(-1)", "expand(-1, 7).reshape(-1)"),
    "first rows for every sequence": ("first = last", "first = 0 * last"),
}
OF_ATTEND = {
    "base-2 log-sum-exp": ("torch.log(total)", "torch.log2(total)"),
    "log-sum-exp without the maximum": ("row_lse = running_max + ", "row_lse = "),
    "one key too many": ("skip + keys - first * page)", "skip + keys - first * page + 1)"),
    "heads of a group interleaved": (
        "query.view(rows, kv_heads, group, head_size).permute(1, 0, 2, 3)",
        "query.view(rows, group, kv_heads, head_size).permute(2, 0, 1, 3)",
    ),
    "keys as values": ("for cache in (key, value))", "for cache in (key, key))"),
    "no rescaling of the sum": ("total.mul_(rescale)", "total"),
    "no rescaling of the output": ("accumulated.mul_(rescale)", "accumulated"),
}


@pytest.mark.parametrize("change", OF_STAGE1.values(), ids=OF_STAGE1.keys())
def test_mutants_are_noticed(change, dense, mutant):
    with pytest.raises((AssertionError, RuntimeError)):
        agrees_in_all_cases(mutant(stage1, *change).fa_fp32_stage1, dense)


@pytest.mark.parametrize("change", OF_ATTEND.values(), ids=OF_ATTEND.keys())
def test_mutants_of_the_attention_are_noticed(change, dense, mutant, monkeypatch):
    broken = mutant(attend, *change)
    broken.CHUNK_ELEMENTS = 1
    monkeypatch.setattr(stage1, "attend", broken.attend)
    with pytest.raises((AssertionError, RuntimeError)):
        agrees_in_all_cases(stage1.fa_fp32_stage1, dense)


def test_no_query_rows():
    key = torch.zeros(2, 16, 2, 32)
    out, lse = torch.ops.npu.fa_fp32_stage1(
        torch.zeros(0, 4, 32), key, key, torch.zeros(0, 1, dtype=torch.int32),
        torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64),
    )
    assert (out.shape, out.dtype, lse.shape) == ((0, 4, 32), torch.float32, (0,))


def test_equal_to_itself_bit_for_bit():
    arguments = inputs(CASES["ragged"], torch.bfloat16)
    first, second = (torch.ops.npu.fa_fp32_stage1(*arguments) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
