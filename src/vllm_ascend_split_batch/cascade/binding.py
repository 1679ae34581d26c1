"""Where cascade meets the host: one decision a step, one plan a group, two stages a layer.

The runner asks once a step what its requests share. The answer travels through the host's own `common_prefix_len` to
the metadata builder, which hangs the step's plan on the metadata, where every layer finds it. All state is per runner
or per step, none per process.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from vllm_ascend_split_batch.carrier import Context, Patch, Refused
from vllm_ascend_split_batch.carrier.guard import NATIVE
from vllm_ascend_split_batch.cascade_plugin import BUILD, FORWARD, PREFIX_LENS
from vllm_ascend_split_batch.host_step import StepFacts, read_block_rows, read_step

from . import step_plan, tiers
from .admission import Refusal, prefix_refusal, step_refusal
from .admitted import AdmittedStep, Lane, SharedPrefix
from .engine_choice import EAGER, GRAPH, EngineChoice, GroupKey, Wishes, attention_groups, settle
from .prediction import Profiles
from .profiles import ProfileError
from .shared_prefix import shared_prefix_tokens
from .two_stage import Heads


def patches(context: Context) -> list[Patch]:
    """The carrier's three patches.

    Raises:
        Refused: the user asked for stock results, or no kernel tier that the user allows is there.
    """
    settings = context.settings
    if settings["VLLM_ASCEND_CASCADE_STRICT"]:
        raise Refused("VLLM_ASCEND_CASCADE_STRICT keeps stock results bit for bit, so cascade stays out")
    cascade = Cascade(context, _wishes(context))
    _remember(cascade)
    guard = context.guard
    return [
        context.patch(PREFIX_LENS, guard.site("step decision", counted=False).around(cascade.decide)),
        context.patch(BUILD, cascade.attach_to(guard.site("step plan", counted=False))),
        context.patch(FORWARD, guard.site("layer attention", counted=False).around(cascade.attend)),
    ]


def _wishes(context: Context) -> Wishes:
    settings = context.settings
    wanted: str = settings["VLLM_ASCEND_CASCADE_KERNELS"]
    automatic = wanted == "auto"
    found: list[Any] = []
    missing: list[str] = []
    for name in tiers.TIERS if automatic else (wanted,):
        try:
            found.append(
                tiers.make(
                    name,
                    fp32_prefix=settings["VLLM_ASCEND_CASCADE_PRECISION"] == "fp32",
                    allowed_fingerprint=settings["VLLM_ASCEND_CASCADE_KERNEL_FINGERPRINT"],
                )
            )
        except tiers.Unavailable as error:
            missing.append(str(error))
    if not found:
        raise Refused("; ".join(missing))
    for tier in found:
        context.log.info("cascade-attention: kernels: %s", tier.detail)
    try:
        known = Profiles(settings["VLLM_ASCEND_CASCADE_PROFILE"])
    except ProfileError as error:
        raise Refused(f"VLLM_ASCEND_CASCADE_PROFILE: {error}") from None
    return Wishes(found, automatic, known)


_installed: weakref.ref[Cascade] | None = None


def _remember(cascade: Cascade) -> None:
    global _installed
    _installed = weakref.ref(cascade)


def installed() -> Cascade | None:
    """What was bound last in this process and is still in place; graph twins build on it."""
    return _installed() if _installed is not None else None


@dataclass
class _Engine:
    """What is known of one runner.

    Attributes:
        choice: what is settled, once it is. admitted: the step being prepared, if it was admitted.
        graph_mode: the host's graph mode when `full_graphs` was last worked out from it. full_graphs: decode steps
            replay captured full graphs.
    """

    choice: EngineChoice | None = None
    admitted: AdmittedStep | None = None
    graph_mode: Any = None
    full_graphs: bool = False


class Cascade:
    """The bodies of the patches. They return NATIVE, or raise, wherever the host's own function is to run."""

    def __init__(self, context: Context, wishes: Wishes) -> None:
        from vllm_ascend.attention import attention_v1

        settings = context.settings
        self._guard = context.guard
        self._log = context.log
        self._builder_type: type = attention_v1.AscendAttentionMetadataBuilder
        self._impl_type: type = attention_v1.AscendAttentionBackendImpl
        self._wishes = wishes
        self._min_prefix: int = settings["VLLM_ASCEND_CASCADE_MIN_PREFIX"]
        self._min_requests: int = settings["VLLM_ASCEND_CASCADE_MIN_REQS"]
        self._trace: bool = settings["VLLM_ASCEND_CASCADE_TRACE"]
        self._engines: weakref.WeakKeyDictionary[Any, _Engine] = weakref.WeakKeyDictionary()
        self._graphs: Any = None
        self._said: set[str] = set()

    # What is settled once an engine --------------------------------------------------------------------------------

    def _engine(self, runner: Any) -> _Engine:
        engine = self._engines.get(runner)
        if engine is None:
            engine = self._engines[runner] = _Engine()
        return engine

    def choice(self, runner: Any) -> EngineChoice:
        """What is settled for `runner`, settled now if it has not been."""
        engine = self._engine(runner)
        return engine.choice or self._settle(runner, engine)

    def _settle(self, runner: Any, engine: _Engine) -> EngineChoice:
        choice = settle(runner, self._wishes, self._builder_type, self._impl_type, self._say_once)
        engine.choice = choice
        for key, group in choice.groups.items():
            if group.refusal is not None:
                detail = f" ({group.detail})" if group.detail else ""
                self._say_once(
                    f"cascade-attention: never two-stage in this engine's attention group {key}: "
                    f"{group.refusal.value}{detail}"
                )
        if choice.tier is None:
            self._say_once(f"cascade-attention: never two-stage in this engine: {choice.reason}")
        elif (never := choice.never(GRAPH if self._replays_full_graphs(runner, engine) else EAGER)) is not None:
            self._say_once(f"cascade-attention: never two-stage in this engine: {never}")
        return choice

    def tier(self, runner: Any) -> Any:
        """The engine's kernel tier, or None."""
        return self.choice(runner).tier

    # What graph twins ask for --------------------------------------------------------------------------------------

    @property
    def min_requests(self) -> int:
        return self._min_requests

    def serve_graphs(self, graphs: Any) -> None:
        """From now on steps may run in the twins of `graphs` (a `GraphTwins`); None: no longer."""
        self._graphs = graphs

    def admitted(self, runner: Any) -> AdmittedStep | None:
        """The step that `runner` is preparing, if it was admitted."""
        engine = self._engines.get(runner)
        return engine.admitted if engine is not None else None

    def forget(self, runner: Any) -> None:
        """The step is over."""
        self._engine(runner).admitted = None

    def reason_against(self, runner: Any) -> str | None:
        """Why no step of this engine can run in a twin, in words; None where steps can."""
        choice = self.choice(runner)
        while choice.tier is not None and not choice.passed(runner):
            pass
        if choice.tier is None:
            return choice.reason
        if choice.tier.fp32_prefix:
            return "VLLM_ASCEND_CASCADE_PRECISION=fp32: the device cannot capture fa_fp32_stage1"
        for key, group in choice.groups.items():
            if group.refusal is not None:
                return f"attention group {key} never runs two-stage: {group.refusal.value}"
        return None

    def layers(self, runner: Any) -> int:
        """Attention layers of the runner's model."""
        return sum(len(group.layer_names) for groups in runner.attn_groups for group in groups)

    def block_sizes(self, runner: Any) -> list[int]:
        """Tokens per block of each attention group."""
        return [int(group.kv_cache_spec.block_size) for groups in runner.attn_groups for group in groups]

    # One decision a step ------------------------------------------------------------------------------------------

    def decide(self, runner: Any, num_scheduled_tokens: Any, num_computed_tokens: Any, *_: Any, **__: Any) -> Any:
        """The shared prefix per KV-cache group and attention group, in tokens, where the step is to run two-stage."""
        guard = self._guard
        guard.calls += 1
        engine = self._engine(runner)
        engine.admitted = None
        choice = engine.choice or self._settle(runner, engine)
        tier = choice.tier
        if tier is None:
            return guard.decline(Refusal.NO_KERNELS.value)
        step = read_step(runner, num_scheduled_tokens, num_computed_tokens)
        refusal = step_refusal(
            decode_only=step.decode_only, requests=step.num_requests, min_requests=self._min_requests
        )
        if refusal is not None:
            return guard.decline(refusal.value)
        full_graphs = self._replays_full_graphs(runner, engine)
        if full_graphs and not self._served_by_twins(runner):
            return guard.decline(Refusal.GRAPH_MODE.value)
        mode = GRAPH if full_graphs else EAGER
        admitted = AdmittedStep(step.num_requests, tier)
        lengths: list[list[int]] = []
        first_refusal: str | None = None
        prefixes: dict[int, tuple[int, bytes]] = {}
        for key, _group in attention_groups(runner):
            if key[1] == 0:
                lengths.append([])
            prefix, reason = self._group_prefix(runner, choice, key, mode, step, admitted, prefixes)
            lengths[-1].append(prefix)
            first_refusal = first_refusal or reason
        if not any(map(any, lengths)):
            return guard.decline(first_refusal or Refusal.NO_SHARED_PREFIX.value)
        if not choice.passed(runner):
            return guard.decline(Refusal.SELF_TEST.value)
        guard.counters["self_test_host_copies"] = choice.host_copies
        engine.admitted = admitted
        return lengths

    def _group_prefix(
        self,
        runner: Any,
        choice: EngineChoice,
        key: GroupKey,
        mode: str,
        step: StepFacts,
        admitted: AdmittedStep,
        prefixes: dict[int, tuple[int, bytes]],
    ) -> tuple[int, str | None]:
        """The shared prefix of one attention group if it is to run two-stage, else 0 and why not."""
        group = choice.groups[key]
        if group.refusal is not None:
            return 0, group.refusal.value
        if key[0] not in prefixes:
            rows = read_block_rows(runner, key[0], step.num_requests)
            prefix = shared_prefix_tokens(rows.ids, rows.used, rows.block_size, step.computed_tokens)
            prefixes[key[0]] = prefix, rows.ids[0, : prefix // rows.block_size].tobytes()
        prefix, blocks = prefixes[key[0]]
        refusal = prefix_refusal(prefix, self._min_prefix)
        if refusal is not None:
            return 0, refusal.value
        decision = choice.decide(key, mode, step.num_requests, prefix, sum(step.computed_tokens))
        if not decision.use:
            return 0, decision.reason.value
        return SharedPrefix.of(prefix, admitted, blocks), None

    def _replays_full_graphs(self, runner: Any, engine: _Engine) -> bool:
        # The host settles its mode while it starts. Working out what the mode means is no matter for every step.
        mode = runner.compilation_config.cudagraph_mode
        if mode is not engine.graph_mode:
            engine.full_graphs = not runner.model_config.enforce_eager and mode.decode_mode().name == "FULL"
            engine.graph_mode = mode
        return engine.full_graphs

    def _served_by_twins(self, runner: Any) -> bool:
        """Whether a decode step that replays one of the host's full graphs has a twin that may take its place.

        Taking such a step out of its graph costs more than two-stage attention gains.
        """
        if self._graphs is not None and self._graphs.serves(runner):
            return True
        self._say_once(
            "cascade-attention: never two-stage in this engine: its decode steps replay captured graphs and no graph "
            "twin is there (VLLM_ASCEND_ENABLE_CASCADE_GRAPH=1 captures twins)"
        )
        return False

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._log.warning("%s", sentence)

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
                elif self._graphs is not None and self._graphs.recording:
                    # An error here ends the capture of twins, not a step: it is the capture's to report.
                    group = self._graphs.open_group(builder, metadata.block_tables, builder.kv_cache_spec.block_size)
                    setattr(metadata, step_plan.RECORDING, group)
                return metadata

            return build

        return factory

    def _attach(self, builder: Any, prefix: Any, common_attn_metadata: Any, metadata: Any) -> Any:
        kind: type = type(builder)
        if kind is not self._builder_type:
            return self._guard.decline(Refusal.ATTENTION_BACKEND.value)
        if not metadata.causal:
            return self._guard.decline(Refusal.NOT_CAUSAL.value)
        if not isinstance(prefix, SharedPrefix):
            raise step_plan.PlanError(f"the host passed a shared prefix of {prefix} tokens that is not this step's")
        step = prefix.step
        if step.lane is Lane.TWIN:
            step.plans[builder] = step.twin.lengths_of(metadata, prefix, common_attn_metadata.seq_lens)
        elif step.lane is Lane.EAGER:
            plan = step_plan.make_plan(
                metadata,
                prefix_tokens=int(prefix),
                block_size=builder.kv_cache_spec.block_size,
                requests=step.requests,
                device_lengths=common_attn_metadata.seq_lens,
            )
            plan.tier = step.tier
            setattr(metadata, step_plan.ATTRIBUTE, plan)
        return None

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
            return self._record(layer, query, attn_metadata, output, recording)
        plan: step_plan.StepPlan | None = getattr(attn_metadata, step_plan.ATTRIBUTE, None)
        if plan is None:
            return NATIVE
        heads = Heads(layer.num_heads, layer.num_kv_heads, layer.head_size, layer.scale)
        merged = plan.tier.attend(
            query[: plan.rows], layer.key_cache, layer.value_cache, plan, heads, attn_metadata.attn_mask
        )
        plan.layers_done += 1
        output[: plan.rows] = merged
        if plan.layers_done == 1:
            self.count_step(plan.prefix_tokens, plan.requests, plan.suffix_lengths[: plan.requests])
        return output

    def _record(self, layer: Any, query: Any, metadata: Any, output: Any, group: Any) -> Any:
        heads = Heads(layer.num_heads, layer.num_kv_heads, layer.head_size, layer.scale)
        merged = self._graphs.record_layer(group, layer, query, heads, metadata.attn_mask)
        if merged is NATIVE:
            return NATIVE
        output[: group.rows] = merged
        self._graphs.layer_recorded()
        return output

    def count_step(self, prefix_tokens: int, requests: int, suffix_lengths: list[int]) -> None:
        """Note one step that ran two-stage."""
        guard = self._guard
        guard.engaged += 1
        guard.count("prefix_tokens", prefix_tokens)
        guard.count("requests", requests)
        if "first step" not in self._said:
            self._said.add("first step")
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
