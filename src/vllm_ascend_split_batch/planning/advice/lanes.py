"""Waiting lanes: which policies and thresholds to try for a trace, and which of them to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_ascend_split_batch.host_model.admission import Policy, ShortRequestFirstSettings
from vllm_ascend_split_batch.planning.simulation import Setup
from vllm_ascend_split_batch.planning.summary import Summary, mean, percentile
from vllm_ascend_split_batch.planning.sweep import Result
from vllm_ascend_split_batch.planning.traces import TraceRequest

_SHARES = (0.25, 0.5, 0.75, 0.9)
_STEP = 16
_AGEING_OF_P95 = (0.5, 1.0, 2.0)
_SHORTEST_AGEING_MS = 50
#: A change must be worth at least this share of the mean wait, and this long, to be advised; mean waits that differ by
#: less are equal.
_WORTH, _WORTH_SECONDS = 0.05, 0.001


def candidates(requests: Sequence[TraceRequest], setup: Setup, baseline: Summary) -> list[tuple[str, Setup]]:
    """Settings to try beside the current ones: first come first served; ShortRequestFirst with thresholds at the
    quartiles and the 90th percentile of prompts, without ageing and with ageing after multiples of the 95th percentile
    of the current waits; BatchJobAware where the trace names as many jobs as the host allows.
    """
    fcfs = setup.with_policy(policy=Policy.FCFS)
    tried = [("fcfs", fcfs)]
    if not setup.engine.rules.has_policies or setup.engine.recompute:
        return tried
    prompts = [request.prompt_tokens for request in requests]
    thresholds = {-(-int(percentile(prompts, share)) // _STEP) * _STEP for share in _SHARES}
    p95 = percentile(baseline.waits, 0.95) * 1e3
    ageings = {0.0, *(float(_two_digits(max(p95 * factor, _SHORTEST_AGEING_MS))) for factor in _AGEING_OF_P95)}
    longest = max(prompts)
    for threshold in sorted(one for one in thresholds if one < longest):
        for ageing in sorted(ageings):
            lanes = ShortRequestFirstSettings(threshold, ageing)
            name = f"short-request-first, {threshold} tokens, " + (f"aged {ageing:g} ms" if ageing else "no ageing")
            tried.append((name, setup.with_policy(policy=Policy.SHORT_REQUEST_FIRST, short_request_first=lanes)))
    jobs = {request.job for request in requests}
    if len(jobs) > 1 and len(jobs) <= setup.engine.batch_job.max_jobs:
        tried.append(("batch-job-aware", setup.with_policy(policy=Policy.BATCH_JOB_AWARE)))
    return tried


@dataclass(frozen=True)
class Choice:
    """The settings to take, and why."""

    result: Result
    why: str


def choose(current: Result, tried: Sequence[Result], *, longest_wait_factor: float) -> Choice:
    """The shortest mean wait among those whose longest wait is at most `longest_wait_factor` times the current one.

    Of mean waits that differ by less than a change is worth, the one with the shortest longest wait is taken. Settings
    that answer fewer requests are out. The current ones stay unless the gain is worth a change.
    """
    now = current.summary
    if now is None:
        raise ValueError("the current settings end the engine")
    limit = longest_wait_factor * percentile(now.waits, 1)
    allowed = [
        (mean(summary.waits), percentile(summary.waits, 1), result)
        for result in tried
        if (summary := result.summary) is not None
        and summary.finished >= now.finished
        and percentile(summary.waits, 1) <= limit
    ]
    wait = mean(now.waits)
    worth = max(_WORTH * wait, _WORTH_SECONDS)
    worthy = [one for one in allowed if wait - one[0] >= worth]
    if not worthy:
        return Choice(current, f"nothing tried shortens the mean wait of {wait:.3f} s by {_WORTH:.0%} or more")
    best = min(taken for taken, _, _ in worthy)
    alike = [one for one in worthy if one[0] - best < worth]
    taken, longest, result = min(alike, key=lambda one: (one[1], one[0]))
    equal = f", the shortest longest wait ({longest:.3f} s) of {len(alike)} with about this mean" if alike[1:] else ""
    out = len(tried) - len(allowed)
    left = (
        f"; left out, because somebody would wait longer than {limit:.1f} s: {out} of {len(tried)} tried" if out else ""
    )
    return Choice(result, f"mean wait {taken:.3f} s instead of {wait:.3f} s{equal}{left}")


def _two_digits(value: float) -> str:
    return f"{value:.2g}"
