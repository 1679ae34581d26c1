"""Why a batch is split or not, as one closed vocabulary."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """A planner's reason. Each member equals its string, prints as it and serialises as it."""

    # Prechecks of the published planner, in the order in which they are tested.
    MODE_DISABLED = "mode_disabled"
    NON_UNIFORM_DECODE = "non_uniform_decode"
    GRAPH_MODE_NOT_SUPPORTED = "graph_mode_not_supported"
    SPECULATIVE_DECODE_CONFLICT = "speculative_decode_conflict"
    LORA_CONFLICT = "lora_conflict"
    MLA_CONFLICT = "mla_conflict"
    MROPE_CONFLICT = "mrope_conflict"
    BATCH_TOO_SMALL = "batch_too_small"

    # Outcomes of a plan. The N-way plan shares `exact_graph_hit`, `no_capture_sizes`, `exceeds_max_size` and `split`.
    NO_CAPTURE_SIZES = "no_capture_sizes"
    EXACT_GRAPH_HIT = "exact_graph_hit"
    NO_MAIN_CAPTURE = "no_main_capture"
    EMPTY_PARALLEL_SLICE = "empty_parallel_slice"
    NO_PARALLEL_CAPTURE = "no_parallel_capture"
    EXCEEDS_MAX_SIZE = "exceeds_max_size"
    THRESHOLD_NOT_MET = "threshold_not_met"
    SPLIT = "split"

    # Outcomes of the N-way plan alone.
    SINGLE_GRAPH_CHEAPEST = "single_graph_cheapest"
    NO_REQUESTS = "no_requests"
    BATCH_ABOVE_TABLE = "batch_above_table"

    # Formatting a member of a str enum differs between Python releases; the published planner returns plain strings.
    def __str__(self) -> str:
        return self.value

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)
