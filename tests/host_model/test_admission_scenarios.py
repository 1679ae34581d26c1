"""What a user of an engine observes: ageing, learning, recovery, loads; and many steps at once are those steps."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host_model.admission_cases import generate_engines
from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.host_model.admission import (
    BatchJobSettings,
    Engine,
    EngineSettings,
    HostRelease,
    Policy,
    Request,
    RequestStatus,
    ShortRequestFirstSettings,
    decode_rounds,
    engine,
)
from vllm_ascend_split_batch.host_model.recovery import Recovery, recovery_of
from vllm_ascend_split_batch.host_model.remote_kv import Connector, LoadState, RemoteTokens

STEP = 0.001


class TestAgeing:
    """A long request under continuous short arrivals, one place."""

    def served(self, limit_ms: float) -> list[str]:
        place = Engine(
            EngineSettings(
                policy="short-request-first",
                max_num_seqs=1,
                max_num_batched_tokens=128,
                short_request_first=ShortRequestFirstSettings(128, limit_ms),
            )
        )
        place.add(Request("first", 64, 1), 0.0)
        place.add(Request("long", 256, 1), 0.0)
        order: list[str] = []
        for number in range(40):
            now = number * STEP
            place.add(Request(f"short {number}", 64, 1), now)
            order += [request.request_id for request in place.step(now).admitted]
        return order

    def test_it_goes_ahead_once_it_has_waited(self) -> None:
        # Every step serves one short request; ageing is looked at when the place is free.
        order = self.served(limit_ms=10.0)
        assert order.index("long") == 10
        assert "long" not in order[:10]
        assert order[9].startswith("short")
        assert order[11].startswith("short")

    def test_without_ageing_it_waits_as_long_as_short_ones_come(self) -> None:
        assert "long" not in self.served(limit_ms=0.0)


class TestLearning:
    """Updates of the predictor after the cold start, and what they do to the order."""

    def engine(self) -> Engine:
        return Engine(
            EngineSettings(
                policy="batch-job-aware",
                max_num_seqs=1,
                max_model_len=512,
                num_blocks=40,
                block_size=16,
                batch_job=BatchJobSettings(low_available_tokens_threshold=4096, short_decode_token_threshold=32),
            )
        )

    def test_finished_requests_teach_and_the_order_follows(self) -> None:
        place = self.engine()
        for number in range(5):
            place.add(Request(f"l{number}", 16, 60, job="long"), 0.0)
            place.add(Request(f"s{number}", 16, 2, job="short"), 0.0)
        predictor = place.scheduler.policy.predictor  # type: ignore[attr-defined]
        assert predictor.predict("long") == predictor.predict("short") == 128
        order: list[str] = []
        now = 0.0
        while place.has_work:
            order += [request.request_id for request in place.step(now).admitted]
            now += STEP
        # The first three of each job, in the order in which the jobs came up; then, with few blocks, the job that is
        # known to decode shortly.
        cold, learned = set(order[:6]), order[6:]
        assert cold == {f"{job}{number}" for job in "ls" for number in range(3)}
        assert learned == ["s3", "s4", "l3", "l4"]
        assert (predictor.predict("long"), predictor.predict("short")) == (60, 2)

    def test_cut_off_and_aborted_requests_teach_nothing(self) -> None:
        place = self.engine()
        place.add(Request("cut", 16, 60, job="j", max_tokens=5), 0.0)
        given_up = Request("gone", 16, 60, job="j")
        place.add(given_up, 0.0)
        for number in range(12):
            place.step(number * STEP)
        assert given_up.status is RequestStatus.RUNNING
        place.abort(given_up)
        assert place.scheduler.policy.predictor.jobs == {}  # type: ignore[attr-defined]


class Saving(Connector):
    """A connector that saves victims and gives them back."""

    def __init__(self, saves: bool) -> None:
        self.saved: dict[str, int] = {}
        self.offload = self.save if saves else lambda _: False

    def save(self, request: Request) -> bool:
        self.saved[request.request_id] = request.computed
        return True

    def matched(self, request: Request, local_tokens: int) -> RemoteTokens | None:
        tokens = self.saved.get(request.request_id, 0) - local_tokens
        return RemoteTokens(tokens, asynchronous=True) if tokens > 0 else RemoteTokens(0)


class TestRecovery:
    """Blocks run out during decode: the newest request loses its place."""

    def run_out(self, connector: Connector | None, recompute: bool = True) -> tuple[Engine, Request, Any]:
        place = Engine(
            EngineSettings(
                max_num_seqs=2, max_model_len=64, num_blocks=5, block_size=16, prefix_caching=False, recompute=recompute
            ),
            connector,
        )
        older, newer = Request("older", 30, 30), Request("newer", 28, 30)
        place.add(older, 0.0)
        place.add(newer, 0.0)
        for _ in range(8):
            result = place.step(0.0)
            if result.preempted or result.recomputed:
                break
        assert older.status is RequestStatus.RUNNING
        return place, newer, result

    def test_saved_it_is_loaded_and_goes_on_where_it_was(self) -> None:
        connector = Saving(saves=True)
        place, victim, result = self.run_out(connector)
        produced = victim.outputs
        assert result.preempted == [victim]
        assert not result.recomputed
        assert (victim.status, victim.computed, victim.blocks) == (RequestStatus.PREEMPTED, 0, 0)
        assert connector.saved == {"newer": 28 + produced - 1}
        while victim.status is not RequestStatus.WAITING_FOR_REMOTE_KVS:
            place.step(0.0)
        assert victim.blocks == 2
        assert place.scheduler.loads.state(victim) is LoadState.LOADING
        place.step(0.0, loads_ended=[victim])
        assert place.scheduler.loads.state(victim) is LoadState.RECEIVED
        result = place.step(0.0)
        assert result.admitted == [victim]
        assert result.decodes >= 1
        assert not result.prefills
        assert victim.outputs == produced + 1

    @pytest.mark.parametrize("connector", [Saving(saves=False), Connector(), None])
    def test_not_saved_it_leaves_for_another_engine(self, connector: Connector | None) -> None:
        place, victim, result = self.run_out(connector)
        assert result.recomputed == [victim]
        assert not result.preempted
        assert (victim.status, victim.finish_reason) == (RequestStatus.FINISHED_ABORTED, "recomputed")
        assert victim.blocks == 0
        assert place.num_waiting == 0
        assert place.num_running == 1

    def test_without_the_recompute_scheduler_it_is_computed_again_here(self) -> None:
        place, victim, result = self.run_out(Saving(saves=False), recompute=False)
        assert result.preempted == [victim]
        while not victim.status.is_finished:
            place.step(0.0)
        assert victim.outputs == 30
        assert victim.preemptions >= 1

    def test_a_victim_that_asks_for_the_blocks_itself_ends_the_step(self) -> None:
        place = Engine(EngineSettings(max_num_seqs=2, max_model_len=64, num_blocks=5, block_size=16, recompute=True))
        place.add(Request("older", 17, 40), 0.0)
        newer = Request("newer", 31, 30)
        place.add(newer, 0.0)
        results = [place.step(0.0) for _ in range(3)]
        assert results[2].recomputed == [newer]
        assert results[2].decodes == 1

    def test_outcomes(self) -> None:
        victim = Request("v", 1, 1)
        assert recovery_of(victim, None, recompute=False, aborts_unsaved=True) is Recovery.HERE
        assert recovery_of(victim, Saving(saves=True), recompute=True, aborts_unsaved=True) is Recovery.HERE
        assert recovery_of(victim, Connector(), recompute=True, aborts_unsaved=True) is Recovery.NOWHERE
        assert recovery_of(victim, Connector(), recompute=True, aborts_unsaved=False) is Recovery.ELSEWHERE


class Remote(Connector):
    """A connector that has all of every prompt."""

    def matched(self, request: Request, local_tokens: int) -> RemoteTokens | None:
        return RemoteTokens(request.prompt_tokens - local_tokens, asynchronous=True)


class TestRemoteArrival:
    def loading(self) -> tuple[Engine, Request]:
        place = Engine(EngineSettings(max_num_seqs=2, max_model_len=64, num_blocks=9, block_size=16), Remote())
        request = Request("r", 40, 2)
        place.add(request, 0.0)
        assert place.step(0.0).loading == [request]
        assert (request.blocks, place.free_blocks, place.num_waiting) == (3, 5, 1)
        return place, request

    def test_it_arrives_and_the_last_token_is_computed_here(self) -> None:
        place, request = self.loading()
        assert place.step(0.0).num_requests == 0
        assert place.blocked
        place.step(0.0, loads_ended=[request])
        result = place.step(0.0)
        assert (result.decodes, result.prefills, result.first_tokens) == (1, [], [request])

    def test_a_failure_keeps_what_is_good(self) -> None:
        place, request = self.loading()
        place.step(0.0, loads_failed={request: 1}, loads_ended=[request])
        assert place.scheduler.loads.state(request) is LoadState.RECEIVED
        assert place.step(0.0).prefills == [(request, 24)]

    def test_a_failure_of_the_first_block_starts_from_scratch(self) -> None:
        place, request = self.loading()
        place.step(0.0, loads_failed={request: 0})
        assert place.scheduler.loads.state(request) is LoadState.FAILED
        place.step(0.0, loads_ended=[request])
        assert place.step(0.0).loading == [request]  # asked for once more

    def test_a_cancelled_load_keeps_its_blocks_until_it_ends(self) -> None:
        place, request = self.loading()
        place.abort(request)
        assert (place.num_waiting, place.free_blocks) == (0, 5)
        assert place.scheduler.loads.state(request) is LoadState.CANCELLED
        place.step(0.0, loads_ended=[request])
        assert place.free_blocks == 8


def replay(case: Any, at_most: int) -> list[Any]:
    """When everything happened, by number of step."""
    place = Engine(case.settings)
    requests = {spec.request_id: spec.request() for spec in case.requests}
    arrivals = sorted((spec.step, number, spec.request_id) for number, spec in enumerate(case.requests))
    told: list[Any] = []
    step = 0
    while step < 400 and (arrivals or place.has_work):
        while arrivals and arrivals[0][0] <= step:
            place.add(requests[arrivals.pop(0)[2]], step * STEP)
        free = arrivals[0][0] - step if arrivals else at_most
        result = place.step(step * STEP, max(1, min(at_most, free)))
        for name in ("admitted", "preempted", "first_tokens", "finished"):
            told += [(step, name, request.request_id) for request in getattr(result, name)]
        told += [(step + number, result.num_tokens, result.num_requests) for number in range(result.steps)]
        step += result.steps
    return [told, place.free_blocks]


def without_waits(case: Any) -> bool:
    return case.settings.policy is not Policy.BATCH_JOB_AWARE or not any(spec.aborted for spec in case.requests)


CASES = [case for case in generate_engines(HostRelease.V0_27_1, 5, 400) if without_waits(case)]


@settings(max_examples=120)
@given(st.sampled_from(CASES), st.integers(2, 50))
def test_many_steps_at_once_are_those_steps(case: Any, at_most: int) -> None:
    assert replay(case, at_most) == replay(case, 1)


@pytest.mark.parametrize(
    ("module", "name", "old", "new"),
    [
        (decode_rounds, "DecodeRounds", "if free_blocks < 0 or", "if"),
        (decode_rounds, "DecodeRounds", "or self._ending.get(self.count + rounds + 1)", ""),
        (engine, "Engine", "if self.num_waiting and self.num_running < self.settings.max_num_seqs", "if False"),
    ],
)
def test_steps_that_differ_are_noticed(
    module: ModuleType,
    name: str,
    old: str,
    new: str,
    mutant: Callable[[ModuleType, str, str], Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm_ascend_split_batch.host_model.admission import running

    changed = mutant(module, old, new)
    for user in (running, __import__(__name__, fromlist=["Engine"])):
        if hasattr(user, name):
            monkeypatch.setattr(user, name, getattr(changed, name))

    def differs(case: Any) -> bool:
        try:
            return replay(case, 20) != replay(case, 1)
        except Exception:  # a changed model may break anywhere
            return True

    assert any(differs(case) for case in CASES)


def test_a_request_that_can_never_run_is_refused() -> None:
    place = Engine(EngineSettings(max_model_len=64, num_blocks=9, block_size=16))
    with pytest.raises(ValueError, match="leaves no room for output"):
        place.add(Request("r", 64, 1), 0.0)
    with pytest.raises(ValueError, match="must be at least 1"):
        Request("r", 0, 1)
