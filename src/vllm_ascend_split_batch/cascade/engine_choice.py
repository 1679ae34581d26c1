"""What is settled once for an engine: the kernel tier, which attention groups may ever run two-stage, their profiles.

It is settled when the engine's first step or its graph capture comes by: before that the device is not set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import self_test
from .admission import EngineTraits, Refusal, static_refusal
from .cost_model import AttentionShape
from .decision import Decision
from .engine_traits import read_traits
from .prediction import GroupPrediction, Profiles
from .profiles import Key, device_key, missing_reason
from .tiers import WHEEL, FusedTier, OwnTier
from .two_stage import Heads

EAGER, GRAPH = MODES = ("eager", "graph")
GroupKey = tuple[int, int]


@dataclass
class Group:
    """One attention group of an engine.

    Attributes:
        refusal: why it never runs two-stage, or None. detail: more of that, for the log.
        predictions: by mode, "eager" and "graph"; none where there is a refusal.
    """

    refusal: Refusal | None
    detail: str
    predictions: dict[str, GroupPrediction] = field(default_factory=dict)


@dataclass
class Candidate:
    """A kernel tier with what it means for this engine: its attention groups by (KV-cache group, attention group)."""

    tier: FusedTier | OwnTier
    groups: dict[GroupKey, Group]


class EngineChoice:
    """What was settled for one engine.

    The kernels are tested right before they are first needed, so an engine whose steps never qualify runs nothing that
    stock does not. A tier that fails its test gives way to the next one the user allows.

    Attributes:
        tier: how two-stage attention is computed; None when nothing is left. groups: its attention groups.
        reason: why nothing is left, in words. host_copies: copies to the host that tests took so far.
    """

    def __init__(self, candidates: list[Candidate], reasons: list[str], say: Callable[[str], None]) -> None:
        self._candidates = candidates
        self._reasons = reasons
        self._say = say
        self._tested = False
        self.host_copies = 0

    @property
    def tier(self) -> FusedTier | OwnTier | None:
        return self._candidates[0].tier if self._candidates else None

    @property
    def groups(self) -> dict[GroupKey, Group]:
        return self._candidates[0].groups if self._candidates else {}

    @property
    def reason(self) -> str:
        return "; ".join(self._reasons)

    def decide(self, key: GroupKey, mode: str, requests: int, prefix_tokens: int, computed_tokens: int) -> Decision:
        """Whether a step of the group that passes the thresholds is to run two-stage; see `GroupPrediction.decide`."""
        return self.groups[key].predictions[mode].decide(requests, prefix_tokens, computed_tokens)

    def never(self, mode: str) -> str | None:
        """Why no step in this mode can ever be predicted to win, if none of the groups' can."""
        reasons = [group.predictions[mode].never for group in self.groups.values() if group.predictions]
        return reasons[0] if reasons and all(reasons) else None

    def passed(self, runner: Any) -> bool:
        """Whether the tier passes its self-test, which runs when it is first asked for.

        After a failure the next tier, if there is one, stands in its place, untested.
        """
        if self._tested or self.tier is None:
            return self._tested
        problem = self._test(runner, self._candidates[0])
        if problem is None:
            self._tested = True
            return True
        failed = self._candidates.pop(0)
        self._reasons.append(f"{failed.tier.name}: {problem}")
        left = f"; next is {self.tier.name}" if self.tier is not None else "; never two-stage in this engine"
        self._say(f"cascade-attention: {self._reasons[-1]}{left}")
        return False

    def _test(self, runner: Any, candidate: Candidate) -> str | None:
        for key, group in attention_groups(runner):
            if candidate.groups[key].refusal is not None:
                continue
            spec, heads = group.kv_cache_spec, _heads(runner, group)
            try:
                outcome = self_test.run(candidate.tier, runner.device, spec.dtype, heads, int(spec.block_size))
            except Exception as error:
                return f"the self-test of the kernels failed: {type(error).__name__}: {error}"
            self.host_copies += outcome.host_copies
            if outcome.problem:
                return f"the self-test of the kernels failed: {outcome.problem}"
        return None


@dataclass(frozen=True)
class Wishes:
    """What the user asked for.

    Attributes:
        candidates: tiers to try, best first. need_profile: take only a tier that has a profile of this device.
        profiles: what decides above the thresholds.
    """

    candidates: Sequence[FusedTier | OwnTier]
    need_profile: bool
    profiles: Profiles


def settle(
    runner: Any, wishes: Wishes, builder_type: type, impl_type: type, say: Callable[[str], None]
) -> EngineChoice:
    """Judge an engine's attention groups for every tier the user allows.

    Args:
        runner: the host's `NPUModelRunner`, its device set and its attention groups built.
        builder_type, impl_type: the host's plain metadata builder and attention implementation.
        say: takes a sentence for the log.
    """
    reasons: list[str] = []
    candidates: list[Candidate] = []
    for tier in wishes.candidates:
        if wishes.need_profile and not any(wishes.profiles.find(_key(tier.name, mode)) for mode in MODES):
            reasons.append(missing_reason(_key(tier.name, EAGER)))
            continue
        groups = {
            key: _judge(runner, key, group, tier, wishes.profiles, builder_type, impl_type)
            for key, group in attention_groups(runner)
        }
        candidates.append(Candidate(tier, groups))
    return EngineChoice(candidates, reasons, say)


def attention_groups(runner: Any) -> Iterator[tuple[GroupKey, Any]]:
    """The runner's attention groups with their keys."""
    for cache_group, groups in enumerate(runner.attn_groups):
        for index, group in enumerate(groups):
            yield (cache_group, index), group


def _judge(
    runner: Any,
    key: GroupKey,
    group: Any,
    tier: FusedTier | OwnTier,
    known: Profiles,
    builder_type: type,
    impl_type: type,
) -> Group:
    traits: EngineTraits = read_traits(
        runner,
        group,
        table_block_size=int(runner.input_batch.block_table[key[0]].block_size),
        builder_type=builder_type,
        impl_type=impl_type,
        fp32_prefix=tier.fp32_prefix,
        limits_apply=tier.limits_apply,
        wheel=tier.name == WHEEL,
    )
    refusal = static_refusal(traits)
    if refusal is not None:
        return Group(refusal, traits.beyond_device_limits or "" if refusal is Refusal.DEVICE_LIMITS else "")
    heads, element_bytes = _heads(runner, group), int(group.kv_cache_spec.dtype.itemsize)
    layers = len(group.layer_names)
    shape = AttentionShape(heads.query, heads.kv, heads.size, element_bytes, layers)
    return Group(None, "", {mode: known.group(_key(tier.name, mode), shape) for mode in MODES})


def _heads(runner: Any, group: Any) -> Heads:
    layer = runner.vllm_config.compilation_config.static_forward_context[group.layer_names[0]].impl
    return Heads(int(layer.num_heads), int(layer.num_kv_heads), int(layer.head_size), float(layer.scale))


def _key(tier: str, mode: str) -> Key:
    import torch_npu

    return Key(device_key(torch_npu), tier, mode)
