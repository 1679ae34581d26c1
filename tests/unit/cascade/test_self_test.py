"""The start-up self-test passes right kernels and names what is wrong with others."""

from __future__ import annotations

import math

import pytest
import torch

from vllm_ascend_split_batch.cascade import self_test
from vllm_ascend_split_batch.cascade.tiers import FusedTier
from vllm_ascend_split_batch.cascade.two_stage import Heads

from .attention_stand_in import fused, merge, ops

CPU = torch.device("cpu")
SHAPES = [
    (torch.float32, Heads(4, 2, 16, 0.25), 16),
    (torch.bfloat16, Heads(9, 3, 64, 0.125), 128),
    (torch.float16, Heads(8, 1, 32, 32**-0.5), 64),
]


def outcome(attention=fused, merge_parts=merge, dtype=torch.float32, heads=SHAPES[0][1], page=16):
    tier = FusedTier("host", ops(attention), merge_parts, "stand-in", limits_apply=False)
    return self_test.run(tier, CPU, dtype, heads, page)


@pytest.mark.parametrize(("dtype", "heads", "page"), SHAPES)
def test_right_kernels_pass(dtype, heads, page):
    found = outcome(dtype=dtype, heads=heads, page=page)
    assert found.problem is None
    assert found.host_copies == 5, "two stages with LSE, and the merged result"


def base_2(*args, **options):
    out, lse = fused(*args, **options)
    return out, lse / math.log(2)


def shifted(*args, **options):
    out, lse = fused(*args, **options)
    return out, lse + 1.0


def plain_average(query, key, value, **options):
    return fused(torch.zeros_like(query), key, value, **options)


def one_key_too_many(*args, actual_seq_lengths_kv, **options):
    return fused(*args, actual_seq_lengths_kv=[length + 1 for length in actual_seq_lengths_kv], **options)


def other_table(*args, block_table, **options):
    return fused(*args, block_table=block_table.flip(0), **options)


def heads_first(*args, **options):
    """The result of another layout in the memory of this one."""
    out, lse = fused(*args, **options)
    return out.transpose(0, 1).reshape(out.shape), lse


FAULTS = {
    base_2: "the prefix stage returns its LSE to base 2",
    shifted: "the prefix stage returns an LSE that is off by 1",
    plain_average: "the prefix stage returns the plain average of the values",
    one_key_too_many: "the suffix stage is off by",
    other_table: "the suffix stage is off by",
    heads_first: "the prefix stage is off by",
}


@pytest.mark.parametrize(("attention", "said"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize(("dtype", "heads", "page"), SHAPES)
def test_what_is_wrong_is_named(attention, said, dtype, heads, page):
    assert said in outcome(attention, dtype=dtype, heads=heads, page=page).problem


def test_a_wrong_merge_is_named():
    swapped = outcome(merge_parts=lambda a, b, la, lb: merge(a, b, lb, la))
    assert swapped.problem.startswith("the merged result is off by")


def test_the_accepted_difference_is_that_of_the_type():
    """An error a bfloat16 kernel may have is a fault in a float32 kernel."""

    def rough(*args, **options):
        out, lse = fused(*args, **options)
        return out * 1.003, lse

    assert outcome(rough, dtype=torch.bfloat16).problem is None
    assert "is off by" in outcome(rough).problem
