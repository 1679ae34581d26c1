"""How many rows a part takes, against the definition; and what parts save, against a count of what is alive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch.mlp import chunking
from vllm_ascend_split_batch.mlp.chunking import FEWEST_ROWS, Widths, rows_per_part, saved_bytes

QWEN2_7B = Widths(up=2 * 18944, act=18944, out=3584, itemsize=2)

widths = st.builds(
    Widths, st.integers(1, 1 << 16), st.integers(1, 1 << 15), st.integers(1, 1 << 13), st.sampled_from([2, 4])
)


def alive_at_most(rows: int, part: int, widths: Widths, *, keeps_up: bool) -> int:
    """Bytes alive at the worst moment beside the input: the results of every step, part by part."""
    whole = part >= rows
    kept = widths.up if whole and keeps_up else 0
    result = 0 if whole else rows * widths.out
    peak = 0
    for start in range(0, rows, part):
        own = min(part, rows - start)
        peak = max(peak, result + own * (widths.up + widths.act), result + own * (kept + widths.act + widths.out))
    return peak * widths.itemsize


@given(st.integers(1, 100_000), widths, st.integers(0, 64), st.integers(0, 1 << 34))
def test_parts(rows, widths, chunks, budget):
    part = rows_per_part(rows, widths, chunks=chunks, budget=budget)
    parts = -(-rows // part)
    assert 1 <= part <= rows
    assert parts == 1 or part >= min(FEWEST_ROWS, rows) // 2
    if part > FEWEST_ROWS:
        assert parts >= min(chunks, parts)
        assert chunks < 2 or part <= -(-rows // chunks)
        assert not budget or part * widths.transient_bytes <= budget
    # No more parts than were asked for, or than the budget needs.
    if not budget:
        assert parts <= max(chunks, 1)
    # The parts are even: the last one is smaller by less than the number of parts.
    assert parts * part - rows < parts


@given(st.integers(2, 50_000), st.integers(2, 16), widths, st.booleans())
def test_what_is_saved_is_what_is_no_longer_alive(rows, chunks, widths, keeps_up):
    part = rows_per_part(rows, widths, chunks=chunks, budget=0)
    if part < rows and widths.out <= widths.up:
        whole, parts = (alive_at_most(rows, each, widths, keeps_up=keeps_up) for each in (rows, part))
        assert saved_bytes(rows, part, widths, keeps_up=keeps_up) == whole - parts


def test_a_known_case():
    assert rows_per_part(8192, QWEN2_7B, chunks=4, budget=0) == 2048
    assert QWEN2_7B.transient_bytes == 3 * 18944 * 2
    assert saved_bytes(8192, 2048, QWEN2_7B, keeps_up=False) == 6144 * 3 * 18944 * 2 - 8192 * 3584 * 2
    assert saved_bytes(8192, 2048, QWEN2_7B, keeps_up=True) == 6144 * 3 * 18944 * 2


def test_a_budget_alone_and_the_smaller_of_both():
    budget = 100 * (1 << 20)
    part = rows_per_part(8192, QWEN2_7B, chunks=0, budget=budget)
    assert part * QWEN2_7B.transient_bytes <= budget < (part + 128) * QWEN2_7B.transient_bytes
    assert rows_per_part(8192, QWEN2_7B, chunks=2, budget=budget) == part
    assert rows_per_part(8192, QWEN2_7B, chunks=64, budget=budget) == FEWEST_ROWS
    assert rows_per_part(600, QWEN2_7B, chunks=2, budget=budget) == 300


def test_a_budget_below_the_smallest_part():
    assert rows_per_part(8192, QWEN2_7B, chunks=0, budget=1) == FEWEST_ROWS
    assert rows_per_part(100, QWEN2_7B, chunks=4, budget=1) == 100


def test_narrow_mlps_gain_nothing():
    assert saved_bytes(1024, 512, Widths(up=256, act=256, out=1024, itemsize=2), keeps_up=False) < 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    most = max(most, FEWEST_ROWS)", "    most = max(most, 1)"),
        ("most = min(most, budget // widths.transient_bytes)", "most = budget // widths.transient_bytes"),
        ("    return -(-rows // parts)", "    return most"),
        (" - result", ""),
        ("0 if keeps_up else rows * widths.out * widths.itemsize", "rows * widths.out * widths.itemsize"),
    ],
)
def test_mutants_are_noticed(mutant, old, new):
    changed = mutant(chunking, old, new)
    answers = [
        changed.rows_per_part(8192, QWEN2_7B, chunks=0, budget=1),
        changed.rows_per_part(600, QWEN2_7B, chunks=2, budget=100 << 20),
        changed.rows_per_part(1000, QWEN2_7B, chunks=0, budget=300 * QWEN2_7B.transient_bytes),
        changed.saved_bytes(1024, 512, QWEN2_7B, keeps_up=False),
        changed.saved_bytes(1024, 512, QWEN2_7B, keeps_up=True),
    ]
    known = 512 * QWEN2_7B.transient_bytes
    assert answers != [128, 300, 250, known - 1024 * 3584 * 2, known]
    right = [
        rows_per_part(8192, QWEN2_7B, chunks=0, budget=1),
        rows_per_part(600, QWEN2_7B, chunks=2, budget=100 << 20),
        rows_per_part(1000, QWEN2_7B, chunks=0, budget=300 * QWEN2_7B.transient_bytes),
        saved_bytes(1024, 512, QWEN2_7B, keeps_up=False),
        saved_bytes(1024, 512, QWEN2_7B, keeps_up=True),
    ]
    assert right == [128, 300, 250, known - 1024 * 3584 * 2, known]
