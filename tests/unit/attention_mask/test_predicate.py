"""The predicate against the mask itself, and the maskless form in sources."""

from __future__ import annotations

import ast
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch.attention_mask import host_form, predicate
from vllm_ascend_split_batch.attention_mask.predicate import OneToN


def hidden(queries: int, keys: int) -> int:
    """How many (query, key) pairs the right-down causal mask hides in one sequence: key j for query i > k - q + i."""
    return sum(j > keys - queries + i for i in range(queries) for j in range(keys))


def check_against_the_mask(matches, sequences):
    """`sequences`: (queries, further keys) of each; keys are at least as many as queries, as in self-attention."""
    ends = list(accumulate(queries for queries, _ in sequences))
    masks_nothing = all(hidden(queries, queries + more) == 0 for queries, more in sequences)
    if matches(ends):
        assert masks_nothing
        assert all(queries == 1 for queries, _ in sequences)
    else:
        assert not sequences or any(queries != 1 for queries, _ in sequences)


sequence = st.tuples(st.integers(0, 3), st.integers(0, 4))


@settings(max_examples=300)
@given(st.lists(sequence, max_size=6))
def test_true_only_where_the_mask_hides_nothing(sequences):
    check_against_the_mask(OneToN().matches, sequences)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 6))
def test_remembered_lists_do_not_change_the_answer(ends, n):
    ends_of = OneToN()
    assert ends_of.matches(list(range(1, n + 1)))
    assert ends_of.matches(ends) == (ends == list(range(1, len(ends) + 1)) and len(ends) > 0)
    assert ends_of.matches(list(range(1, n + 1)))


@pytest.mark.parametrize("new", ["return n > 0 and bool(ends[-1] == n)", "return n > 0 and bool(len(ends) == n)"])
def test_a_predicate_by_sums_is_noticed(mutant, new):
    """As many rows as sequences is not one row each: 0 and 2."""
    other = mutant(predicate, "return n > 0 and bool(ends == expected)", new)
    with pytest.raises(AssertionError):
        check_against_the_mask(other.OneToN().matches, [(0, 3), (2, 5)])


EAGER = """
def forward(self, attn_metadata):
    if not attn_metadata.causal:
        out = torch_npu.npu_fused_infer_attention_score(query=query, {eager})
    return out
"""
CAPTURED = """
def capture(self, attn_metadata):
    attn_mask = {mask}
    sparse_mode = 4 if self.sliding_window else {mode}
"""
FORM = {"eager": "sparse_mode=0", "mask": "attn_metadata.attn_mask", "mode": "3 if attn_metadata.causal else 0"}


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({}, None),
        ({"eager": "atten_mask=None, sparse_mode=0"}, None),
        ({"eager": "sparse_mode=3"}, "eager"),
        ({"eager": "atten_mask=attn_metadata.attn_mask, sparse_mode=0"}, "eager"),
        ({"mode": "3"}, "captured attention does not set sparse_mode"),
        ({"mode": "0 if attn_metadata.causal else 3"}, "captured attention does not set sparse_mode"),
        ({"mask": "self.mask"}, "captured attention does not take its mask"),
    ],
)
def test_the_maskless_form_in_source(change, lacks):
    form = FORM | change
    found = host_form.missing_form(ast.parse(EAGER.format(**form)), ast.parse(CAPTURED.format(**form)))
    assert (found is None) if lacks is None else (lacks in (found or ""))
