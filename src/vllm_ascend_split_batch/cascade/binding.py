"""Where cascade meets the host: one decision a step, one plan a group, two stages a layer.

The runner asks once a step what its requests share. The answer travels through the host's own `common_prefix_len` to
the metadata builder, which hangs the step's plan on the metadata, where every layer finds it. All state is per runner
or per step, none per process.
"""

from __future__ import annotations

import weakref
from typing import Any

from vllm_ascend_split_batch.carrier import Context, Patch, Refused
from vllm_ascend_split_batch.carrier.guard import NATIVE
from vllm_ascend_split_batch.cascade_plugin import BUILD, FORWARD, PREFIX_LENS
from vllm_ascend_split_batch.host_step import read_block_rows, read_step

from . import step_plan
from .admission import EngineTraits, Refusal, prefix_refusal, static_refusal, step_refusal
from .engine_traits import read_traits
from .kernel_wheel import KernelWheel, probe
from .shared_prefix import shared_prefix_tokens
from .two_stage import Heads, attend


def patches(context: Context) -> list[Patch]:
    """The carrier's three patches.

    Raises:
        Refused: the user asked for stock results, or the kernel wheel is not usable.
    """
    settings = context.settings
    if settings["VLLM_ASCEND_CASCADE_STRICT"]:
        raise Refused("VLLM_ASCEND_CASCADE_STRICT keeps stock results bit for bit, so cascade stays out")
    wheel = probe(settings["VLLM_ASCEND_CASCADE_KERNEL_FINGERPRINT"])
    if not wheel.usable:
        raise Refused(wheel.detail)
    context.log.info("cascade-attention: kernel wheel %s", wheel.detail)
    cascade = _Cascade(context, wheel)
    guard = context.guard
    return [
        context.patch(PREFIX_LENS, guard.site("step decision", counted=False).around(cascade.decide)),
        context.patch(BUILD, cascade.attach_to(guard.site("step plan", counted=False))),
        context.patch(FORWARD, guard.site("layer attention", counted=False).around(cascade.attend)),
    ]


