"""The split of a step: lengths at their bounds, padding rows, and metadata that contradicts the admission."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from vllm_ascend_split_batch.cascade.step_plan import PlanError, make_plan, suffix_lengths

torch = pytest.importorskip("torch")


def metadata(lengths, rows=None, columns=8):
    rows = len(lengths) if rows is None else rows
    table = torch.arange(rows * columns, dtype=torch.int32).view(rows, columns)
    table[:, :2] = table[0, :2]
    return SimpleNamespace(actual_seq_lengths_q=list(range(1, rows + 1)), seq_lens_list=lengths, block_tables=table)


def test_prefix_and_suffix_cover_every_key_exactly_once():
    lengths = [257, 300, 384, 385]
    plan = make_plan(metadata(lengths), prefix_tokens=256, block_size=128, requests=4)
    assert plan.suffix_lengths == [1, 44, 128, 129]
    assert plan.prefix_table.tolist() == [[0, 1]]
    assert plan.suffix_table.shape == (4, 2), "as many columns as the longest suffix needs"
    assert plan.suffix_table[:, 0].tolist() == [2, 10, 18, 26]
    assert plan.query_ends == [1, 2, 3, 4]
    assert plan.rows == 4


def test_the_tables_are_contiguous_as_the_kernels_want_them():
    plan = make_plan(metadata([257, 300]), prefix_tokens=256, block_size=128, requests=2)
    assert plan.prefix_table.is_contiguous()
    assert plan.suffix_table.is_contiguous()


@pytest.mark.parametrize("padding", [0, 1])
def test_padding_rows_attend_to_one_key(padding):
    plan = make_plan(metadata([300, 301, padding, padding]), prefix_tokens=256, block_size=128, requests=2)
    assert plan.suffix_lengths == [44, 45, 1, 1]


@pytest.mark.parametrize("shortest", [0, 1, 255, 256])
def test_a_request_inside_the_prefix_is_refused(shortest):
    with pytest.raises(PlanError, match=f"{shortest} tokens is not longer than the shared prefix of 256"):
        suffix_lengths([300, shortest], rows=2, requests=2, prefix_tokens=256)


def test_contradicting_metadata_is_refused():
    with pytest.raises(PlanError, match="only 1 sequence lengths"):
        make_plan(metadata([300], rows=2), prefix_tokens=256, block_size=128, requests=2)
    two_rows_each = metadata([300, 301])
    two_rows_each.actual_seq_lengths_q = [2, 4]
    with pytest.raises(PlanError, match="not one row each"):
        make_plan(two_rows_each, prefix_tokens=256, block_size=128, requests=2)
    with pytest.raises(PlanError, match="does not hold"):
        make_plan(metadata([300, 1200]), prefix_tokens=256, block_size=128, requests=2)
    with pytest.raises(PlanError, match="does not hold"):
        make_plan(metadata([300, 301]), prefix_tokens=200, block_size=128, requests=2)
    with pytest.raises(PlanError, match="not one row each"):
        make_plan(metadata([300, 301]), prefix_tokens=256, block_size=128, requests=3)


def test_numpy_lengths_are_not_needed():
    lengths = np.array([257, 300]).tolist()
    assert suffix_lengths(lengths, rows=2, requests=2, prefix_tokens=256) == [1, 44]
