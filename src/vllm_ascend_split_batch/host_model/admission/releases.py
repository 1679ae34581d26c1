"""What the host releases do differently in admission and recovery."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_ascend_split_batch.host_model.padding.releases import HostRelease


@dataclass(frozen=True)
class AdmissionRules:
    """What a release does differently from others.

    Attributes:
        has_policies: ShortRequestFirst and BatchJobAware exist.
        has_load_balancing: DyntraLB exists.
        has_watermark: a share of blocks can be kept free at admission.
        unhashed_first: partly filled blocks that become free are reused before all others.
        recompute_by_priority: the recompute scheduler chooses its victim by the scheduling policy; else always the
            request admitted last.
        recomputed_leave: a request finished for recomputation leaves the scheduler; else its blocks are freed, but the
            scheduler goes on to count it.
    """

    has_policies: bool
    has_load_balancing: bool
    has_watermark: bool
    unhashed_first: bool
    recompute_by_priority: bool
    recomputed_leave: bool


_RULES = {
    HostRelease.V0_23: AdmissionRules(False, False, False, False, False, False),
    HostRelease.V0_25_1: AdmissionRules(True, False, True, True, False, True),
    HostRelease.V0_26: AdmissionRules(True, False, True, True, False, True),
    HostRelease.V0_27_1: AdmissionRules(True, True, True, True, True, True),
    HostRelease.V0_30: AdmissionRules(True, True, True, True, True, True),
}


def admission_rules(release: HostRelease) -> AdmissionRules:
    """What this release does differently from others."""
    return _RULES[release]
