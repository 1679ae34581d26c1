"""The kinds of generated cases, how each is generated, and how the model answers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.host_model.admission_cases import generate_balanced, generate_connected, generate_engines
from tests.host_model.balance_cases import ActivationCase, PlanCase, generate_activations, generate_plans
from tests.host_model.document_example import document_cases
from tests.host_model.host_parts import is_lacking
from tests.host_model.queue_cases import generate_batch_jobs, generate_short_first
from vllm_ascend_split_batch.host_model.admission import HostRelease

GENERATORS: dict[str, Callable[[HostRelease, int, int], list[Any]]] = {
    "short first": lambda _, seed, count: generate_short_first(seed, count),
    "batch jobs": lambda _, seed, count: generate_batch_jobs(seed, count),
    "plans": lambda _, seed, count: generate_plans(seed, count),
    "activations": lambda _, seed, count: generate_activations(seed, count),
    "document": lambda release, _, count: [] if is_lacking(release, "document") else document_cases(release)[:count],
    "engines": generate_engines,
    "connected engines": generate_connected,
    "balanced engines": generate_balanced,
}


def model_answers() -> dict[str, Callable[[Any], list[Any]]]:
    """How the model answers a case of each kind. Looked up anew, so that a changed module is used."""
    from tests.host_model.admission_lockstep import run_model
    from tests.host_model.queue_cases import run_queue
    from tests.host_model.queue_models import BatchJobsModel, ShortFirstModel

    return {
        "short first": lambda case: run_queue(case, ShortFirstModel(case)),
        "batch jobs": lambda case: run_queue(case, BatchJobsModel(case)),
        "plans": _plan,
        "activations": _activation,
        "document": run_model,
        "engines": run_model,
        "connected engines": run_model,
        "balanced engines": run_model,
    }


def _plan(case: PlanCase) -> list[Any]:
    from vllm_ascend_split_batch.host_model.load_balance import plan

    plans = plan(case.ranks, max_num_seqs=case.max_num_seqs, bubble_threshold=case.bubble_threshold)
    return [[rank.out, rank.into, rank.freeze] for rank in plans]


def _activation(case: ActivationCase) -> list[Any]:
    from vllm_ascend_split_batch.host_model.load_balance import BalanceActivation

    activation, told = BalanceActivation(case.settings, case.ranks), []
    for counter, arrivals in case.steps:
        for rank, blocks in enumerate(arrivals):
            for each in blocks:
                activation.arrived(rank, each)
        active = activation.step(counter)
        told.append([[active, activation.armed, activation.steps_without_long]] * case.ranks)
    return told
