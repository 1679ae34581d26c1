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
from .admitted import AdmittedStep, Lane, SharedPrefix
from .engine_traits import read_traits
from .kernel_wheel import KernelWheel, probe
from .shared_prefix import shared_prefix_tokens
from .two_stage import OUT_AS_FIRST, Heads, attend


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
    cascade = Cascade(context, wheel)
    _remember(cascade)
    guard = context.guard
    return [
        context.patch(PREFIX_LENS, guard.site("step decision", counted=False).around(cascade.decide)),
        context.patch(BUILD, cascade.attach_to(guard.site("step plan", counted=False))),
        context.patch(FORWARD, guard.site("layer attention", counted=False).around(cascade.attend)),
    ]


_installed: weakref.ref[Cascade] | None = None


def _remember(cascade: Cascade) -> None:
    global _installed
    _installed = weakref.ref(cascade)


def installed() -> Cascade | None:
    """What was bound last in this process and is still in place; graph twins build on it."""
    return _installed() if _installed is not None else None


class Cascade:
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
        self._admitted: weakref.WeakKeyDictionary[Any, AdmittedStep] = weakref.WeakKeyDictionary()
        self._graphs: Any = None
        self._graph_mode_said = False
        self._announced = False

    # What graph twins ask for --------------------------------------------------------------------------------------

    @property
    def min_requests(self) -> int:
        return self._min_requests

    def serve_graphs(self, graphs: Any) -> None:
        """From now on steps may run in the twins of `graphs` (a `GraphTwins`); None: no longer."""
        self._graphs = graphs

    def admitted(self, runner: Any) -> AdmittedStep | None:
        """The step that `runner` is preparing, if it was admitted."""
        return self._admitted.get(runner)

    def forget(self, runner: Any) -> None:
        """The step is over."""
        self._admitted.pop(runner, None)

    def reason_against(self, runner: Any) -> str | None:
        """Why no step of this engine can run in a twin, in words; None where steps can."""
        if self._fp32_prefix:
            return "VLLM_ASCEND_CASCADE_PRECISION=fp32: the device cannot capture fa_fp32_stage1"
        for cache_group, attention_groups in enumerate(runner.attn_groups):
            for index, group in enumerate(attention_groups):
                refusal = self._static_refusal(runner, (cache_group, index), group)
                if refusal is not None:
                    return f"attention group {(cache_group, index)} never runs two-stage: {refusal.value}"
        return None

    def layers(self, runner: Any) -> int:
        """Attention layers of the runner's model."""
        return sum(len(group.layer_names) for groups in runner.attn_groups for group in groups)

    def block_sizes(self, runner: Any) -> list[int]:
        """Tokens per block of each attention group."""
        return [int(group.kv_cache_spec.block_size) for groups in runner.attn_groups for group in groups]

    def merge(self, prefix_out: Any, suffix_out: Any, prefix_lse: Any, suffix_lse: Any) -> Any:
        """Two partial results merged: [T, H, D] of the prefix result's type."""
        return self._ops.lse_merge(prefix_out, suffix_out, prefix_lse, suffix_lse, OUT_AS_FIRST)

    # One decision a step ------------------------------------------------------------------------------------------

    def decide(self, runner: Any, num_scheduled_tokens: Any, num_computed_tokens: Any, *_: Any, **__: Any) -> Any:
        """The shared prefix per KV-cache group and attention group, in tokens, where the step is to run two-stage."""
        guard = self._guard
        guard.calls += 1
        self._admitted.pop(runner, None)
        step = read_step(runner, num_scheduled_tokens, num_computed_tokens)
        refusal = step_refusal(
            decode_only=step.decode_only, requests=step.num_requests, min_requests=self._min_requests
        )
        if refusal is not None:
            return guard.decline(refusal.value)
        if self._full_graph_only(runner):
            return guard.decline(Refusal.GRAPH_MODE.value)
        lengths: list[list[int]] = []
        first_refusal: Refusal | None = None
        admitted = AdmittedStep(step.num_requests)
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
                if refusal is None and prefix:
                    blocks = rows.ids[0, : prefix // rows.block_size].copy()
                    lengths[-1].append(SharedPrefix.of(prefix, admitted, blocks))
                else:
                    lengths[-1].append(0)
                first_refusal = first_refusal or refusal
        if not any(map(any, lengths)):
            return guard.decline((first_refusal or Refusal.NO_SHARED_PREFIX).value)
        self._admitted[runner] = admitted
        return lengths

    def _full_graph_only(self, runner: Any) -> bool:
        """Whether decode steps replay the host's full graphs and there is no twin to take their place.

        Taking such a step out of its graph costs more than two-stage attention gains.
        """
        mode = runner.compilation_config.cudagraph_mode
        if runner.model_config.enforce_eager or mode.decode_mode().name != "FULL":
            return False
        if self._graphs is not None and self._graphs.serves(runner):
            return False
        if not self._graph_mode_said:
            self._graph_mode_said = True
            self._log.warning(
                "cascade-attention: never two-stage in this engine: its decode steps replay captured graphs and no "
                "graph twin is there (VLLM_ASCEND_ENABLE_CASCADE_GRAPH=1 captures twins)"
            )
        return True

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
                    site.run(self._attach, _nothing, builder, common_prefix_len, metadata)
                elif self._graphs is not None and self._graphs.recording is not None:
                    # An error here ends the capture of twins, not a step: it is the capture's to report.
                    self._attach_recording(builder, metadata, self._graphs.recording)
                return metadata

            return build

        return factory

    def _attach(self, builder: Any, prefix: Any, metadata: Any) -> Any:
        kind: type = type(builder)
        if kind is not self._builder_type:
            return self._guard.decline(Refusal.ATTENTION_BACKEND.value)
        if not metadata.causal:
            return self._guard.decline(Refusal.NOT_CAUSAL.value)
        if not isinstance(prefix, SharedPrefix):
            raise step_plan.PlanError(f"the host passed a shared prefix of {prefix} tokens that is not this step's")
        step = prefix.step
        if step.lane is Lane.TWIN:
            step.plans[builder] = step.twin.lengths_of(metadata, prefix)
        elif step.lane is Lane.EAGER:
            plan = step_plan.make_plan(
                metadata,
                prefix_tokens=int(prefix),
                block_size=builder.kv_cache_spec.block_size,
                requests=step.requests,
            )
            setattr(metadata, step_plan.ATTRIBUTE, plan)
        return None

    def _attach_recording(self, builder: Any, metadata: Any, twin: Any) -> None:
        twin.open_group(builder, metadata.block_tables, builder.kv_cache_spec.block_size)
        setattr(metadata, step_plan.RECORDING, (twin, builder))

    # Two stages a layer -------------------------------------------------------------------------------------------

    def attend(
        self, layer: Any, query: Any, key: Any, value: Any, attn_metadata: Any, output: Any, *_: Any, **__: Any
    ) -> Any:
        """A layer's decode attention, written into `output`; NATIVE where the step has no plan."""
        kind: type = type(layer)
        if kind is not self._impl_type:
            return NATIVE
        recording = getattr(attn_metadata, step_plan.RECORDING, None)
        if recording is not None:
            return self._record(layer, query, attn_metadata, output, *recording)
        plan: step_plan.StepPlan | None = getattr(attn_metadata, step_plan.ATTRIBUTE, None)
        if plan is None:
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
            self.count_step(plan.prefix_tokens, plan.requests, plan.suffix_lengths[: plan.requests])
        return output

    def _record(self, layer: Any, query: Any, metadata: Any, output: Any, twin: Any, builder: Any) -> Any:
        heads = Heads(layer.num_heads, layer.num_kv_heads, layer.head_size, layer.scale)
        merged = self._graphs.record_layer(twin, builder, layer, query, heads, metadata.attn_mask)
        if merged is NATIVE:
            return NATIVE
        output[: twin.rows] = merged
        return output

    def count_step(self, prefix_tokens: int, requests: int, suffix_lengths: list[int]) -> None:
        """Note one step that ran two-stage."""
        guard = self._guard
        guard.engaged += 1
        guard.count("prefix_tokens", prefix_tokens)
        guard.count("requests", requests)
        if not self._announced:
            self._announced = True
            self._log.info(
                "cascade-attention: first two-stage step (%d requests share %d tokens); results equal stock's up to "
                "the rounding of the model's type",
                requests,
                prefix_tokens,
            )
        if self._trace:
            self._log.info(
                "[cas-trace] requests=%d shared_len=%d suffix=%d..%d",
                requests,
                prefix_tokens,
                min(suffix_lengths),
                max(suffix_lengths),
            )


def _nothing(*_: Any) -> None:
    """What stands in for an attached plan that could not be made: no plan, so every layer runs the host's attention."""
