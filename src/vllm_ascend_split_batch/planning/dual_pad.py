"""The published dual-pad planner: the largest graph that fills, and a second graph for what is left.

Its behaviour, reasons and the order of its tests are an interface that callers rely on, oddities included: one integer
is both a number of requests and a number of tokens, an empty parallel ladder means the main one, and a batch above the
largest capture size is refused. `vllm_ascend_split_batch.planning.split` is the planner without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_ascend_split_batch.planning.ladder import Ladder
from vllm_ascend_split_batch.planning.reasons import Reason

_MODES = ("dual_pad", "dual_inplace")
_GRAPH_MODES = ("full", "piecewise")


@dataclass(frozen=True)
class SplitBatchConfig:
    """What the user asks of the dual-pad planner.

    Attributes:
        enabled: off until asked for.
        mode: "dual_pad"; "dual_inplace" is a known mode that no plan serves yet.
        min_batch_size_for_split: smallest number of requests worth a look, at least 2.
        padding_saved_threshold: a split must save more padding rows than this, at least 0.
        force_split: split wherever two slices are possible, whether or not padding rows are saved.

    Raises:
        ValueError: an unknown mode, or a threshold below its minimum.
    """

    enabled: bool = False
    mode: str = "dual_pad"
    min_batch_size_for_split: int = 2
    padding_saved_threshold: int = 0
    force_split: bool = False

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}, got {self.mode!r}")
        if self.min_batch_size_for_split < 2:
            raise ValueError(f"min_batch_size_for_split must be at least 2, got {self.min_batch_size_for_split}")
        if self.padding_saved_threshold < 0:
            raise ValueError(f"padding_saved_threshold must not be negative, got {self.padding_saved_threshold}")


@dataclass(frozen=True)
class SplitSlice:
    """One slice of a batch: half-open ranges of requests and of tokens, and the capture size it is padded to."""

    request_start: int
    request_stop: int
    token_start: int
    token_stop: int
    padded_tokens: int


@dataclass(frozen=True)
class DualPadPlan:
    """Two slices instead of one padded batch. `padding_saved` counts padding rows and may be negative when forced."""

    total_tokens: int
    padded_without_split: int
    padding_saved: int
    slices: tuple[SplitSlice, SplitSlice]


def precheck_reason(
    config: SplitBatchConfig,
    *,
    num_requests: int,
    graph_mode: str,
    uniform_decode: bool,
    has_lora: bool,
    is_mla: bool,
    is_mrope: bool,
    speculative_decode: bool,
) -> Reason | None:
    """The first reason why this step must not be split, or None. The order of the tests is part of the interface."""
    if not config.enabled or config.mode != "dual_pad":
        return Reason.MODE_DISABLED
    if not uniform_decode:
        return Reason.NON_UNIFORM_DECODE
    if graph_mode not in _GRAPH_MODES:
        return Reason.GRAPH_MODE_NOT_SUPPORTED
    if speculative_decode:
        return Reason.SPECULATIVE_DECODE_CONFLICT
    if has_lora:
        return Reason.LORA_CONFLICT
    if is_mla:
        return Reason.MLA_CONFLICT
    if is_mrope:
        return Reason.MROPE_CONFLICT
    if num_requests < config.min_batch_size_for_split:
        return Reason.BATCH_TOO_SMALL
    return None


def plan_dual_pad(
    *,
    num_requests: int,
    total_tokens: int,
    main_capture_sizes: Iterable[int],
    parallel_capture_sizes: Iterable[int] | None = None,
    padding_saved_threshold: int = 0,
    force_split: bool = False,
) -> tuple[DualPadPlan | None, Reason]:
    """Two slices for a decode batch of one token per request, where that saves padding rows.

    The first slice fills the largest main capture size that the batch reaches; the second takes the rest, padded to the
    smallest parallel capture size that holds it.

    Args:
        num_requests: requests in the batch.
        total_tokens: tokens in the batch; the plan is right only where each request has one token.
        main_capture_sizes: capture sizes of the first slice, tokens.
        parallel_capture_sizes: capture sizes of the second slice; None or an empty one means the main ones.
        padding_saved_threshold: padding rows to be saved must exceed this (a tie does not split).
        force_split: skip that test, and split an exact graph hit too.

    Returns:
        The plan and `split`, or None and the first reason that applies.

    Raises:
        ValueError: a capture size is not positive.

    >>> plan, reason = plan_dual_pad(num_requests=33, total_tokens=33, main_capture_sizes=(1, 2, 4, 8, 16, 32, 64))
    >>> plan.padding_saved, [piece.padded_tokens for piece in plan.slices], str(reason)
    (31, [32, 1], 'split')
    """
    main_sizes = tuple(main_capture_sizes)
    if num_requests <= 0 or total_tokens <= 0 or not main_sizes:
        return None, Reason.NO_CAPTURE_SIZES
    main_ladder = Ladder(main_sizes)
    parallel_ladder = Ladder(parallel_capture_sizes or ()) or main_ladder

    main = main_ladder.at_most(total_tokens)
    if main == total_tokens:
        smaller = main_ladder.below(main)
        if not force_split or smaller is None:
            return None, Reason.EXACT_GRAPH_HIT
        main = smaller
    if main is None:
        return None, Reason.NO_MAIN_CAPTURE
    second = total_tokens - main
    if second <= 0 or main >= num_requests:
        return None, Reason.EMPTY_PARALLEL_SLICE
    second_padded = parallel_ladder.at_least(second)
    if second_padded is None:
        return None, Reason.NO_PARALLEL_CAPTURE
    padded_without_split = main_ladder.at_least(total_tokens)
    if padded_without_split is None:
        return None, Reason.EXCEEDS_MAX_SIZE
    saved = (padded_without_split - total_tokens) - (second_padded - second)
    if not force_split and saved <= padding_saved_threshold:
        return None, Reason.THRESHOLD_NOT_MET
    plan = DualPadPlan(
        total_tokens=total_tokens,
        padded_without_split=padded_without_split,
        padding_saved=saved,
        slices=(
            SplitSlice(0, main, 0, main, main),
            SplitSlice(main, num_requests, main, total_tokens, second_padded),
        ),
    )
    return plan, Reason.SPLIT
