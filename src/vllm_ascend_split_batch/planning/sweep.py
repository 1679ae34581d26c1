"""Many simulations of one trace side by side: over processes, or over Ray where they outgrow a machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vllm_ascend_split_batch.host_model.admission import TooManyJobs
from vllm_ascend_split_batch.planning.simulation import Setup, Simulation
from vllm_ascend_split_batch.planning.summary import Summary
from vllm_ascend_split_batch.planning.traces import TraceRequest

#: Runs the named setups and calls back with 1 after each.
Sweep = Callable[[Sequence[tuple[str, Setup]], Callable[[int], object]], "list[Result]"]


class SweepError(Exception):
    """The simulations cannot be spread as asked; the message says what to do."""


@dataclass(frozen=True)
class Result:
    """One simulation; no summary where the host's engine would have ended, and then why."""

    name: str
    setup: Setup
    summary: Summary | None
    error: str = ""


def simulate(name: str, setup: Setup, requests: Sequence[TraceRequest]) -> Result:
    """Simulate to the end, here and now."""
    simulation = Simulation(setup)
    summary = Summary(name, simulation.totals)
    try:
        for outcome in simulation.run(requests):
            summary.add(outcome)
    except TooManyJobs as error:
        return Result(name, setup, None, str(error))
    return Result(name, setup, summary)


@contextmanager
def over_processes(requests: Sequence[TraceRequest], workers: int | None = None) -> Iterator[Sweep]:
    """A sweep over processes of this machine, as many as it has cores. Results come in the order of the setups."""
    count = workers or len(os.sched_getaffinity(0))
    if count == 1:
        yield lambda named, advance: [_then(advance, simulate(*one, requests)) for one in named]
        return
    with ProcessPoolExecutor(count, initializer=_take, initargs=(requests,)) as pool:

        def sweep(named: Sequence[tuple[str, Setup]], advance: Callable[[int], object]) -> list[Result]:
            return [_then(advance, result) for result in pool.map(_simulate_taken, *zip(*named, strict=True))]

        yield sweep


@contextmanager
def over_ray(requests: Sequence[TraceRequest], address: str) -> Iterator[Sweep]:
    """A sweep over a Ray cluster whose nodes have this distribution installed.

    Args:
        requests: sent to the cluster once.
        address: as `ray.init` takes it ("auto": the cluster that this machine belongs to); "local" starts one here.

    Raises:
        SweepError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        raise SweepError("--ray needs Ray, which is not installed here: pip install ray") from None
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SweepError(f"--ray {address}: {str(error).splitlines()[0]}") from None
    try:
        shared = ray.put(list(requests))
        remote: Any = ray.remote(simulate)

        def sweep(named: Sequence[tuple[str, Setup]], advance: Callable[[int], object]) -> list[Result]:
            tasks = [remote.remote(name, setup, shared) for name, setup in named]
            waiting = tasks
            while waiting:
                done, waiting = ray.wait(waiting)
                advance(len(done))
            results: list[Result] = ray.get(tasks)
            return results

        yield sweep
    finally:
        if started:
            ray.shutdown()


_taken: Sequence[TraceRequest] = ()


def _take(requests: Sequence[TraceRequest]) -> None:
    global _taken
    _taken = requests


def _simulate_taken(name: str, setup: Setup) -> Result:
    return simulate(name, setup, _taken)


def _then(advance: Callable[[int], object], result: Result) -> Result:
    advance(1)
    return result
