"""The host releases whose padding is modelled, and the rules in which they differ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class HostFailure(RuntimeError):
    """The host stops here: it raises, where the model cannot go on either."""


@dataclass(frozen=True)
class PaddingRules:
    """What a release does differently from others.

    Attributes:
        computed_tokens_need_speculation: only with speculative decoding must a decode batch have computed tokens;
            without it the first step of one-token prompts counts as a decode batch.
        whole_prompt_under_dcp: with decode context parallelism a decode batch has its whole prompts computed.
        whole_prompt_of_hybrids: the same for hybrid (Mamba and attention) models.
        shards_tokens_by_pass: the sequence-parallel compiler pass rounds tokens; else DSA context parallelism does.
        aligns_for_any_sharding: capture sizes are cut to multiples of the tensor-parallel size for shared-expert data
            parallelism and DSA context parallelism too, not for sequence parallelism alone.
        captures_default_maximum: the default largest capture size is captured although it lies off the grid.
        samples_reduced_ladders: hardware with few graphs gets at most four capture sizes in piecewise modes.
        sharded_decode_sizes: full decode graphs whose tokens are sharded, where neither of query length and
            tensor-parallel size is a multiple of the other: "refuse"; "accept" capture sizes that all are common
            multiples; or "round" to common multiples (for any query length, and for DSA context parallelism too).
        pads_by_own_mode: a data-parallel rank decides by its own mode before the agreement whether all ranks pad to the
            largest; else by the agreed mode.
        skips_by_prefill_alone: a decode instance whose prefill communicates by MC2 too skips the agreement even where
            decode batches have graphs of their own.
        mega_moe: whether one-kernel MoE communication exists, and where it is tested: "absent", "consumer" or "first".
    """

    computed_tokens_need_speculation: bool
    whole_prompt_under_dcp: bool
    whole_prompt_of_hybrids: bool
    shards_tokens_by_pass: bool
    aligns_for_any_sharding: bool
    captures_default_maximum: bool
    samples_reduced_ladders: bool
    sharded_decode_sizes: str
    pads_by_own_mode: bool
    skips_by_prefill_alone: bool
    mega_moe: str


def _before_0_27(*, skips_by_prefill_alone: bool, mega_moe: str) -> PaddingRules:
    return PaddingRules(
        computed_tokens_need_speculation=True,
        whole_prompt_under_dcp=False,
        whole_prompt_of_hybrids=False,
        shards_tokens_by_pass=True,
        aligns_for_any_sharding=False,
        captures_default_maximum=False,
        samples_reduced_ladders=True,
        sharded_decode_sizes="refuse",
        pads_by_own_mode=True,
        skips_by_prefill_alone=skips_by_prefill_alone,
        mega_moe=mega_moe,
    )


def _since_0_27(*, is_0_30: bool) -> PaddingRules:
    return PaddingRules(
        computed_tokens_need_speculation=False,
        whole_prompt_under_dcp=True,
        whole_prompt_of_hybrids=is_0_30,
        shards_tokens_by_pass=False,
        aligns_for_any_sharding=True,
        captures_default_maximum=is_0_30,
        samples_reduced_ladders=not is_0_30,
        sharded_decode_sizes="round" if is_0_30 else "accept",
        pads_by_own_mode=not is_0_30,
        skips_by_prefill_alone=False,
        mega_moe="first" if is_0_30 else "consumer",
    )


class HostRelease(Enum):
    """A vllm-ascend release line, with the vLLM of the same number."""

    V0_23 = "0.23"
    V0_25_1 = "0.25.1"
    V0_26 = "0.26"
    V0_27_1 = "0.27.1"
    V0_30 = "0.30"

    @property
    def rules(self) -> PaddingRules:
        """What this release does differently from others."""
        return _RULES[self]

    @classmethod
    def of(cls, version: str) -> HostRelease:
        """The release line of a vllm-ascend version such as "0.27.1rc1".

        Raises:
            ValueError: the version belongs to no modelled line.
        """
        numbers = re.match(r"\d+\.\d+(\.\d+)?", version)
        for release in cls:
            line = release.value if release.value.count(".") == 2 else f"{release.value}.0"
            if numbers and numbers[0] in (release.value, line):
                return release
        modelled = ", ".join(release.value for release in cls)
        raise ValueError(f"padding of vllm-ascend {version} is not modelled; modelled are {modelled}")


_RULES = {
    HostRelease.V0_23: _before_0_27(skips_by_prefill_alone=True, mega_moe="absent"),
    HostRelease.V0_25_1: _before_0_27(skips_by_prefill_alone=False, mega_moe="absent"),
    HostRelease.V0_26: _before_0_27(skips_by_prefill_alone=False, mega_moe="consumer"),
    HostRelease.V0_27_1: _since_0_27(is_0_30=False),
    HostRelease.V0_30: _since_0_27(is_0_30=True),
}
