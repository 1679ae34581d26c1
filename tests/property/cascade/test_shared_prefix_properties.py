"""The shared-prefix finder against a brute-force reading of its definition, and against batches built to fool it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend_split_batch.cascade.shared_prefix import shared_blocks, shared_prefix_tokens


def brute_force(rows: list[list[int]], limit: int) -> int:
    """The definition, read aloud: the longest n such that all rows begin with the same n ids."""
    best = 0
    for n in range(1, min(limit, min((len(row) for row in rows), default=0)) + 1):
        if all(row[:n] == rows[0][:n] for row in rows):
            best = n
    return best


tables = st.integers(1, 6).flatmap(
    lambda columns: st.lists(st.lists(st.integers(0, 2), min_size=columns, max_size=columns), min_size=1, max_size=6)
)


@given(tables, st.integers(-1, 8))
def test_equal_to_brute_force(rows, limit):
    assert shared_blocks(np.array(rows, dtype=np.int32), limit) == brute_force(rows, limit)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=12), st.integers(1, 8), st.data())
def test_one_differing_block_ends_the_prefix_there(prefix, requests, data):
    ids = np.tile(np.array(prefix, dtype=np.int32), (requests, 1))
    assert shared_blocks(ids, len(prefix)) == len(prefix)
    if requests > 1:
        row = data.draw(st.integers(0, requests - 1))
        column = data.draw(st.integers(0, len(prefix) - 1))
        ids[row, column] += 1
        assert shared_blocks(ids, len(prefix)) == column


@given(
    st.integers(1, 5).flatmap(
        lambda requests: st.tuples(
            st.lists(st.integers(0, 400), min_size=requests, max_size=requests),
            st.lists(st.integers(0, 6), min_size=requests, max_size=requests),
        )
    ),
    st.sampled_from([16, 64, 128]),
)
def test_the_prefix_is_computed_and_valid_for_every_request(lengths, block_size):
    computed, used = (np.array(values, dtype=np.int32) for values in lengths)
    ids = np.ones((len(computed), 6), dtype=np.int32)
    prefix = shared_prefix_tokens(ids, used, block_size, computed.tolist())
    assert prefix % block_size == 0
    assert (prefix <= computed).all(), "every request still has the token of this step behind the prefix"
    assert (prefix // block_size <= used).all(), "no leftover column of an earlier request is read"
    longer = prefix + block_size
    assert (longer > computed).any() or (longer // block_size > used).any() or longer // block_size > 6


def test_a_reference_count_cannot_vouch_for_different_blocks():
    """Eight requests whose counts say sixteen common blocks although their first blocks differ (vllm #55227)."""
    ids = np.arange(8 * 16, dtype=np.int32).reshape(8, 16)
    ids[:, 1:] = 7
    assert shared_blocks(ids, 16) == 0


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_nothing_is_shared_by_nobody_or_in_no_columns(shape):
    assert shared_blocks(np.zeros(shape, dtype=np.int32), 4) == 0


def test_without_requests_there_is_no_prefix():
    assert shared_prefix_tokens(np.zeros((0, 4), dtype=np.int32), np.zeros(0, dtype=np.int32), 128, []) == 0


def test_leftover_columns_do_not_count():
    ids = np.array([[5, 6, 9], [5, 6, 9]], dtype=np.int32)
    used = np.array([3, 2], dtype=np.int32)
    assert shared_prefix_tokens(ids, used, 128, [384, 384]) == 256
