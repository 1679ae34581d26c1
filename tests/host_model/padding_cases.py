"""Generated engine settings and steps, the same in every process that asks for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vllm_ascend_split_batch.host_model.padding import Batch, GraphMode, HostRelease, HostSettings, RuntimeMode


@dataclass(frozen=True)
class StepCase:
    """One rank's step: dispatch, query boundary, attention rows."""

    settings: HostSettings
    ladder: tuple[int, ...]
    batch: Batch


@dataclass(frozen=True)
class BoundaryCase:
    """A query boundary to pad, for a graph that need not be the one that dispatch would choose."""

    settings: HostSettings
    query_ends: tuple[int, ...]
    padded_tokens: int
    mode: RuntimeMode
    graph_requests: int | None


@dataclass(frozen=True)
class RanksCase:
    """A step of several data-parallel ranks."""

    settings: HostSettings
    ladder: tuple[int, ...]
    batches: tuple[Batch, ...]
    skipped: bool
    needs_equal_tokens: bool


@dataclass(frozen=True)
class LadderCase:
    """An engine's start-up."""

    settings: HostSettings


@dataclass(frozen=True)
class SkipCase:
    """Whether data-parallel ranks exchange anything: the keyword arguments of `skips_agreement`."""

    release: HostRelease
    facts: dict[str, bool]


@dataclass(frozen=True)
class Cases:
    """All cases of one run."""

    steps: list[StepCase]
    boundaries: list[BoundaryCase]
    ranks: list[RanksCase]
    ladders: list[LadderCase]
    skips: list[SkipCase]


def generate(
    release: HostRelease, seed: int, steps: int, boundaries: int, ranks: int, ladders: int, skips: int
) -> Cases:
    """That many cases of each kind."""
    source = random.Random(seed)
    return Cases(
        [_step(source, release) for _ in range(steps)],
        [_boundary(source, release) for _ in range(boundaries)],
        [_ranks(source, release) for _ in range(ranks)],
        [LadderCase(_start_up(source, release)) for _ in range(ladders)],
        [_skip(source, release) for _ in range(skips)],
    )


def _chance(source: random.Random, share: float) -> bool:
    return source.random() < share


def _engine(source: random.Random, release: HostRelease, **more: Any) -> HostSettings:
    max_loras = source.choice([None, None, None, 1, 2, 5])
    return HostSettings(
        **{
            "release": release,
            "graph_mode": source.choice(list(GraphMode)),
            "max_num_seqs": source.randint(1, 16),
            "num_speculative_tokens": source.choice([0, 0, 1, 2, 3]),
            "enforce_eager": _chance(source, 0.08),
            "tensor_parallel_size": source.choice([1, 2, 4, 8]),
            "sequence_parallel": _chance(source, 0.3),
            "sequence_parallel_pass": _chance(source, 0.15),
            "dsa_context_parallel": _chance(source, 0.15),
            "decode_context_parallel_size": source.choice([1, 1, 1, 2]),
            "finegrained_tensor_parallel": _chance(source, 0.2),
            "is_mla": _chance(source, 0.2),
            "is_hybrid": _chance(source, 0.2),
            "is_encoder_decoder": _chance(source, 0.2),
            "recompute_decode_instance": _chance(source, 0.3),
            "max_loras": max_loras,
            "graphs_without_lora": _chance(source, 0.7),
            "graphs_per_lora_count": _chance(source, 0.5),
            **more,
        }
    )


def _captured(source: random.Random, settings: HostSettings) -> tuple[int, ...]:
    """A ladder as start-up leaves it, mostly: multiples of the query length, and of the ranks that share tokens."""
    unit = settings.uniform_query_length if _chance(source, 0.95) else 1
    if settings.sequence_parallel and _chance(source, 0.9):
        unit *= settings.tensor_parallel_size
    return tuple(sorted({unit * source.randint(1, 24) for _ in range(source.randint(1, 7))}))


def _batch(source: random.Random, settings: HostSettings) -> Batch:
    query_length = settings.uniform_query_length
    requests = source.randint(1, settings.max_num_seqs)
    if _chance(source, 0.55):
        scheduled = [query_length] * requests
    else:
        scheduled = [source.choice([1, 1, query_length, source.randint(1, 20)]) for _ in range(requests)]
    first_steps = _chance(source, 0.3)
    prompts, computed = [], []
    for _ in range(requests):
        prompts.append(source.randint(1, 12))
        started = source.choice([0, 1]) if first_steps else 1
        behind = source.choice([0, 0, 0, 1, 2]) if _chance(source, 0.3) else 0
        computed.append(started * max(0, prompts[-1] - behind + source.choice([0, 3])))
    loras = source.randint(0, settings.max_loras + 1) if settings.max_loras else 0
    return Batch(
        tuple(scheduled),
        tuple(computed),
        tuple(prompts),
        cascade_attention=_chance(source, 0.1),
        encoder_requests=source.choice([0, 0, 1]),
        num_active_loras=loras,
    )


def _step(source: random.Random, release: HostRelease) -> StepCase:
    settings = _engine(source, release)
    return StepCase(settings, _captured(source, settings), _batch(source, settings))


def _boundary(source: random.Random, release: HostRelease) -> BoundaryCase:
    settings = _engine(source, release)
    ends = tuple(accumulate(_batch(source, settings).scheduled_tokens))
    graph_requests = source.choice([None, len(ends), source.randint(1, settings.max_num_seqs)])
    uniform = (graph_requests or len(ends)) * settings.uniform_query_length
    padded = source.choice([ends[-1], uniform, ends[-1] + source.randint(0, 9)])
    return BoundaryCase(settings, ends, padded, source.choice(list(RuntimeMode)), graph_requests)


def _ranks(source: random.Random, release: HostRelease) -> RanksCase:
    settings = _engine(source, release, data_parallel_size=source.randint(2, 4))
    batches = tuple(_batch(source, settings) for _ in range(settings.data_parallel_size))
    return RanksCase(
        settings,
        _captured(source, settings),
        batches,
        skipped=_chance(source, 0.2),
        needs_equal_tokens=_chance(source, 0.3),
    )


def _start_up(source: random.Random, release: HostRelease) -> HostSettings:
    sizes: tuple[int, ...] | None = None
    largest: int | None = None
    if _chance(source, 0.5):
        unit = source.choice([1, 1, 3, 8, 12])
        sizes = tuple(unit * source.randint(1, 40) for _ in range(source.randint(1, 8)))
        if _chance(source, 0.4):
            largest = source.choice([max(sizes), max(sizes), 16])
    elif _chance(source, 0.4):
        largest = source.randint(1, 600)
    return _engine(
        source,
        release,
        max_num_seqs=source.choice([source.randint(1, 40), source.randint(1, 1024)]),
        max_num_batched_tokens=source.choice([8192, 2048, source.randint(1, 400)]),
        capture_sizes=sizes,
        max_capture_size=largest,
        interactivity=_chance(source, 0.2),
        few_graphs=_chance(source, 0.2),
        shared_expert_data_parallel=_chance(source, 0.15),
        sequence_parallel_pass=_chance(source, 0.15),
    )


def _skip(source: random.Random, release: HostRelease) -> SkipCase:
    names = ("is_moe", "is_kv_consumer", "decode_by_mc2", "prefill_by_mc2", "separates_decode", "recompute_scheduler")
    facts = {name: _chance(source, 0.75) for name in names}
    return SkipCase(release, facts | {"hierarchical_mc2": _chance(source, 0.1), "mega_moe": _chance(source, 0.15)})