class _Cascade:
    """The bodies of the patches. They return NATIVE, or raise, wherever the host's own function is to run."""

    def __init__(self, context: Context, wheel: KernelWheel) -> None:
        import torch
        from vllm_ascend.attention import attention_v1

        settings = context.settings
        self._guard = context.guard
        self._log = context.log
        self._ops = torch.ops.npu
        self._builder_type: type = attention_v1.AscendAttentionMetadataBuilder
        self._impl_type: type = attention_v1.AscendAttentionBackendImpl
        self._limits_apply = wheel.limits_apply
        self._fp32_prefix: bool = settings["VLLM_ASCEND_CASCADE_PRECISION"] == "fp32"
        self._min_prefix: int = settings["VLLM_ASCEND_CASCADE_MIN_PREFIX"]
        self._min_requests: int = settings["VLLM_ASCEND_CASCADE_MIN_REQS"]
        self._trace: bool = settings["VLLM_ASCEND_CASCADE_TRACE"]
        self._traits: weakref.WeakKeyDictionary[Any, dict[tuple[int, int], Refusal | None]] = (
            weakref.WeakKeyDictionary()
        )
        self._announced = False

    # One decision a step ------------------------------------------------------------------------------------------

    def decide(self, runner: Any, num_scheduled_tokens: Any, num_computed_tokens: Any, *_: Any, **__: Any) -> Any:
        """The shared prefix per KV-cache group and attention group, in tokens, where the step is to run two-stage."""
        guard = self._guard
        guard.calls += 1
        step = read_step(runner, num_scheduled_tokens, num_computed_tokens)
        refusal = step_refusal(
            decode_only=step.decode_only, requests=step.num_requests, min_requests=self._min_requests
        )
        if refusal is not None:
            return guard.decline(refusal.value)
        lengths: list[list[int]] = []
        first_refusal: Refusal | None = None
        for cache_group, attention_groups in enumerate(runner.attn_groups):
            lengths.append([])
            prefix: int | None = None
            for index, group in enumerate(attention_groups):
                refusal = self._static_refusal(runner, (cache_group, index), group)
                if refusal is None:
                    if prefix is None:
                        rows = read_block_rows(runner, cache_group, step.num_requests)
                        prefix = shared_prefix_tokens(rows.ids, rows.used, rows.block_size, step.computed_tokens)
                    refusal = prefix_refusal(prefix, self._min_prefix)
                lengths[-1].append(prefix if refusal is None and prefix else 0)
                first_refusal = first_refusal or refusal
        if not any(map(any, lengths)):
            return guard.decline((first_refusal or Refusal.NO_SHARED_PREFIX).value)
        return lengths

    def _static_refusal(self, runner: Any, key: tuple[int, int], group: Any) -> Refusal | None:
        known = self._traits.setdefault(runner, {})
        if key not in known:
            traits: EngineTraits = read_traits(
                runner,
                group,
                table_block_size=int(runner.input_batch.block_table[key[0]].block_size),
                builder_type=self._builder_type,
                impl_type=self._impl_type,
                fp32_prefix=self._fp32_prefix,
                limits_apply=self._limits_apply,
            )
            refusal = known[key] = static_refusal(traits)
            if refusal is not None:
                detail = f" ({traits.beyond_device_limits})" if refusal is Refusal.DEVICE_LIMITS else ""
                self._log.warning(
                    "cascade-attention: never two-stage in this engine's attention group %s: %s%s",
                    key,
                    refusal.value,
                    detail,
                )
        return known[key]

    # One plan a group and step ------------------------------------------------------------------------------------

    def attach_to(self, site: Any) -> Any:
        """A patch factory: the host builds its metadata, then the plan is made from it and attached.

        The host's builder runs first and outside of the guard: a failure of ours must not build the metadata twice.
        """

        def factory(native: Any) -> Any:
            def build(
                builder: Any, common_prefix_len: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any
            ) -> Any:
                metadata = native(builder, common_prefix_len, common_attn_metadata, *args, **kwargs)
                if common_prefix_len:
                    site.run(self._attach, _nothing, builder, common_prefix_len, common_attn_metadata, metadata)
                return metadata

            return build

        return factory

    def _attach(self, builder: Any, common_prefix_len: int, common_attn_metadata: Any, metadata: Any) -> Any:
        kind: type = type(builder)
        if kind is not self._builder_type:
            return self._guard.decline(Refusal.ATTENTION_BACKEND.value)
        if not metadata.causal:
            return self._guard.decline(Refusal.NOT_CAUSAL.value)
        plan = step_plan.make_plan(
            metadata,
            prefix_tokens=int(common_prefix_len),
            block_size=builder.kv_cache_spec.block_size,
            requests=int(common_attn_metadata.num_actual_tokens),
        )
        setattr(metadata, step_plan.ATTRIBUTE, plan)
        return None

    # Two stages a layer -------------------------------------------------------------------------------------------

    def attend(
        self, layer: Any, query: Any, key: Any, value: Any, attn_metadata: Any, output: Any, *_: Any, **__: Any
    ) -> Any:
        """A layer's decode attention, written into `output`; NATIVE where the step has no plan."""
        plan: step_plan.StepPlan | None = getattr(attn_metadata, step_plan.ATTRIBUTE, None)
        kind: type = type(layer)
        if plan is None or kind is not self._impl_type:
            return NATIVE
        merged = attend(
            self._ops,
            query[: plan.rows],
            layer.key_cache,
            layer.value_cache,
            plan,
            Heads(layer.num_heads, layer.num_kv_heads, layer.head_size, layer.scale),
            causal_mask=attn_metadata.attn_mask,
            fp32_prefix=self._fp32_prefix,
        )
        output[: plan.rows] = merged
        if plan.layers_done == 1:
            self._count_step(plan)
        return output

    def _count_step(self, plan: step_plan.StepPlan) -> None:
        guard = self._guard
        guard.engaged += 1
        guard.count("prefix_tokens", plan.prefix_tokens)
        guard.count("requests", plan.rows)
        if not self._announced:
            self._announced = True
            self._log.info(
                "cascade-attention: first two-stage step (%d requests share %d tokens); results equal stock's up to "
                "the rounding of the model's type",
                plan.rows,
                plan.prefix_tokens,
            )
        if self._trace:
            self._log.info(
                "[cas-trace] requests=%d shared_len=%d suffix=%d..%d",
                plan.rows,
                plan.prefix_tokens,
                min(plan.suffix_lengths),
                max(plan.suffix_lengths),
            )


def _nothing(*_: Any) -> None:
    """What stands in for an attached plan that could not be made: no plan, so every layer runs the host's attention."""
