"""The sampling kernel in Triton's interpreter: the reference's tokens, draw for draw, and the oracle's distribution."""

from __future__ import annotations

import pytest
import torch
from split_batch_kernels import row_launch, sampling, sampling_oracle, sampling_triton
from split_batch_kernels.launch import kernel

from .sampling_cases import SMALL, Case, compare, draw

pytestmark = pytest.mark.interpreter

DRAWS = 1_500
KEY = 0x1234_5678_9ABC


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_every_draw_is_the_references(case: Case):
    draws = DRAWS if len(case.row()) < 1000 else 300
    assert torch.equal(draw(case, draws, row_launch)[0], draw(case, draws, sampling)[0])


@pytest.mark.parametrize("name", ["untruncated", "p = 0.75, an exact partial sum", "p, ties", "flat, k and p"])
def test_100_000_draws_are_distributed_as_the_oracle_says(name):
    case = next(case for case in SMALL if case.name == name)
    tokens, out_of_rounds = draw(case, 100_000, row_launch)
    assert out_of_rounds == 0
    assert compare(tokens, case.probabilities()).holds


def test_rows_with_limits_of_their_own():
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(600, 130, generator=generator) * 2
    top_k = torch.randint(0, 140, (600,), generator=generator, dtype=torch.int32)
    top_p = torch.rand(600, generator=generator) * 1.1
    keys = torch.randint(0, 2**31 - 1, (600, 4), generator=generator, dtype=torch.int32)
    for limits in ((top_k, top_p), (top_k, None), (None, top_p)):
        for own in (None, keys):
            results = []
            for implementation in (sampling, row_launch):
                capped = torch.zeros(600, dtype=torch.int32)
                results.append(implementation.sample_top_k_top_p(rows, *limits, capped, KEY, 9, own))
                assert int(capped.sum()) == 0
            assert torch.equal(*results)


@pytest.mark.parametrize("vocabulary", [1, 2, 2048, 2049, 151_936])
def test_vocabularies_around_the_chunks(vocabulary):
    rows = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(5)) * 4
    top_k, top_p = torch.tensor([1, 50, 1 << 30], dtype=torch.int32), torch.tensor([1.0, 0.9, 0.5])
    assert torch.equal(row_launch.sample(rows, KEY, 1), sampling.sample(rows, KEY, 1))
    results = []
    for implementation in (sampling, row_launch):
        capped = torch.zeros(3, dtype=torch.int32)
        results.append(implementation.sample_top_k_top_p(rows, top_k, top_p, capped, KEY, 1))
    assert torch.equal(*results)
    assert results[0][0] == rows[0].argmax()


def test_rows_need_not_be_adjacent():
    rows = torch.randn(8, 100)
    wide = torch.full((8, 160), float("nan"))
    wide[:, :100] = rows
    assert torch.equal(row_launch.sample(wide[:, :100], KEY, 1), sampling.sample(rows, KEY, 1))


def test_one_row_a_tile_as_on_the_device_and_more_tiles_than_programs():
    rows = torch.randn(5, 100, generator=torch.Generator().manual_seed(6))
    tokens, capped = torch.zeros(2, 5, dtype=torch.int32)
    top_k, top_p = torch.full((5,), 4, dtype=torch.int32), torch.full((5,), 0.9)
    low, high = sampling.key_words(KEY)
    kernel("sampling_triton", "sample_kernel", rows.device)[(2,)](
        rows, top_k, top_p, tokens, tokens, capped, 5, 100, 100, low, high, 3, True, True, True, False, 1, 32, 4, 64
    )
    want = torch.zeros(5, dtype=torch.int32)
    assert torch.equal(capped, want)
    # Chunks of 32 tokens draw others than one chunk of all does, from the same distribution.
    for row, token in zip(rows, tokens.tolist(), strict=True):
        assert sampling_oracle.probabilities(row, 4, 0.9)[token] > 0


def test_rows_out_of_rounds_are_counted_and_get_the_heaviest_token(monkeypatch):
    rows = torch.randn(400, 100, generator=torch.Generator().manual_seed(2))
    top_k = torch.full((400,), 3, dtype=torch.int32)
    monkeypatch.setattr(sampling, "MAX_ROUNDS", 1)
    counts, tokens = [], []
    for implementation in (sampling, row_launch):
        capped = torch.ones(400, dtype=torch.int32)
        tokens.append(implementation.sample_top_k_top_p(rows, top_k, None, capped, KEY, 0))
        counts.append(capped)
    assert torch.equal(*counts)
    assert torch.equal(*tokens)
    assert 50 < int((counts[0] == 2).sum()) < 400


def test_rows_without_anything_to_draw():
    rows = torch.tensor([[float("nan")] * 9, [float("-inf")] * 9])
    capped = torch.zeros(2, dtype=torch.int32)
    assert row_launch.sample(rows, KEY, 0).tolist() == [0, 0]
    assert row_launch.sample_top_k_top_p(rows, None, torch.full((2,), 0.5), capped, KEY, 0).tolist() == [0, 0]
    assert capped.tolist() == [0, 0]


def test_what_is_checked_for_the_device_is_what_is_launched():
    for lowering in sampling_triton.LOWERINGS:
        assert lowering.constants["BLOCK"] == sampling.BLOCK
        assert lowering.constants["MAX_ROUNDS"] == sampling.MAX_ROUNDS
    assert row_launch.programs(10**6) == row_launch.GRID_LIMIT == 65_535
