"""Which way a sampling step goes. Pure: facts in, a route or the reason for the host's own chain out."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Route(enum.Enum):
    """How a step's tokens are drawn where the host's chain is not needed."""

    #: From the whole distribution; the name is that of FlashInfer's first interface, sampling_from_probs.
    API1 = "api1"
    #: Every row keeps its heaviest token alone.
    ARGMAX = "argmax"
    #: Top-k and top-p at once, by rejection.
    JOINT = "joint"


class HostChain(enum.Enum):
    """Why a step stays on the host's own chain; the values are the names in reports."""

    OUTSIDE_A_STEP = "outside_a_sampling_step"
    OTHER_SAMPLER = "other_sampler"
    SPECULATIVE_DECODING = "speculative_decoding"
    ROWS_DIFFER = "rows_differ"
    RANKS_DISAGREE = "ranks_disagree"
    # The five conditions under which only the host's chain is right.
    PER_REQUEST_GENERATORS = "per_request_generators"
    PROCESSED_LOGPROBS = "processed_logprobs_mode"
    BATCH_INVARIANT = "batch_invariant"
    REDUCE_SAMPLE = "reduce_sample"
    ASYNC_EXPONENTIAL = "async_exponential"
    # The host's chain is not slower here.
    TOP_K_ONLY = "top_k_only"
    TOP_P_ONLY = "top_p_only"
    SMALL_BATCH = "small_batch"
    SMALL_TOP_K = "small_top_k"
    K1_LEFT_TO_HOST = "k1_left_to_host"


@dataclass(frozen=True)
class HostSwitches:
    """What the host is set to. ``reduce_sample`` and ``async_exponential`` are off on a host that lacks them."""

    processed_logprobs: bool
    batch_invariant: bool
    reduce_sample: bool
    async_exponential: bool


@dataclass(frozen=True)
class Thresholds:
    """The carrier's settings that decide about routes."""

    joint_min_batch: int = 256
    joint_min_k: int = 32
    k1_argmax: bool = True
    seeded: bool = False


def forced_host_chain(switches: HostSwitches, *, generators: bool, seeded: bool) -> HostChain | None:
    """The first of the five conditions that hold, if one does."""
    if generators and not seeded:
        return HostChain.PER_REQUEST_GENERATORS
    if switches.processed_logprobs:
        return HostChain.PROCESSED_LOGPROBS
    if switches.batch_invariant:
        return HostChain.BATCH_INVARIANT
    if switches.reduce_sample:
        return HostChain.REDUCE_SAMPLE
    if switches.async_exponential:
        return HostChain.ASYNC_EXPONENTIAL
    return None


def choose(rows: int, top_k: tuple[int, int] | None, has_top_p: bool, thresholds: Thresholds) -> Route | HostChain:
    """The route of a step to which none of the five conditions applies.

    Args:
        rows: rows of the batch.
        top_k: the least and the largest top-k of any row; ``None`` where no row has one.
        has_top_p: whether any row has a top-p.
    """
    if top_k is None:
        return HostChain.TOP_P_ONLY if has_top_p else Route.API1
    least, largest = top_k
    if least == largest == 1:
        return Route.ARGMAX if thresholds.k1_argmax else HostChain.K1_LEFT_TO_HOST
    if not has_top_p:
        return HostChain.TOP_K_ONLY
    if rows < thresholds.joint_min_batch:
        return HostChain.SMALL_BATCH
    if least < thresholds.joint_min_k:
        return HostChain.SMALL_TOP_K
    return Route.JOINT
