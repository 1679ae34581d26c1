"""Which steps may run two-stage. Every refusal has a name that is counted.

The rules come in two groups. `static_refusal` looks at what an engine's configuration fixes for good; `step_refusal`
at one step. Both return the first reason that applies, or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Refusal(str, Enum):
    """Why a step runs the host's own attention. The values are the names in the engine report."""

    SPECULATIVE_DECODING = "speculative_decoding"
    MICROBATCHING = "microbatching"
    CONTEXT_PARALLEL = "context_parallel"
    MLA = "mla"
    ALIBI = "alibi"
    ATTENTION_BACKEND = "attention_backend"
    SINKS = "attention_sinks"
    QUANTISED_KV = "quantised_kv"
    SLIDING_WINDOW = "sliding_window"
    LOCAL_ATTENTION = "local_attention"
    SPLIT_BLOCKS = "split_blocks"
    DEVICE_LIMITS = "device_limits"
    #: No kernel tier is left that passes its self-test and, where it is chosen automatically, has a profile.
    NO_KERNELS = "no_kernels"
    #: The kernels failed their self-test in front of this step.
    SELF_TEST = "self_test"
    NOT_DECODE = "not_decode"
    BELOW_MIN_REQS = "below_min_reqs"
    NO_SHARED_PREFIX = "no_shared_prefix"
    BELOW_MIN_PREFIX = "below_min_prefix"
    #: Decode steps replay captured graphs, and there is no graph twin.
    GRAPH_MODE = "graph_mode"
    # Seen only in the step's metadata; the step was admitted before.
    NOT_CAUSAL = "not_causal"


@dataclass(frozen=True)
class EngineTraits:
    """What an engine's configuration says, once and for all, about one attention group.

    Attributes:
        speculative: speculative decoding is configured (even where a step happens to carry single rows).
        microbatching: the core may split a batch into microbatches.
        context_parallel: decode or prefill context parallelism of more than one rank.
        mla: multi-head latent attention.
        alibi: position bias by ALiBi.
        stock_backend: the group is served by the host's plain grouped-query attention, not by a subclass.
        sinks: a layer adds attention sinks to its softmax.
        quantised_kv: the KV cache is stored in less than 16 bits.
        sliding_window, local_attention: a layer sees only part of its prefix.
        split_blocks: the device's pages are smaller than the blocks the cache manager hands out (hybrid models).
        beyond_device_limits: None, or what the kernels of this device cannot do with this model.
    """

    speculative: bool = False
    microbatching: bool = False
    context_parallel: bool = False
    mla: bool = False
    alibi: bool = False
    stock_backend: bool = True
    sinks: bool = False
    quantised_kv: bool = False
    sliding_window: bool = False
    local_attention: bool = False
    split_blocks: bool = False
    beyond_device_limits: str | None = None


def static_refusal(traits: EngineTraits) -> Refusal | None:
    """The first reason for which this engine can never run two-stage, or None."""
    rules = (
        (traits.speculative, Refusal.SPECULATIVE_DECODING),
        (traits.microbatching, Refusal.MICROBATCHING),
        (traits.context_parallel, Refusal.CONTEXT_PARALLEL),
        (traits.mla, Refusal.MLA),
        (not traits.stock_backend, Refusal.ATTENTION_BACKEND),
        (traits.alibi, Refusal.ALIBI),
        (traits.sinks, Refusal.SINKS),
        (traits.quantised_kv, Refusal.QUANTISED_KV),
        (traits.sliding_window, Refusal.SLIDING_WINDOW),
        (traits.local_attention, Refusal.LOCAL_ATTENTION),
        (traits.split_blocks, Refusal.SPLIT_BLOCKS),
        (traits.beyond_device_limits is not None, Refusal.DEVICE_LIMITS),
    )
    return next((reason for applies, reason in rules if applies), None)


def step_refusal(*, decode_only: bool, requests: int, min_requests: int) -> Refusal | None:
    """The first reason against this step that can be had without looking at its blocks, or None."""
    if not decode_only:
        return Refusal.NOT_DECODE
    if requests < min_requests:
        return Refusal.BELOW_MIN_REQS
    return None


def prefix_refusal(prefix_tokens: int, min_prefix: int) -> Refusal | None:
    """The reason against a step that shares `prefix_tokens` tokens, or None."""
    if prefix_tokens <= 0:
        return Refusal.NO_SHARED_PREFIX
    if prefix_tokens < min_prefix:
        return Refusal.BELOW_MIN_PREFIX
    return None
