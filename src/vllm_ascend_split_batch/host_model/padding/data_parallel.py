"""What data-parallel ranks tell each other before a step, and what each makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_ascend_split_batch.host_model.padding.modes import RuntimeMode
from vllm_ascend_split_batch.host_model.padding.releases import HostRelease
from vllm_ascend_split_batch.host_model.padding.settings import HostSettings


@dataclass(frozen=True)
class RankChoice:
    """What one rank dispatched by itself: padded tokens and mode."""

    num_tokens: int
    mode: RuntimeMode


@dataclass(frozen=True)
class Agreement:
    """What one rank believes after the exchange.

    Attributes:
        tokens_across_ranks: padded tokens of every rank, as this rank believes.
        mode: the mode that this rank dispatches again with.
    """

    tokens_across_ranks: tuple[int, ...]
    mode: RuntimeMode


def never(num_tokens: int) -> bool:
    """For `agree`: no communication method needs as many tokens on every rank."""
    del num_tokens
    return False


def agree(
    settings: HostSettings,
    choices: Sequence[RankChoice],
    *,
    skipped: bool,
    needs_equal_tokens: Callable[[int], bool] = never,
) -> tuple[Agreement, ...]:
    """Each rank's view after the exchange.

    The agreed mode is the smallest. Whether a rank believes that all pad to the most tokens is, before 0.30, its own
    affair: a rank with a graph does, one without may not, and then they disagree on the shape of the step.

    Args:
        settings: the same on every rank.
        choices: one per rank.
        skipped: the exchange is left out (see `skips_agreement`); each rank takes itself for all.
        needs_equal_tokens: from 0.30 on, whether the expert-parallel communication method chosen for this many tokens
            needs as many on every rank.
    """
    if skipped:
        return tuple(Agreement((choice.num_tokens,) * len(choices), choice.mode) for choice in choices)
    mode = min(choice.mode for choice in choices)
    raw = tuple(choice.num_tokens for choice in choices)
    most = max(raw)
    views = []
    for choice in choices:
        if settings.release.rules.pads_by_own_mode:
            pads = (
                choice.mode is not RuntimeMode.NONE
                or settings.sequence_parallel
                or settings.finegrained_tensor_parallel
            )
        else:
            pads = mode is not RuntimeMode.NONE or settings.finegrained_tensor_parallel or needs_equal_tokens(most)
        views.append(Agreement((most,) * len(choices) if pads else raw, mode))
    return tuple(views)


def skips_agreement(
    release: HostRelease,
    *,
    is_moe: bool,
    is_kv_consumer: bool,
    decode_by_mc2: bool,
    prefill_by_mc2: bool,
    separates_decode: bool,
    recompute_scheduler: bool,
    hierarchical_mc2: bool = False,
    mega_moe: bool = False,
) -> bool:
    """Whether ranks leave the exchange out.

    Args:
        release: the host.
        is_moe: the model has experts. A dense one exchanges nothing.
        is_kv_consumer: a decode instance of a disaggregated deployment.
        decode_by_mc2: the largest decode batch communicates by MC2.
        prefill_by_mc2: a batch of `max_num_batched_tokens` does.
        separates_decode: decode batches have graphs of their own (`GraphMode.separates_decode`).
        recompute_scheduler: the recompute scheduler is on.
        hierarchical_mc2: MC2 communicates hierarchically and needs as many tokens on every rank.
        mega_moe: experts communicate by the one-kernel operator, which needs that too.
    """
    rules = release.rules
    if hierarchical_mc2 or (mega_moe and rules.mega_moe == "first"):
        return False
    if not is_moe:
        return True
    if not is_kv_consumer or (mega_moe and rules.mega_moe == "consumer"):
        return False
    prefill_suffices = prefill_by_mc2 and (rules.skips_by_prefill_alone or not separates_decode)
    return decode_by_mc2 and (prefill_suffices or recompute_scheduler)
