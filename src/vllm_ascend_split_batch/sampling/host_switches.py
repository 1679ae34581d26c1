"""The host's switches under which its own sampling chain must run, read once per sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .routes import HostSwitches

PROCESSED = ("processed_logits", "processed_logprobs")


def read(sampler: Any, get_config: Callable[[], Any], batch_invariant: Callable[[], Any]) -> HostSwitches:
    """The switches that hold for a sampler.

    A switch that a release does not have is off: the feature is not there. A configuration that cannot be read at all
    counts as every switch on, so that the host's chain runs.
    """
    try:
        config = get_config()
        reduce_sample = bool(getattr(config, "enable_reduce_sample", False))
        async_exponential = bool(getattr(config, "enable_async_exponential", False))
        invariant = bool(batch_invariant())
    except Exception:
        reduce_sample = async_exponential = invariant = True
    return HostSwitches(
        processed_logprobs=getattr(sampler, "logprobs_mode", PROCESSED[0]) in PROCESSED,
        batch_invariant=invariant,
        reduce_sample=reduce_sample,
        async_exponential=async_exponential,
    )
