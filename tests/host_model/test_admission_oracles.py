"""Recorded behaviour of the host's queues, predictor, reserve and planner, as plain tests of the model."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_ascend_split_batch.host_model.admission import (
    BatchJobAwareQueue,
    BatchJobSettings,
    EngineSettings,
    HostRelease,
    JobPredictor,
    Lane,
    Request,
    RunningReserve,
    ShortRequestFirstQueue,
    ShortRequestFirstSettings,
    TooManyJobs,
)
from vllm_ascend_split_batch.host_model.admission.running import RunningRequests
from vllm_ascend_split_batch.host_model.load_balance import RankRequests, plan
from vllm_ascend_split_batch.host_model.request import job_of

SHORT, LONG = 10, 1000


def queue(limit_ms: float = 0.0, threshold: int = 256) -> ShortRequestFirstQueue:
    return ShortRequestFirstQueue(ShortRequestFirstSettings(threshold, limit_ms))


def named(name: str, prompt: int) -> Request:
    return Request(name, prompt, 1)


class TestShortRequestFirst:
    def test_o1_the_threshold_itself_is_short(self) -> None:
        lanes = queue()
        assert lanes.lane_for(named("a", 256)) is Lane.SHORT
        assert lanes.lane_for(named("b", 257)) is Lane.LONG

    def test_o2_a_wait_equal_to_the_limit_promotes(self) -> None:
        lanes = queue(limit_ms=62.5)
        lanes.add(named("l", LONG), 0.0)
        lanes.add(named("s", SHORT), 0.0)
        assert lanes.peek(0.0625).request_id == "l"

    def test_o3_without_a_limit_nothing_ages(self) -> None:
        lanes = queue()
        lanes.add(named("l", LONG), 0.0)
        lanes.add(named("s", SHORT), 0.0)
        assert lanes.pop(1e6).request_id == "s"

    def test_o4_what_was_shown_is_popped_although_a_long_one_aged_since(self) -> None:
        lanes = queue(limit_ms=100)
        lanes.add(named("l", LONG), 0.0)
        lanes.add(named("s", SHORT), 0.0)
        lanes.add(named("s2", SHORT), 0.0)
        assert lanes.peek(0.0).request_id == "s"
        assert lanes.pop(1.0).request_id == "s"
        assert lanes.pop(1.0).request_id == "l"

    def test_o5_only_the_head_ages(self) -> None:
        lanes = queue(limit_ms=100)
        lanes.add(named("l0", LONG), 0.0)
        lanes.prepend(named("l1", LONG), 0.150)
        lanes.add(named("s", SHORT), 0.150)
        assert lanes.peek(0.150).request_id == "s"

    def test_o6_a_request_taken_back_waits_anew(self) -> None:
        lanes = queue(limit_ms=100)
        long = named("l", LONG)
        lanes.add(long, 0.0)
        lanes.add(named("s", SHORT), 0.0)
        assert lanes.pop(0.2) is long
        lanes.prepend(long, 0.2)
        assert lanes.peek(0.2).request_id == "s"

    def test_o7_several_taken_back_end_up_reversed(self) -> None:
        lanes = queue()
        lanes.prepend_all([named(name, SHORT) for name in "abc"], 0.0)
        assert [request.request_id for request in lanes] == ["c", "b", "a"]

    def test_o8_a_streak_of_promotions_is_warned_of_once(self) -> None:
        lanes = queue(limit_ms=100)
        for name in ("l0", "l1", "l2"):
            lanes.add(named(name, LONG), 0.0)
        lanes.add(named("s", SHORT), 0.0)
        assert [lanes.pop(1.0).request_id for _ in range(3)] == ["l0", "l1", "l2"]
        assert (lanes.counters.promotions, lanes.counters.streak, lanes.counters.warned) == (3, 3, True)
        assert lanes.pop(1.0).request_id == "s"
        assert (lanes.counters.promotions, lanes.counters.streak) == (3, 0)

    # O9 is the worked example of test_document_example.py.

    def test_o10_an_aged_long_one_without_shorts_is_no_promotion(self) -> None:
        lanes = queue(limit_ms=100)
        lanes.add(named("l", LONG), 0.0)
        assert lanes.pop(1.0).request_id == "l"
        assert (lanes.counters.promotions, lanes.counters.streak) == (0, 0)

    def test_unknown_requests(self) -> None:
        lanes = queue()
        with pytest.raises(ValueError, match="does not wait here"):
            lanes.remove_one(named("a", 1))
        lanes.remove([named("a", 1)])
        with pytest.raises(IndexError):
            lanes.peek(0.0)


class Jobs:
    """A job-aware queue with a budget to set."""

    def __init__(self, **settings: Any) -> None:
        self.budget = 16_000
        self.settings = BatchJobSettings(**settings)
        self.predictor = JobPredictor(self.settings)
        self.queue = BatchJobAwareQueue(self.settings, self.predictor, lambda: self.budget)

    def add(self, job: str, *prompts: int) -> None:
        for number, prompt in enumerate(prompts):
            self.queue.add(Request(f"{job}{number}", prompt, 1, job=job))

    def popped(self, count: int) -> list[str]:
        return [self.queue.pop().request_id for _ in range(count)]


class TestBatchJobAware:
    def test_a_cold_start_goes_first_then_the_best_fit(self) -> None:
        jobs = Jobs()
        jobs.add("A", 100, 110, 120, 130, 140)
        jobs.add("B", 50, 50, 50, 50)
        assert jobs.popped(9) == ["A0", "A1", "A2", "B0", "B1", "B2", "A4", "A3", "B3"]

    def test_b_ten_samples_count(self) -> None:
        predictor = JobPredictor(BatchJobSettings())
        assert predictor.predict("j") == 128
        for _ in range(10):
            predictor.observe("j", 10)
        predictor.observe("j", 1000)
        assert predictor.predict("j") == 10
        predictor.observe("k", 128)
        predictor.observe("k", 0)
        assert predictor.predict("k") == 115
        assert predictor.jobs["k"].average == pytest.approx(115.2)

    @pytest.mark.parametrize(
        ("budget", "order"), [(16_000, ["L1", "L2", "S1", "S2"]), (3_200, ["S1", "S2", "L2", "L1"])]
    )
    def test_c_the_budget_decides_which_jobs_go_first(self, budget: int, order: list[str]) -> None:
        # With the small budget the order flips once only long jobs are left.
        jobs = Jobs()
        for job, tokens in (("L1", 300), ("L2", 200), ("S1", 20), ("S2", 10)):
            jobs.predictor.observe(job, tokens)
            jobs.add(job, 10, 10, 10, 10)
        jobs.budget = budget
        assert sorted(jobs.popped(12)) == sorted(f"{job}{number}" for job in order for number in range(3))
        assert jobs.popped(4) == [f"{job}3" for job in order]

    def test_d_a_decode_of_the_threshold_is_short(self) -> None:
        jobs = Jobs()
        for job, tokens in (("at", 32), ("above", 33)):
            jobs.predictor.observe(job, tokens)
            jobs.add(job, 10, 10, 10, 10)
        jobs.budget = 3_200
        jobs.popped(6)
        assert jobs.popped(2) == ["at3", "above3"]

    def test_e_nothing_is_offered_without_a_budget(self) -> None:
        running = RunningRequests(16)
        reserve = RunningReserve(BatchJobSettings(), block_size=16, max_tokens=512, lookahead_tokens=0, running=running)
        jobs = BatchJobAwareQueue(
            BatchJobSettings(), JobPredictor(BatchJobSettings()), lambda: reserve.budget_tokens(2)
        )
        jobs.add(Request("a", 10, 1))
        assert (bool(jobs), len(jobs)) == (False, 1)

    @pytest.mark.parametrize(("budget", "prompt"), [(5, 10), (49, 10), (50, 50), (99, 50), (1000, 100)])
    def test_f_best_fit(self, budget: int, prompt: int) -> None:
        jobs = Jobs()
        jobs.add("A", 1, 1, 1, 10, 50, 100)
        jobs.popped(3)
        jobs.budget = budget
        assert jobs.queue.peek().prompt_tokens == prompt

    def test_what_was_shown_stays_shown_even_when_removed(self) -> None:
        jobs = Jobs()
        jobs.add("A", 10, 20)
        shown = jobs.queue.peek()
        jobs.queue.remove((shown,))
        assert jobs.queue.peek() is shown
        assert jobs.queue.pop() is shown
        assert len(jobs.queue) == 1

    def test_max_jobs_of_zero(self) -> None:
        jobs = Jobs(max_jobs=0)
        for job in "abcdefgh":
            jobs.add(job, 10)
        with pytest.raises(TooManyJobs, match="more than 0 jobs"):
            jobs.predictor.observe("a", 1)

    @pytest.mark.parametrize(
        ("request_id", "job"),
        [
            ("cmpl-#job_name[a b]#-7", "a b"),
            ("#job_name[x]##job_name[y]#", "x"),
            ("r", "__default__"),
            ("#job_name[]#", "__default__"),
        ],
    )
    def test_the_job_that_an_id_names(self, request_id: str, job: str) -> None:
        assert job_of(request_id) == Request(request_id, 1, 1).job == job

    @pytest.mark.parametrize(
        ("computed", "prompt", "raw", "reserved"),
        [(0, 1000, 31, 8), (600, 1000, 0, 2), (15, 10, 1, 3), (1007, 1000, 1, 3)],
    )
    def test_the_reserve_of_a_running_request(self, computed: int, prompt: int, raw: int, reserved: int) -> None:
        running = RunningRequests(16)
        reserve = RunningReserve(BatchJobSettings(), block_size=16, max_tokens=512, lookahead_tokens=0, running=running)
        request = Request("r", prompt, 1)
        request.computed = computed
        running.append(request)
        assert (reserve.next_blocks(request), reserve.blocks()) == (raw, reserved)

    def test_the_reserve_remembers_by_the_number_of_running_requests(self) -> None:
        running = RunningRequests(16)
        reserve = RunningReserve(BatchJobSettings(), block_size=16, max_tokens=512, lookahead_tokens=0, running=running)
        request = Request("r", 1000, 1)
        running.append(request)
        assert reserve.blocks() == 8
        request.computed = 600
        assert reserve.blocks() == 8
        reserve.forget()
        assert reserve.blocks() == 2


@pytest.mark.parametrize(
    ("ranks", "places", "threshold", "plans"),
    [
        ([((3,), ()), ((1,), (2,))], 1, 1, [((), (), True), ((1,), (2,), False)]),
        ([((3,), ()), ((1,), (2,))], 1, 0.5, [((), (), True), ((), (), True)]),
        ([((60, 40), ()), ((60,), ())], None, 5, None),
        ([((4000, 1000), ()), ((1000,), ())], None, 1, [((4000,), (), True), ((), (), True)]),
        ([((10,), ()), ((4,), (6, 9))], 2, 5, [((), (), True), ((), (6,), False)]),
        ([((50, 10), (20,)), ((30,), ())], 2, 5, [((50,), (20,), False), ((), (), True)]),
    ],
)
def test_plans_of_the_balance(ranks: Any, places: int | None, threshold: float, plans: Any) -> None:
    made = plan([RankRequests(*rank) for rank in ranks], max_num_seqs=places, bubble_threshold=threshold)
    if plans is None:  # nobody moves
        plans = [((), (), True)] * len(ranks)
    assert [(tuple(rank.out), tuple(rank.into), rank.freeze) for rank in made] == plans


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"policy": "lifo"}, "known are fcfs, priority, short-request-first, batch-job-aware"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 8}, "must be at least max_num_seqs"),
        ({"chunked_prefill": False, "max_num_batched_tokens": 4096}, "without chunked prefill"),
        ({"num_blocks": 64}, "cannot hold one request"),
        ({"policy": "batch-job-aware", "recompute": True}, "excludes the recompute scheduler"),
        ({"release": HostRelease.V0_23, "policy": "batch-job-aware"}, "vllm-ascend 0.23 has no policy"),
        ({"release": HostRelease.V0_23, "watermark": 0.1}, "without a watermark"),
        ({"watermark": -0.1}, "must not be negative"),
    ],
)
def test_settings_that_the_host_refuses(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineSettings(**more)
