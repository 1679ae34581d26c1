"""A case run by the model, told in the words in which the host's run is told."""

from __future__ import annotations

from typing import Any

from tests.host_model.admission_cases import EngineCase, Script
from vllm_ascend_split_batch.host_model.admission import Engine, Policy, Request
from vllm_ascend_split_batch.host_model.load_balance import BalancedScheduler, exchanged, plan
from vllm_ascend_split_batch.host_model.padding import HostFailure
from vllm_ascend_split_batch.host_model.recovery import RECOMPUTED
from vllm_ascend_split_batch.host_model.remote_kv import Connector, RemoteTokens

FAILED = "failure"


class ScriptedConnector(Connector):
    """The model's connector, with a script's answers."""

    def __init__(self, script: Script) -> None:
        self._script = script
        if script.case.connector != "without hook":
            self.offload = lambda request: script.offload(request.request_id, request.computed)

    def matched(self, request: Request, local_tokens: int) -> RemoteTokens | None:
        tokens, asynchronous = self._script.matched(request.request_id, local_tokens)
        return None if tokens is None else RemoteTokens(tokens, asynchronous)


def run_model(case: EngineCase) -> list[Any]:
    """One entry a step."""
    script = Script(case)
    connector = None if case.connector == "none" else ScriptedConnector(script)
    engine = Engine(case.settings, connector)
    if case.balance:
        engine.scheduler = BalancedScheduler(case.settings, connector)
    requests = {spec.request_id: spec.request() for spec in case.requests}
    told = []
    for number, now in enumerate(case.times):
        script.step = number
        for spec in case.requests:
            if spec.step == number:
                engine.add(requests[spec.request_id], now)
        for spec in case.requests:
            if spec.aborted == number:
                engine.abort(requests[spec.request_id])
        try:
            told.append(_step(engine, requests, script, now))
        except HostFailure:
            return [*told, FAILED]
        if case.balance:
            told.append(_balance(case, engine.scheduler, script, number))
    return told


def _balance(case: EngineCase, scheduler: Any, script: Script, number: int) -> Any:
    others = case.balance[number]
    scheduler.plan = None
    if others is None:
        return None
    own = scheduler.prepare(prefetch=True)
    for request in scheduler.prefetched:
        script.started(request.request_id, scheduler.blocks.blocks_for(request.computed))
    places = case.settings.max_num_seqs
    plans = plan(exchanged([own, *others], places), max_num_seqs=places, bubble_threshold=case.bubble_threshold)
    scheduler.plan = plans[0]
    skipped = [[request.request_id, request.status.name] for request in scheduler.skipped]
    return [[[rank.out, rank.into, rank.freeze] for rank in plans], skipped]


def _step(engine: Engine, requests: dict[str, Request], script: Script, now: float) -> dict[str, Any]:
    scheduler = engine.scheduler
    # Loads that begin in this step may end with its output.
    step = scheduler.schedule(now)
    result = step.result
    for request in result.loading:
        script.started(request.request_id, scheduler.blocks.blocks_for(request.computed))
    failed, ended = script.report()
    scheduled = {request.request_id for request, _ in result.prefills}
    tokens = sum(count for _, count in result.prefills) + result.decodes
    scheduled_requests = len(scheduled) + result.decodes
    known = step
    if engine.settings.asynchronous:
        known, scheduler.undelivered = scheduler.undelivered, (step if result.num_requests else None)
    waits = {
        request_id: block
        for request_id, block in failed.items()
        if scheduler.loads.state(requests[request_id]) is not None and not requests[request_id].status.is_finished
    }
    scheduler.loads_failed({requests[request_id]: block for request_id, block in waits.items()})
    if known is not None:
        scheduler.deliver(known, result)
    scheduler.loads_ended(requests[request_id] for request_id in ended)
    in_flight = 1 if engine.settings.asynchronous else 0
    return {
        "tokens": tokens,
        "requests": scheduled_requests,
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in scheduler.waiting],
        "skipped": [request.request_id for request in scheduler.skipped],
        "free": scheduler.blocks.free,
        "preempted": sorted(request.request_id for request in result.preempted),
        "recomputed": [request.request_id for request in result.recomputed],
        "finished": [[request.request_id, _reason(request)] for request in result.finished],
        "state": {
            request.request_id: [
                request.status.name,
                request.computed,
                request.outputs - (in_flight if request.in_rounds else request.pending),
                request.preemptions,
            ]
            for queue in (scheduler.running, scheduler.waiting, scheduler.skipped)
            for request in queue
        },
        "policy": _policy(engine),
    }


def _reason(request: Request) -> str | None:
    """Why the host says that a request ended; one that 0.23 answers once more stops as if nothing had happened."""
    if request.finish_reason != RECOMPUTED:
        return request.finish_reason
    return "length" if request.last_output < request.output_tokens else "stop"


def _policy(engine: Engine) -> Any:
    scheduler = engine.scheduler
    if engine.settings.policy is Policy.SHORT_REQUEST_FIRST:
        queue: Any = scheduler.waiting
        counters = queue.counters
        return [
            [[counters.prepended[lane], counters.dispatched[lane]] for lane in counters.prepended],
            list(queue.lane_lengths().values()),
            counters.promotions,
            counters.streak,
        ]
    if engine.settings.policy is Policy.BATCH_JOB_AWARE:
        policy: Any = scheduler.policy
        return {job: [samples.count, samples.average] for job, samples in policy.predictor.jobs.items()}
    return None
