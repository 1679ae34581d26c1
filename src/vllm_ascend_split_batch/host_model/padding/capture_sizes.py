"""The ladder of capture sizes that an engine ends up with at start-up."""

from __future__ import annotations

import math
from collections.abc import Iterable

from vllm_ascend_split_batch.host_model.padding.modes import GraphMode, RuntimeMode
from vllm_ascend_split_batch.host_model.padding.releases import HostFailure
from vllm_ascend_split_batch.host_model.padding.settings import HostSettings

_LARGEST_DEFAULT = 512
_FEW_GRAPHS = 4


def capture_sizes(settings: HostSettings) -> tuple[int, ...]:
    """Capture sizes in tokens, ascending; none where no graph is captured.

    Raises:
        HostFailure: the host refuses these settings at start-up.
    """
    if settings.mode_in_force is GraphMode.NONE:
        return ()
    sizes = _configured(settings)
    if settings.tensor_parallel_size > 1 and settings.aligns_capture_sizes:
        sizes = [size for size in sizes if size % settings.tensor_parallel_size == 0]
        if not sizes:
            raise HostFailure(
                f"no capture size is a multiple of the tensor-parallel size {settings.tensor_parallel_size}"
            )
    if settings.few_graphs and settings.release.rules.samples_reduced_ladders:
        sizes = _sampled(sizes, settings.graph_mode)
    return tuple(_rounded_for_full_decode(settings, sizes))


def _configured(settings: HostSettings) -> list[int]:
    """The user's list, or the default grid up to the largest size."""
    most_tokens = settings.max_num_batched_tokens
    # Plain vLLM would take twice as many requests.
    default = min(settings.max_num_seqs * settings.uniform_query_length, _LARGEST_DEFAULT)
    largest = min(default if settings.max_capture_size is None else settings.max_capture_size, most_tokens)
    if largest < 1:
        raise HostFailure(f"the largest capture size must be at least 1, got {largest}")
    adds_largest = (
        settings.capture_sizes is None
        and settings.max_capture_size is None
        and settings.release.rules.captures_default_maximum
    )
    if settings.capture_sizes is None:
        sizes = _grid(largest, most_tokens, settings.interactivity) | ({largest} if adds_largest else set())
    else:
        sizes = {size for size in settings.capture_sizes if size <= most_tokens}
    if settings.sequence_parallel_pass:
        sizes = {size for size in sizes if size % settings.tensor_parallel_size == 0}
    # The host refuses an empty list where it meets one; the size added last keeps it from looking.
    if not sizes and not adds_largest:
        raise HostFailure(f"no capture size is left up to {most_tokens} tokens")
    if settings.capture_sizes is not None and settings.max_capture_size not in (None, max(sizes)):
        raise HostFailure(
            f"the largest capture size given, {settings.max_capture_size}, is not that of the list, {max(sizes)}"
        )
    return sorted(sizes)


def _grid(largest: int, most_tokens: int, interactivity: bool) -> set[int]:
    """Steps of 8 below 256 and of 16 from there on. `largest` itself belongs only where it lies on the grid."""
    small: Iterable[int] = range(1, min(largest, 32) + 1) if interactivity else (1, 2, 4)
    sizes = {size for size in small if size <= largest}
    sizes.update(range(8, min(largest + 1, 256), 8))
    sizes.update(range(256, largest + 1, 16))
    if most_tokens <= largest:
        sizes.add(most_tokens)
    return sizes


def _sampled(sizes: list[int], mode: GraphMode) -> list[int]:
    """Four sizes spread evenly over the ladder, its ends included."""
    piecewise = RuntimeMode.PIECEWISE in (mode.decode, mode.mixed)
    if not piecewise or len(sizes) <= _FEW_GRAPHS:
        return sizes
    step = (len(sizes) - 1) / (_FEW_GRAPHS - 1)
    return [sizes[round(index * step)] for index in range(_FEW_GRAPHS - 1)] + [sizes[-1]]


def _rounded_for_full_decode(settings: HostSettings, sizes: list[int]) -> list[int]:
    """With full decode graphs every size becomes a multiple of what decode batches need, none above the largest."""
    if settings.graph_mode.decode is not RuntimeMode.FULL or not sizes:
        return sizes
    multiple = _multiple_for_full_decode(settings, sizes)
    if multiple == 1:
        return sizes
    largest = sizes[-1]
    rounded = {math.ceil(size / multiple) * multiple for size in sizes}
    kept = sorted(size for size in rounded if size <= largest)
    if kept:
        return kept
    if multiple <= largest:
        return [multiple]
    raise HostFailure(f"no capture size up to {largest} is a multiple of {multiple}")


def _multiple_for_full_decode(settings: HostSettings, sizes: list[int]) -> int:
    query_length, parallel = settings.uniform_query_length, settings.tensor_parallel_size
    common, larger = math.lcm(query_length, parallel), max(query_length, parallel)
    rule = settings.release.rules.sharded_decode_sizes
    if rule == "round" and (settings.sequence_parallel or settings.dsa_context_parallel):
        return common
    if query_length == 1 or parallel == 1 or not settings.sequence_parallel:
        return query_length
    if common == larger:
        return larger
    if rule == "accept" and all(size % common == 0 for size in sizes):
        return query_length
    raise HostFailure(
        f"no capture size is a multiple of the query length {query_length} and of the tensor-parallel size {parallel}"
    )
