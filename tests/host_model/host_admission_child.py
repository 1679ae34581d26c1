"""Runs generated cases through the host's own schedulers, on stand-ins for what surrounds them.

    python host_admission_child.py RELEASE SEED COUNTS.json RESULT.json

Started by `test_admission_host.py` on the emulated NPU.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

# Before the host's other modules: it breaks their import cycle.
from tests.host_model.host_scheduler import (  # isort: skip
    Outputs,
    ScriptedConnector,
    make_request,
    make_scheduler,
    runner_output,
    surroundings,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import RequestStatus

from tests.host_model.admission_cases import EngineCase, Script
from tests.host_model.admission_kinds import GENERATORS
from tests.host_model.queue_cases import run_queue
from vllm_ascend_split_batch.host_model.admission import HostRelease, Policy, admission_rules

FAILED = "failure"
if importlib.util.find_spec("vllm_ascend.core.dyntra_lb_scheduler") is not None:
    from vllm_ascend.core.dyntra_lb_scheduler import get_dyntra_lb_request_block_num
    from vllm_ascend.patch.platform.patch_dyntra_lb_core import DyntraLBDPEngineCoreProc

CLOCK = SimpleNamespace(now=0.0)


def run_host(case: EngineCase) -> list[Any]:
    """One entry a step, as `admission_lockstep.run_model` tells it."""
    script = Script(case)
    connector = None
    if case.connector != "none":
        connector = ScriptedConnector(script.matched, None if case.connector == "without hook" else script.offload)
    with surroundings(case.settings, connector):
        return drive(case, make_scheduler(case.settings, connector, balanced=bool(case.balance)), script)


def drive(case: EngineCase, scheduler: Any, script: Script) -> list[Any]:
    outputs = Outputs({spec.request_id: spec.output_tokens for spec in case.requests})
    told, before = [], None
    for number, now in enumerate(case.times):
        CLOCK.now, script.step = now, number
        for position, spec in enumerate(case.requests):
            if spec.step == number:
                scheduler.add_request(make_request(spec.request(), position, case.settings.block_size))
        for spec in case.requests:
            if spec.aborted == number:
                scheduler.finish_requests(spec.request_id, RequestStatus.FINISHED_ABORTED)
        try:
            entry, before = step(case, scheduler, outputs, script, before)
        except RuntimeError as error:
            if "Invalid request status" not in str(error):
                raise
            return [*told, FAILED]
        told.append(entry)
        if case.balance:
            told.append(balance(case, scheduler, script, number))
    return told


def balance(case: EngineCase, scheduler: Any, script: Script, number: int) -> Any:
    """What the engine core does between two steps, with the other ranks' requests given."""
    others = case.balance[number]
    scheduler._lb_kv_prefetch_enabled = others is not None
    scheduler.modifications, scheduler.lb_freeze = None, False
    if others is None:
        return None
    waiting = scheduler.prepare_dyntra_lb_step()
    note_loads(case, scheduler, script)
    loads = [
        [get_dyntra_lb_request_block_num(scheduler, request) for request in requests]
        for requests in (scheduler.running, waiting)
    ]
    places = case.settings.max_num_seqs
    slots = 2 * places
    ranks = []
    for running, queued in [loads, *((list(rank.running), list(rank.waiting)) for rank in others)]:
        taken = min(len(running), slots)
        listed = running[:taken] + queued[: slots - taken]
        ranks.append((listed + [0] * (slots - len(listed)), taken))
    plans = DyntraLBDPEngineCoreProc._balance_load(
        ranks, len(ranks), max_num_seqs=places, threshold=case.bubble_threshold
    )
    scheduler.modifications = plans[0]
    skipped = [[request.request_id, request.status.name] for request in scheduler.skipped_waiting]
    return [[[plan["out_blk"], plan["in_blk"], plan["freeze"]] for plan in plans], skipped]


