"""What the host releases do differently in admission and recovery."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vllm_ascend_split_batch.host_model.padding.releases import HostRelease


@dataclass(frozen=True)
class AdmissionRules:
    """What a release does differently from others.

    Attributes:
        has_policies: ShortRequestFirst and BatchJobAware exist.
        has_load_balancing: DyntraLB exists.
        has_watermark: a share of blocks can be kept free at admission.
        defers_frees: with asynchronous scheduling, a KV consumer's blocks that a step under way may still write become
            free only when that step has ended.
        waits_for_frees: nobody loses its place for blocks that would become free only later; the step ends there.
        unhashed_first: partly filled blocks that become free are reused before all others.
        passes_over_next: under "priority" a victim that was itself passed over in this step makes the plain scheduler
            pass over the request after the one it serves.
        recompute_by_priority: the recompute scheduler chooses its victim by the scheduling policy; else always the
            request admitted last.
        recompute_aborts_split: where output projection or MLP have a tensor-parallel size of their own, a request that
            cannot be saved is aborted instead of finished for recomputation.
        recomputed_answers: the output under way of a request finished for recomputation is reported after that.
        recompute_reserves: the recompute scheduler, as the plain one, keeps a load from taking the blocks that requests
            under way will need.
    """

    has_policies: bool
    has_load_balancing: bool
    has_watermark: bool
    defers_frees: bool
    waits_for_frees: bool
    unhashed_first: bool
    passes_over_next: bool
    recompute_by_priority: bool
    recomputed_answers: bool
    recompute_reserves: bool
    recompute_aborts_split: bool


_V0_25_1 = AdmissionRules(
    has_policies=True,
    has_load_balancing=False,
    has_watermark=True,
    defers_frees=True,
    waits_for_frees=False,
    unhashed_first=True,
    passes_over_next=True,
    recompute_by_priority=False,
    recomputed_answers=False,
    recompute_reserves=True,
    recompute_aborts_split=False,
)
_V0_27_1 = replace(_V0_25_1, has_load_balancing=True, recompute_by_priority=True)

_RULES = {
    HostRelease.V0_23: replace(
        _V0_25_1,
        has_policies=False,
        has_watermark=False,
        defers_frees=False,
        unhashed_first=False,
        recomputed_answers=True,
        recompute_reserves=False,
    ),
    HostRelease.V0_25_1: _V0_25_1,
    HostRelease.V0_26: _V0_25_1,
    HostRelease.V0_27_1: _V0_27_1,
    HostRelease.V0_30: replace(_V0_27_1, waits_for_frees=True, passes_over_next=False, recompute_aborts_split=True),
}


def admission_rules(release: HostRelease) -> AdmissionRules:
    """What this release does differently from others."""
    return _RULES[release]
