"""Recorded steps of the real host, and the rules in which releases differ.

The seventeen steps were executed through the host's own functions on 0.23.0.post1, 0.25.1rc1 and 0.27.1rc1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vllm_ascend_split_batch.host_model.padding import (
    Agreement,
    Batch,
    Descriptor,
    Disagreement,
    Execution,
    GraphMode,
    HostFailure,
    HostRelease,
    HostSettings,
    RankChoice,
    RuntimeMode,
    StepPadding,
    agree,
    attention_rows,
    capture_sizes,
    pad_query_ends,
    skips_agreement,
)
from vllm_ascend_split_batch.host_model.padding.query_boundary import pads_query_ends

NONE, PIECEWISE, FULL = RuntimeMode
RELEASES = tuple(HostRelease)
SINCE_0_27 = (HostRelease.V0_27_1, HostRelease.V0_30)


def settings(release: HostRelease = HostRelease.V0_27_1, mode: str = "FULL_DECODE_ONLY", **more: Any) -> HostSettings:
    return HostSettings(**{"release": release, "graph_mode": GraphMode[mode], "max_num_seqs": 8, **more})


SP4 = {"tensor_parallel_size": 4, "sequence_parallel": True}
Q4 = {"num_speculative_tokens": 3}
LADDER, ALIGNED = (1, 2, 4, 8, 16), (4, 8, 16)
# number, configured mode, settings, ladder, scheduled tokens, mode, padded tokens, requests, uniform, query ends
ORACLES: list[
    tuple[
        int,
        str,
        dict[str, Any],
        tuple[int, ...],
        tuple[int, ...],
        RuntimeMode,
        int,
        int | None,
        bool,
        tuple[int, ...] | None,
    ]
] = [
    (1, "FULL_DECODE_ONLY", {}, LADDER, (1,) * 5, FULL, 8, 8, True, tuple(range(1, 9))),
    (2, "FULL_DECODE_ONLY", {}, LADDER, (5, 1, 1, 1, 1), NONE, 9, None, False, None),
    (3, "FULL_AND_PIECEWISE", {}, LADDER, (5, 1, 1, 1, 1), PIECEWISE, 16, None, False, None),
    (4, "FULL", {}, LADDER, (5, 1, 1, 1, 1), FULL, 16, 8, False, (5, 6, 7, 8, 9, 16)),
    (5, "FULL", {}, LADDER, (4, 1, 1, 1, 1), FULL, 8, 8, False, (4, 5, 6, 7, 8)),
    (6, "FULL_DECODE_ONLY", {"enforce_eager": True, **SP4}, LADDER, (4, 1), NONE, 8, None, False, (4, 5, 8)),
    (7, "FULL_DECODE_ONLY", SP4, ALIGNED, (1,) * 5, FULL, 8, 8, True, tuple(range(1, 9))),
    (8, "FULL_DECODE_ONLY", Q4, ALIGNED, (4, 4), FULL, 8, 2, True, (4, 8)),
    (9, "FULL_DECODE_ONLY", Q4, ALIGNED, (4, 4, 4), FULL, 16, 4, True, (4, 8, 12, 16)),
    (10, "FULL_DECODE_ONLY", Q4, ALIGNED, (4, 1), NONE, 5, None, False, None),
    (11, "FULL", Q4, ALIGNED, (1,), FULL, 4, 4, False, (1, 4)),
    (12, "FULL", {}, (*LADDER, 32), (13, *(1,) * 7), FULL, 32, 8, False, (13, 14, 15, 16, 17, 18, 19, 20, 32)),
    (13, "PIECEWISE", SP4, LADDER, (5, 2), PIECEWISE, 8, None, False, (5, 7, 8)),
    (16, "FULL_AND_PIECEWISE", SP4, ALIGNED, (6, 1), PIECEWISE, 8, None, False, (6, 7, 8)),
    (17, "FULL_DECODE_ONLY", {"max_num_seqs": 6}, LADDER, (1,) * 6, NONE, 6, None, False, None),
]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: f"row{oracle[0]}")
def test_recorded_steps(release: HostRelease, oracle: tuple[Any, ...]) -> None:
    number, mode, more, ladder, scheduled, runs, tokens, requests, uniform, ends = oracle
    engine = settings(release, mode, **more)
    computed = (7,) * len(scheduled)
    execution = StepPadding(engine, ladder).execute(Batch(scheduled, computed, prompt_tokens=(5,) * len(scheduled)))
    assert execution == Execution(runs, Descriptor(tokens, requests, uniform))
    assert pads_query_ends(engine, runs) == (ends is not None)
    rows = attention_rows(engine, scheduled, computed, execution)
    if ends is None:
        assert rows.dummy_rows == 0
        return
    assert rows.query_ends == ends
    assert rows.dummy_rows == len(ends) - len(scheduled)
    assert rows.slots == sum(scheduled)
    dummies = [1] if number == 12 else [0] * rows.dummy_rows  # row 12 overflows the buffer of eight requests
    assert rows.kv_lengths == (*(7 + n for n in scheduled), *dummies)


@pytest.mark.parametrize("release", RELEASES)
def test_row_14_first_steps_of_one_token_prompts(release: HostRelease) -> None:
    execution = StepPadding(settings(release), LADDER).execute(Batch((1, 1, 1), (0, 0, 0)))
    if release in SINCE_0_27:
        assert execution == Execution(NONE, Descriptor(3))
    else:
        assert execution == Execution(FULL, Descriptor(4, 4, True))
        assert attention_rows(settings(release), (1, 1, 1), (0, 0, 0), execution).query_ends == (1, 2, 3, 4)


@pytest.mark.parametrize("release", RELEASES)
def test_row_15_a_verification_beside_a_first_step(release: HostRelease) -> None:
    execution = StepPadding(settings(release, **Q4), ALIGNED).execute(Batch((4, 4), (0, 5)))
    assert execution == Execution(NONE, Descriptor(8))


def test_the_measured_decode_step() -> None:
    for mode, uniform in (("FULL_DECODE_ONLY", True), ("FULL", False)):
        engine = settings(HostRelease.V0_23, mode, max_num_seqs=4)
        execution = StepPadding(engine, (1, 2, 4, 8)).execute(Batch((1, 1, 1), (20, 3, 40)))
        assert execution == Execution(FULL, Descriptor(4, 4, uniform))
        rows = attention_rows(engine, (1, 1, 1), (20, 3, 40), execution)
        assert rows.query_ends == (1, 2, 3, 4)
        assert rows.kv_lengths == (21, 4, 41, 0)
        assert (rows.real_rows, rows.slots) == (3, 3)


@pytest.mark.parametrize("release", RELEASES)
def test_whole_prompts_for_decode(release: HostRelease) -> None:
    batch = Batch((1, 1), (4, 9), prompt_tokens=(5, 9))
    resumed = Batch((1, 1), (3, 9), prompt_tokens=(5, 9))
    dcp = settings(release, decode_context_parallel_size=2)
    assert StepPadding(dcp, LADDER).is_uniform_decode(batch) == (release not in SINCE_0_27)
    hybrid = settings(release, is_hybrid=True)
    assert StepPadding(hybrid, LADDER).is_uniform_decode(batch) == (release is not HostRelease.V0_30)
    decode = StepPadding(replace(hybrid, recompute_decode_instance=True), LADDER)
    assert decode.is_uniform_decode(batch)
    assert decode.is_uniform_decode(resumed) == (release is not HostRelease.V0_30)


def test_prompt_lengths_are_asked_for_where_they_count() -> None:
    padding = StepPadding(settings(decode_context_parallel_size=2), LADDER)
    with pytest.raises(ValueError, match="needs the requests' prompt lengths"):
        padding.execute(Batch((1,), (1,)))


def test_full_graphs_are_left_out_for_cascade_attention_and_encoder_output() -> None:
    engine = settings(mode="FULL_AND_PIECEWISE", is_encoder_decoder=True)
    padding = StepPadding(engine, LADDER)
    batch = Batch((1,) * 3, (5,) * 3)
    assert padding.execute(batch).mode is FULL
    assert padding.execute(replace(batch, cascade_attention=True)).mode is PIECEWISE
    assert padding.execute(replace(batch, encoder_requests=1)).mode is PIECEWISE


def test_graphs_with_lora_adapters() -> None:
    batch = Batch((1,) * 3, (5,) * 3, num_active_loras=3)
    for more, count in (({}, 6), ({"graphs_per_lora_count": True}, 4)):
        execution = StepPadding(settings(max_loras=5, **more), LADDER).execute(batch)
        assert execution.descriptor == Descriptor(4, 4, True, has_lora=True, num_active_loras=count)
    without = StepPadding(settings(max_loras=5, graphs_without_lora=False), LADDER)
    assert without.execute(replace(batch, num_active_loras=0)).mode is NONE
    with pytest.raises(HostFailure, match="LoRA is active in an engine without LoRA"):
        StepPadding(settings(), LADDER).execute(batch)


def test_a_query_boundary_that_misses_the_padded_tokens() -> None:
    # Two requests of 4 + 1 tokens, rounded to 8 rows: 8 is two queries of 4, so the host adds no row and the last query
    # ends at 5.
    engine = settings(enforce_eager=True, **SP4, **Q4)
    execution = StepPadding(engine, ()).execute(Batch((4, 1), (9, 9)))
    assert execution.descriptor.num_tokens == 8
    assert attention_rows(engine, (4, 1), (9, 9), execution).query_ends == (4, 5)


def test_a_boundary_with_other_requests_than_the_graph_is_refused() -> None:
    with pytest.raises(HostFailure, match="3 requests in a graph of 2"):
        pad_query_ends(settings(), (1, 2, 3), padded_tokens=2, mode=FULL, graph_requests=2)
    with pytest.raises(HostFailure, match="a mixed batch of 3 requests in a graph of 4"):
        pad_query_ends(settings(), (1, 2, 3), padded_tokens=8, mode=FULL, graph_requests=4)


class TestCaptureSizes:
    def test_the_default_grid(self) -> None:
        assert capture_sizes(settings(max_num_seqs=24)) == (1, 2, 4, 8, 16, 24)
        ladder = capture_sizes(settings(max_num_seqs=1024))
        assert ladder == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
        assert capture_sizes(settings(max_num_seqs=40, interactivity=True)) == (*range(1, 33), 40)
        assert capture_sizes(settings(max_num_seqs=64, max_num_batched_tokens=21)) == (1, 2, 4, 8, 16, 21)

    @pytest.mark.parametrize("release", RELEASES)
    def test_a_largest_size_off_the_grid(self, release: HostRelease) -> None:
        extra = (3,) if release is HostRelease.V0_30 else ()
        assert capture_sizes(settings(release, max_num_seqs=3)) == (1, 2, *extra)
        assert capture_sizes(settings(release, max_capture_size=3)) == (1, 2)
        # With the plain grid the largest batches have no graph.
        step = StepPadding(settings(release, max_num_seqs=3)).execute(Batch((1, 1, 1), (5, 5, 5)))
        assert step.mode is (FULL if extra else NONE)

    def test_the_user_s_list(self) -> None:
        assert capture_sizes(settings(capture_sizes=(16, 2, 2, 9000))) == (2, 16)
        assert capture_sizes(settings(capture_sizes=(16, 2), max_capture_size=16)) == (2, 16)
        with pytest.raises(HostFailure, match="the largest capture size given, 8, is not that of the list, 16"):
            capture_sizes(settings(capture_sizes=(16, 2), max_capture_size=8))
        for sizes in ((), (9000,)):
            with pytest.raises(HostFailure, match="no capture size is left up to 8192 tokens"):
                capture_sizes(settings(capture_sizes=sizes))

    def test_no_graphs(self) -> None:
        assert capture_sizes(settings(enforce_eager=True)) == ()
        assert capture_sizes(settings(mode="NONE")) == ()

    @pytest.mark.parametrize("release", RELEASES)
    def test_multiples_of_the_tensor_parallel_size(self, release: HostRelease) -> None:
        assert capture_sizes(settings(release, max_num_seqs=16, **SP4)) == (4, 8, 16)
        later = release in SINCE_0_27
        for name in ("shared_expert_data_parallel", "dsa_context_parallel"):
            engine = settings(release, max_num_seqs=16, tensor_parallel_size=4, **{name: True})
            assert capture_sizes(engine) == ((4, 8, 16) if later else (1, 2, 4, 8, 16))
        by_pass = settings(release, max_num_seqs=16, tensor_parallel_size=4, sequence_parallel_pass=True)
        assert capture_sizes(by_pass) == (4, 8, 16)
        assert StepPadding(by_pass).rounded_tokens(5) == (5 if later else 8)
        alone = settings(release, max_num_seqs=1, tensor_parallel_size=4, sequence_parallel_pass=True)
        if release is HostRelease.V0_30:
            assert capture_sizes(alone) == ()
        else:
            with pytest.raises(HostFailure, match="no capture size is left"):
                capture_sizes(alone)
        by_dsa = settings(release, tensor_parallel_size=4, dsa_context_parallel=True)
        assert StepPadding(by_dsa).rounded_tokens(5) == (8 if later else 5)
        with pytest.raises(HostFailure, match="no capture size is a multiple of the tensor-parallel size 4"):
            capture_sizes(settings(release, capture_sizes=(1, 2, 6), **SP4))

    @pytest.mark.parametrize("release", RELEASES)
    def test_speculative_decoding(self, release: HostRelease) -> None:
        assert capture_sizes(settings(release, num_speculative_tokens=2, max_num_seqs=8)) == (3, 6, 9, 18, 24)
        assert capture_sizes(settings(release, num_speculative_tokens=2, mode="PIECEWISE")) == (1, 2, 4, 8, 16, 24)
        assert capture_sizes(settings(release, capture_sizes=(1, 5), num_speculative_tokens=4)) == (5,)
        with pytest.raises(HostFailure, match="no capture size up to 4 is a multiple of 5"):
            capture_sizes(settings(release, capture_sizes=(1, 4), num_speculative_tokens=4))
        unequal = settings(release, capture_sizes=(12, 24), num_speculative_tokens=2, **SP4)
        mixed = replace(unequal, capture_sizes=(8, 12, 40, 44))
        if release is HostRelease.V0_30:
            assert capture_sizes(mixed) == (12,)  # 40 and 44 would become 48, above the largest
        else:
            with pytest.raises(HostFailure, match="multiple of the query length 3 and of the tensor-parallel size 4"):
                capture_sizes(mixed)
        if release in SINCE_0_27:
            assert capture_sizes(unequal) == (12, 24)
        else:
            with pytest.raises(HostFailure, match="multiple of the query length 3 and of the tensor-parallel size 4"):
                capture_sizes(unequal)
        assert capture_sizes(settings(release, capture_sizes=(8, 16), num_speculative_tokens=1, **SP4)) == (8, 16)

    @pytest.mark.parametrize("release", RELEASES)
    def test_devices_with_room_for_few_graphs(self, release: HostRelease) -> None:
        engine = settings(release, "FULL_AND_PIECEWISE", max_num_seqs=64, few_graphs=True)
        grid = (1, 2, 4, *range(8, 65, 8))
        assert capture_sizes(engine) == (grid if release is HostRelease.V0_30 else (1, 8, 40, 64))
        assert capture_sizes(replace(engine, graph_mode=GraphMode.FULL_DECODE_ONLY)) == grid


class TestDataParallel:
    def engine(self, release: HostRelease, **more: Any) -> HostSettings:
        return settings(release, "FULL_AND_PIECEWISE", data_parallel_size=2, **more)

    @pytest.mark.parametrize("release", RELEASES)
    def test_a_rank_with_a_graph_and_one_without_disagree(self, release: HostRelease) -> None:
        engine = replace(self.engine(release), graph_mode=GraphMode.FULL_DECODE_ONLY)
        ranks = StepPadding(engine, LADDER).execute_ranks([Batch((1,) * 7, (5,) * 7), Batch((3,), (5,))], skipped=False)
        if release is HostRelease.V0_30:
            assert [rank.tokens_across_ranks for rank in ranks] == [(8, 3), (8, 3)]
            assert StepPadding.disagreements(ranks) == ()
        else:
            assert [rank.tokens_across_ranks for rank in ranks] == [(8, 8), (8, 3)]
            assert StepPadding.disagreements(ranks) == (Disagreement(0, 1, 8, 3),)
        assert [(rank.mode, rank.descriptor.num_tokens) for rank in ranks] == [(NONE, 8), (NONE, 3)]

    @pytest.mark.parametrize("release", RELEASES)
    def test_graphs_of_two_ranks_run_the_larger(self, release: HostRelease) -> None:
        padding = StepPadding(self.engine(release), LADDER)
        ranks = padding.execute_ranks([Batch((1,) * 3, (5,) * 3), Batch((7, 2), (5, 0))], skipped=False)
        assert ranks == (Execution(PIECEWISE, Descriptor(16), (16, 16)),) * 2
        ranks = padding.execute_ranks([Batch((1,) * 3, (5,) * 3), Batch((1,) * 8, (5,) * 8)], skipped=False)
        assert ranks == (Execution(FULL, Descriptor(8, 8, True), (8, 8)),) * 2

    @pytest.mark.parametrize("release", RELEASES)
    def test_without_the_exchange_each_rank_takes_itself_for_all(self, release: HostRelease) -> None:
        padding = StepPadding(self.engine(release), LADDER)
        ranks = padding.execute_ranks([Batch((1,) * 3, (5,) * 3), Batch((7, 2), (5, 0))], skipped=True)
        assert [rank.tokens_across_ranks for rank in ranks] == [(4, 4), (16, 16)]
        assert [rank.mode for rank in ranks] == [FULL, PIECEWISE]
        assert len(StepPadding.disagreements(ranks)) == 2

    @pytest.mark.parametrize("release", RELEASES)
    def test_what_makes_ranks_pad_alike(self, release: HostRelease) -> None:
        eager = [RankChoice(3, NONE), RankChoice(9, NONE)]
        plain, padded = (Agreement((3, 9), NONE),) * 2, (Agreement((9, 9), NONE),) * 2
        assert agree(self.engine(release), eager, skipped=False) == plain
        finegrained = self.engine(release, finegrained_tensor_parallel=True)
        assert agree(finegrained, eager, skipped=False) == padded
        is_0_30 = release is HostRelease.V0_30
        sharded = self.engine(release, **SP4)
        assert agree(sharded, eager, skipped=False) == (plain if is_0_30 else padded)
        asked = []

        def needs(tokens: int) -> bool:
            asked.append(tokens)
            return True

        by_experts = agree(self.engine(release), eager, skipped=False, needs_equal_tokens=needs)
        assert by_experts == (padded if is_0_30 else plain)
        assert set(asked) == ({9} if is_0_30 else set())

    def test_one_batch_per_rank(self) -> None:
        padding = StepPadding(self.engine(HostRelease.V0_27_1), LADDER)
        with pytest.raises(ValueError, match="1 batches for 2 data-parallel ranks"):
            padding.execute_ranks([Batch((1,), (5,))], skipped=False)
        with pytest.raises(ValueError, match="use execute_ranks"):
            padding.execute(Batch((1,), (5,)))

    @pytest.mark.parametrize("release", RELEASES)
    def test_when_the_exchange_is_left_out(self, release: HostRelease) -> None:
        facts = {
            "is_moe": True,
            "is_kv_consumer": True,
            "decode_by_mc2": True,
            "prefill_by_mc2": True,
            "separates_decode": False,
            "recompute_scheduler": False,
        }

        def skips(**changed: bool) -> bool:
            return skips_agreement(release, **{**facts, **changed})

        assert skips()
        assert skips(is_moe=False, is_kv_consumer=False)
        assert not skips(is_kv_consumer=False)
        assert not skips(decode_by_mc2=False)
        assert not skips(prefill_by_mc2=False)
        assert skips(prefill_by_mc2=False, recompute_scheduler=True)
        assert skips(separates_decode=True) == (release is HostRelease.V0_23)
        assert not skips(is_moe=False, hierarchical_mc2=True)
        assert skips(mega_moe=True) == (release in (HostRelease.V0_23, HostRelease.V0_25_1))
        assert skips(is_moe=False, mega_moe=True) == (release is not HostRelease.V0_30)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.23.0.post1", HostRelease.V0_23),
        ("0.25.1rc1", HostRelease.V0_25_1),
        ("0.26.0rc1", HostRelease.V0_26),
        ("0.27.1rc1", HostRelease.V0_27_1),
        ("0.30.0rc2", HostRelease.V0_30),
        ("0.30", HostRelease.V0_30),
    ],
)
def test_release_of_a_version(version: str, release: HostRelease) -> None:
    assert HostRelease.of(version) is release


@pytest.mark.parametrize("version", ["0.24.0", "0.27.0", "0.29.0rc1", "1.0", "main"])
def test_a_release_that_is_not_modelled_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"modelled are 0\.23, 0\.25\.1, 0\.26, 0\.27\.1, 0\.30"):
        HostRelease.of(version)