def note_loads(case: EngineCase, scheduler: Any, script: Script) -> None:
    if scheduler.connector is None:
        return
    for request_id in scheduler.connector.started:
        computed = scheduler.requests[request_id].num_computed_tokens
        script.started(request_id, -(-computed // case.settings.block_size))
    scheduler.connector.started.clear()


def step(case: EngineCase, scheduler: Any, outputs: Outputs, script: Script, before: Any) -> tuple[Any, Any]:
    lost = {request_id: request.num_preemptions for request_id, request in scheduler.requests.items()}
    scheduled = scheduler.schedule()
    preempted = [
        request_id for request_id, request in scheduler.requests.items() if request.num_preemptions > lost[request_id]
    ]
    tokens = outputs.of(scheduler, scheduled)
    note_loads(case, scheduler, script)
    failed, ended = script.report()
    invalid = set()
    for request_id, block in failed.items():
        if request_id in scheduler.requests and not scheduler.requests[request_id].is_finished():
            invalid.add(scheduler.kv_cache_manager.get_block_ids(request_id)[0][block])
    known: Any = (scheduled, tokens)
    if case.settings.asynchronous:
        known, before = before, (known if tokens else None)
        if known is None:
            nothing = SchedulerOutput.make_empty()
            nothing.recomputed_reqs = None  # where the recompute scheduler's own output has it
            known = (nothing, {})
    told = scheduler.update_from_output(known[0], runner_output(known[1], set(ended), invalid))
    finished = [
        [output.request_id, str(output.finish_reason)]
        for client in told.values()
        for output in client.outputs
        if output.finish_reason is not None and output.stop_reason != "recomputed"
    ]
    recomputed = [entry.request_id for entry in getattr(scheduled, "recomputed_reqs", None) or []]
    return {
        "tokens": scheduled.total_num_scheduled_tokens,
        "requests": len(scheduled.num_scheduled_tokens),
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in scheduler.waiting],
        "skipped": [request.request_id for request in scheduler.skipped_waiting],
        "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "preempted": sorted(preempted),
        "recomputed": recomputed,
        "finished": finished,
        "state": {
            request.request_id: [
                request.status.name,
                request.num_computed_tokens,
                request.num_output_tokens,
                request.num_preemptions,
            ]
            for queue in (scheduler.running, scheduler.waiting, scheduler.skipped_waiting)
            for request in queue
        },
        "policy": policy(case, scheduler),
    }, before


def policy(case: EngineCase, scheduler: Any) -> Any:
    if case.settings.policy is Policy.SHORT_REQUEST_FIRST:
        queue = scheduler.waiting
        lanes = ("immediate", "short", "long")
        return [
            [[queue._prepend_counters[lane], queue._dispatch_counters[lane]] for lane in lanes],
            [queue.num_immediate_requests, queue.num_short_requests, queue.num_long_requests],
            queue._aged_long_promotions,
            queue._consecutive_aged_long_promotions,
        ]
    if case.settings.policy is Policy.BATCH_JOB_AWARE:
        stats = scheduler._job_decode_estimator._job_stats
        return {job: [stat.sample_count, stat.ewma_average] for job, stat in stats.items()}
    return None


def main(release: str, seed: str, counts: str, result: str) -> None:
    line, number, wanted = HostRelease(release), int(seed), json.loads(counts)
    rules = admission_rules(line)
    answers: dict[str, list[Any] | None] = dict.fromkeys(wanted)
    if rules.has_policies:
        from tests.host_model.host_queues import BatchJobsHost, ShortFirstHost

        for kind, queue in (("short first", ShortFirstHost), ("batch jobs", BatchJobsHost)):
            answers[kind] = [run_queue(case, queue(case)) for case in GENERATORS[kind](line, number, wanted[kind])]
            mock.patch.stopall()
        import vllm_ascend.core.short_request_first_scheduler as short

        mock.patch.object(short, "time", SimpleNamespace(monotonic=lambda: CLOCK.now)).start()
        answers["document"] = [run_host(case) for case in GENERATORS["document"](line, number, wanted["document"])]
    if rules.has_load_balancing:
        from tests.host_model.host_balance import run_activation, run_plan

        for kind, run in (("plans", run_plan), ("activations", run_activation), ("balanced engines", run_host)):
            answers[kind] = [run(case) for case in GENERATORS[kind](line, number, wanted[kind])]
    for kind in ("engines", "connected engines"):
        answers[kind] = [run_host(case) for case in GENERATORS[kind](line, number, wanted[kind])]
    Path(result).write_text(json.dumps(answers))


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    main(*sys.argv[1:])
