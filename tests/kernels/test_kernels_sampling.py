"""``split_batch::sample`` and ``sample_top_k_top_p``: the reference draws what the oracle says, by its contract."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from split_batch_kernels import OpContractError, philox, row_ops, sampling, sampling_oracle

from .sampling_cases import SMALL, Case, compare, draw

#: Statistics of these many draws a case here; docs/evidence/sampling holds those of 100,000 and more.
DRAWS = 4_000
KEY = 0x1234_5678_9ABC
CASES = pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
quick = settings(max_examples=60)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # known answers published with Random123
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_its_known_answers(counter, key, words):
    drawn = philox.philox4x32(*(tuple(torch.tensor([word]) for word in part) for part in (counter, key)))
    assert " ".join(f"{int(word):08x}" for word in drawn) == words


@CASES
def test_draws_are_distributed_as_the_oracle_says(case: Case):
    tokens, out_of_rounds = draw(case, DRAWS, sampling)
    assert out_of_rounds == 0
    assert compare(tokens, case.probabilities()).holds


def by_definition(weights: list[float], k: int, p: float) -> list[bool]:
    total = sum(weights)
    keep = []
    for weight in weights:
        heavier = [other for other in weights if other > weight]
        keep.append(not heavier or ((k < 1 or len(heavier) < k) and (p >= 1 or sum(heavier) < p * total)))
    return keep


@quick
@given(
    weights=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    k=st.integers(-1, 14),
    p=st.sampled_from([1 / 64, 1 / 8, 0.25, 0.5, 0.75, 1.0, 2.0]),
)
def test_the_oracle_keeps_what_the_definition_says(weights, k, p):
    given_weights = torch.tensor(weights).double()
    assert sampling_oracle.kept(given_weights, k, p).tolist() == by_definition(weights, k, p)


@quick
@given(
    weights=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    k=st.integers(-1, 14),
    p=st.sampled_from([1 / 64, 1 / 8, 0.25, 0.5, 0.75, 1.0, 2.0]),
)
def test_only_kept_tokens_are_drawn_and_each_of_them_is(weights, k, p):
    rows = torch.tensor(weights).float().expand(600, -1)
    capped = torch.zeros(600, dtype=torch.int32)
    tokens = torch.ops.split_batch.sample_top_k_top_p(
        rows, torch.full((600,), k, dtype=torch.int32), torch.full((600,), p), capped, KEY, 0, None, False
    )
    probabilities = sampling_oracle.probabilities(rows[0], k, p, logits=False)
    assert int(capped.sum()) == 0
    if probabilities.sum() > 0:
        # The rarest kept token has a probability of 1/72 or more, so that 600 draws miss it once in 4,000.
        assert set(tokens.tolist()) <= set(probabilities.nonzero().flatten().tolist())
        assert set((probabilities > 0.05).nonzero().flatten().tolist()) <= set(tokens.tolist())
    else:
        assert set(tokens.tolist()) == {0}


def test_the_same_key_step_and_row_draw_the_same_token_whatever_the_batch():
    rows = torch.randn(40, 300, generator=torch.Generator().manual_seed(1))
    all_rows = torch.ops.split_batch.sample(rows, KEY, 5)
    assert torch.equal(torch.ops.split_batch.sample(rows[:7], KEY, 5), all_rows[:7])
    for other in (torch.ops.split_batch.sample(rows, KEY, 6), torch.ops.split_batch.sample(rows, KEY + 1, 5)):
        assert (other != all_rows).float().mean() > 0.5
    low, high = sampling.key_words(KEY)
    keys = torch.tensor([[low, high, 5, lane] for lane in range(40)], dtype=torch.int32).flip(0).contiguous()
    assert torch.equal(torch.ops.split_batch.sample(rows.flip(0).contiguous(), 0, 0, keys), all_rows.flip(0))


def test_rows_that_run_out_of_rounds_get_their_heaviest_token_and_are_counted(monkeypatch):
    monkeypatch.setattr(sampling, "MAX_ROUNDS", 1)
    rows = torch.randn(500, 100, generator=torch.Generator().manual_seed(2))
    capped = torch.ones(500, dtype=torch.int32)
    tokens = sampling.sample_top_k_top_p(rows, torch.full((500,), 3, dtype=torch.int32), None, capped, KEY, 0)
    out_of_rounds = capped == 2
    assert 100 < int(out_of_rounds.sum()) < 500
    assert torch.equal(tokens[out_of_rounds], rows.argmax(1)[out_of_rounds])
    kept = torch.stack([sampling_oracle.kept(sampling_oracle.weights_of(row), 3) for row in rows])
    assert kept[torch.arange(500), tokens].all()


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_row_without_anything_to_draw_gives_token_0(value):
    rows = torch.full((3, 10), value)
    capped = torch.zeros(3, dtype=torch.int32)
    assert torch.ops.split_batch.sample(rows, KEY, 0).tolist() == [0, 0, 0]
    assert torch.ops.split_batch.sample_top_k_top_p(rows, None, None, capped, KEY, 0).tolist() == [0, 0, 0]
    assert int(capped.sum()) == 0


def test_no_rows():
    empty = torch.zeros(0, 10)
    result = torch.ops.split_batch.sample(empty, KEY, 0)
    assert (result.shape, result.dtype) == ((0,), torch.int64)


ROWS = torch.randn(4, 20)


@pytest.mark.parametrize(
    "change",
    [
        {"scores": ROWS.double()},
        {"scores": ROWS[0]},
        {"scores": ROWS.t().contiguous().t()},
        {"scores": torch.zeros(4, 0)},
        {"top_k": torch.ones(4, dtype=torch.int64)},
        {"top_k": torch.ones(3, dtype=torch.int32)},
        {"top_p": torch.ones(4).double()},
        {"capped": torch.zeros(4)},
        {"keys": torch.zeros(4, 3, dtype=torch.int32)},
        {"keys": torch.zeros(4, 4, dtype=torch.int32, device="meta")},
        {"key": -1},
        {"key": 1 << 62},
        {"step": 1 << 31},
    ],
    ids=lambda change: f"{next(iter(change))} {next(iter(change.values()))}"[:40].replace("\n", " "),
)
def test_broken_rules_are_named(change):
    arguments = {
        "scores": ROWS,
        "top_k": None,
        "top_p": None,
        "capped": torch.zeros(4, dtype=torch.int32),
        "key": KEY,
        "step": 0,
    } | change
    with pytest.raises(OpContractError, match=r"^split_batch::sample_top_k_top_p: .* is .*, expected "):
        sampling.sample_top_k_top_p(**arguments)


def test_ops_pass_torchs_own_check():
    top_k, top_p = torch.full((4,), 3, dtype=torch.int32), torch.full((4,), 0.9)
    keys = torch.zeros(4, 4, dtype=torch.int32)
    torch.library.opcheck(torch.ops.split_batch.sample.default, (ROWS, KEY, 1))
    torch.library.opcheck(torch.ops.split_batch.sample.default, (ROWS, KEY, 1, keys, False))
    capped = torch.zeros(4, dtype=torch.int32)
    torch.library.opcheck(torch.ops.split_batch.sample_top_k_top_p.default, (ROWS, top_k, top_p, capped, KEY, 1))


def test_an_implementation_that_is_none_is_refused():
    with pytest.raises(row_ops.OpDefinitionError, match="neither 'reference' nor 'triton'"):
        row_ops.register("XPU", "guess")


def distribution_holds(implementation) -> None:
    for case in SMALL:
        if len(case.row()) < 1000:
            assert compare(draw(case, DRAWS, implementation)[0], case.probabilities()).holds, case.name


MUTANTS = {
    "one heavier too many": ("(count < top_k)", "(count <= top_k)"),
    "an exact partial sum is kept": ("above.sum(1) < top_p", "above.sum(1) <= top_p"),
    "p is of the largest weight": ("top_p.double() * self.total", "top_p.double() * self.weights.amax((1, 2))"),
    "always the same words": ("torch.full_like(lane, turn)", "torch.zeros_like(lane)"),
    "first draw is taken": ("            keep &= drawn.found\n", "            keep = drawn.found\n"),
    "wrong half is thrown away": (
        "low = torch.where(found, torch.where(keep_pivot, drawn.weight, pivot), low)",
        "low = torch.where(found, torch.where(keep_pivot, pivot, drawn.weight), low)",
    ),
    "tokens of the chunk after": ("chunk * self.weights.shape[2] + off", "(chunk + 1) * self.weights.shape[2] + off"),
    "words of one row for all": ("keys[:, 3] = torch.arange(rows)", "keys[:, 3] = 0"),
}


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_noticed(change, mutant):
    broken = mutant(sampling, *change)
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        distribution_holds(broken)


def test_the_reference_passes_what_the_mutants_fail():
    distribution_holds(sampling)
