"""Where graph twins meet the host: captured after the host's own graphs, chosen with the step's graph, replayed in its
place, parameterised where the host parameterises its own.

The twins register nothing with the host: neither in its table of graph parameters nor, where it has them, as tasks of
its updatable graphs. So one binding serves hosts with either protocol, and a twin that is given up leaves nothing
behind.
State is per runner; what concerns one replay lives as long as the runner's forward call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllm_ascend_split_batch.carrier import Context, Patch, Refused
from vllm_ascend_split_batch.carrier.guard import NATIVE
from vllm_ascend_split_batch.cascade import binding as eager
from vllm_ascend_split_batch.cascade.admitted import AdmittedStep, Lane
from vllm_ascend_split_batch.cascade.tiers import FusedTier, OwnTier
from vllm_ascend_split_batch.cascade.two_stage import Heads
from vllm_ascend_split_batch.cascade_plugin import CAPTURE, CHOOSE_GRAPH, MODEL_FORWARD, UPDATE_PARAMETERS, WRAPPER_CALL

from .by_device import DeviceGroupTwin
from .by_tasks import TaskGroupTwin, Toolbox
from .twin import Replay, Twin, TwinError

#: Position of `use_cascade_attn` among the parameters of the choice of a graph, `self` not counted.
USE_CASCADE_POSITION = 4


def patches(context: Context) -> list[Patch]:
    """The carrier's five patches.

    Raises:
        Refused: two-stage attention itself is not installed.
    """
    cascade = eager.installed()
    if cascade is None:
        raise Refused("two-stage attention is not installed in this process (see cascade-attention)")
    twins = GraphTwins(context, cascade)
    cascade.serve_graphs(twins)
    return [
        context.patch(CAPTURE, twins.capture_after),
        context.patch(CHOOSE_GRAPH, twins.choose_after),
        context.patch(MODEL_FORWARD, twins.forward_instead),
        context.patch(WRAPPER_CALL, twins.call_instead),
        context.patch(UPDATE_PARAMETERS, twins.update_instead),
    ]


@dataclass
class RunnerTwins:
    """The twins of one runner, by the host's key of a graph, and what they share."""

    twins: dict[Any, Twin] = field(default_factory=dict)
    results: dict[Any, Any] = field(default_factory=dict)
    #: The host's graph entries of each wrapper, for twins: wrapper -> {key: entry}.
    entries: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = field(default_factory=weakref.WeakKeyDictionary)


@dataclass(frozen=True)
class _Recording:
    """The twin that is being captured, and for whom."""

    runner: Any
    state: RunnerTwins
    twin: Twin


class GraphTwins:
    """The bodies of the patches."""

    def __init__(self, context: Context, cascade: eager.Cascade) -> None:
        self._context = context
        self._guard = context.guard
        self._log = context.log
        self._cascade = cascade
        self._skip_stable: bool = context.settings["VLLM_ASCEND_CASCADE_UPDATE_SKIP_STABLE"]
        self._runners: weakref.WeakKeyDictionary[Any, RunnerTwins] = weakref.WeakKeyDictionary()
        self._choice = context.guard.site("choice of the graph", counted=False)
        self._preparation = context.guard.site("twin's tables", counted=False)
        self._replaying = context.guard.site("twin replay", counted=False)
        #: The twin that is being captured, within its window.
        self._recording: _Recording | None = None
        #: The replay that is under way, within the runner's forward call.
        self._replay: tuple[RunnerTwins, Replay] | None = None

    @property
    def recording(self) -> bool:
        """Whether a twin is being warmed up or captured right now."""
        return self._recording is not None

    def serves(self, runner: Any) -> bool:
        """Whether the runner has a twin that may be used."""
        return any(twin.usable for twin in self._of(runner).twins.values())

    def _of(self, runner: Any) -> RunnerTwins:
        state = self._runners.get(runner)
        if state is None:
            state = self._runners[runner] = RunnerTwins()
        return state

    # Capture ----------------------------------------------------------------------------------------------------------

    def capture_after(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """Capture the twins when the host has captured its own full graphs."""

        def capture(runner: Any, batch_descriptors: Any, cudagraph_runtime_mode: Any, *args: Any, **kwargs: Any) -> Any:
            result = native(runner, batch_descriptors, cudagraph_runtime_mode, *args, **kwargs)
            if cudagraph_runtime_mode.name == "FULL" and batch_descriptors:
                self._context.guard.site("twin capture", counted=False).run(
                    self._capture, _standard, runner, list(batch_descriptors), cudagraph_runtime_mode
                )
            return result

        return capture

    def _capture(self, runner: Any, descriptors: list[Any], mode: Any) -> None:
        uniform = [descriptor for descriptor in descriptors if descriptor.uniform]
        if not uniform:
            return self._without_twins(
                "the host captured no graphs for decode-only batches of their own; they come with cudagraph_mode "
                "FULL_DECODE_ONLY or FULL_AND_PIECEWISE"
            )
        if (reason := self._cascade.reason_against(runner)) is not None:
            return self._without_twins(reason)
        sizes = [d for d in uniform if d.num_tokens >= self._cascade.min_requests]
        if not sizes:
            largest = max(descriptor.num_tokens for descriptor in uniform)
            return self._without_twins(
                f"the largest captured batch has {largest} requests, and VLLM_ASCEND_CASCADE_MIN_REQS="
                f"{self._cascade.min_requests} must share a prefix"
            )
        longest = int(runner.max_model_len)
        block = max(self._cascade.block_sizes(runner))
        if longest <= block:
            return self._without_twins(f"max_model_len {longest} leaves no room for a shared block of {block} tokens")
        state = self._of(runner)
        try:
            for descriptor in sorted(sizes, key=lambda d: -int(d.num_tokens)):
                self._capture_size(runner, state, descriptor, mode, sequence_length=block + 1)
        finally:
            # An error ends it, but the sizes before are complete.
            self._say_captured(state)
        return None

    def _capture_size(
        self, runner: Any, state: RunnerTwins, descriptor: Any, mode: Any, *, sequence_length: int
    ) -> None:
        twin = Twin(descriptor, int(descriptor.num_tokens), self._device())
        try:
            with self._window(runner, state, twin):
                runner._warmup_and_capture(
                    descriptor, cudagraph_runtime_mode=mode, profile_seq_lens=sequence_length, num_warmups=1
                )
            wanted = self._cascade.layers(runner)
            if twin.layers == wanted:
                state.twins[descriptor] = twin
                return
            self._log.warning(
                "cascade-graph: no graph twin of %d requests: %d of %d attention layers came by in its capture",
                twin.rows,
                twin.layers,
                wanted,
            )
        finally:
            if descriptor not in state.twins:
                for entries in state.entries.values():
                    entries.pop(descriptor, None)

    def _say_captured(self, state: RunnerTwins) -> None:
        if not state.twins:
            self._without_twins("no size could be captured")
            return
        self._guard.count("twins_captured", len(state.twins))
        self._log.info(
            "cascade-graph: %d twins captured (%s requests)",
            len(state.twins),
            ", ".join(str(twin.rows) for twin in state.twins.values()),
        )

    def _without_twins(self, reason: str) -> None:
        self._guard.decline("no_twins_captured")
        self._log.warning(
            "cascade-graph: no graph twin is captured, so steps that run in a captured graph keep the host's own "
            "attention: %s",
            reason,
        )

    @contextmanager
    def _window(self, runner: Any, state: RunnerTwins, twin: Twin) -> Iterator[None]:
        self._recording = _Recording(runner, state, twin)
        try:
            yield
        finally:
            self._recording = None

    def _device(self) -> Any:
        import torch

        return torch.npu

    def open_group(self, builder: Any, block_table: Any, block_size: int) -> Any:
        """The group of the twin being captured that belongs to `builder`; `block_table` is the host's [T, columns]."""
        recording = self._recording
        if recording is None:
            raise TwinError("no twin is being captured")
        twin, state = recording.twin, recording.state
        if builder not in twin.groups:
            tier = self._cascade.tier(recording.runner)
            if isinstance(tier, OwnTier):
                twin.groups[builder] = DeviceGroupTwin.beside(block_table, twin.rows, block_size, tier)
            else:
                tools = self._toolbox(tier)
                twin.groups[builder] = TaskGroupTwin.beside(block_table, twin.rows, block_size, tools, state.results)
        return twin.groups[builder]

    def _toolbox(self, tier: FusedTier) -> Toolbox:
        import torch_npu

        return Toolbox(
            device=self._device(),
            fused=torch_npu.npu_fused_infer_attention_score,
            max_workspace=torch_npu._npu_fused_infer_attention_score_get_max_workspace,
            weak=torch_npu._C._weak_ref_tensor,
            merge=tier.merge,
            skip_stable=self._skip_stable,
        )

    def record_layer(self, group: Any, layer: Any, query: Any, heads: Heads, causal_mask: Any) -> Any:
        """A layer within the window: in the warm-up run NATIVE, in the capture both stages, [T, H, D]."""
        if not self._device().is_current_stream_capturing():
            group.warm_up(query, heads)
            return NATIVE
        return group.record(query, layer.key_cache, layer.value_cache, heads, causal_mask)

    def layer_recorded(self) -> None:
        """A layer's result is in its output. Where it failed before that, the graph holds the host's attention."""
        if self._recording is not None:
            self._recording.twin.layers += 1

    # Choice of the graph ----------------------------------------------------------------------------------------------

    def choose_after(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """The host rules full graphs out for a step that shares a prefix. Where there are twins, they are let in."""

        def choose(runner: Any, *args: Any, **kwargs: Any) -> Any:
            step = self._cascade.admitted(runner)
            by_position = args[USE_CASCADE_POSITION] if len(args) > USE_CASCADE_POSITION else False
            asked = kwargs.get("use_cascade_attn", by_position)
            if not asked:
                # A dummy run, or a step that was not admitted: nothing of an earlier step may reach it.
                self._cascade.forget(runner)
            if not asked or step is None or not self.serves(runner):
                return native(runner, *args, **kwargs)
            if "use_cascade_attn" in kwargs:
                kwargs["use_cascade_attn"] = False
            else:
                args = (*args[:USE_CASCADE_POSITION], False, *args[USE_CASCADE_POSITION + 1 :])
            outcome = native(runner, *args, **kwargs)
            step.lane = Lane.STANDARD
            self._guard.calls += 1
            if self._guard.latched:
                self._guard.decline("latched")
            self._choice.run(self._choose, _standard, runner, step, outcome[0], outcome[1])
            return outcome

        return choose

    def _choose(self, runner: Any, step: AdmittedStep, mode: Any, descriptor: Any) -> Any:
        if mode.name != "FULL":
            step.lane = Lane.EAGER
            return self._guard.decline("not_a_full_graph")
        twin = self._of(runner).twins.get(descriptor)
        if twin is None or not twin.usable:
            return self._guard.decline("no_twin" if twin is None else "twin_given_up")
        step.lane, step.twin = Lane.TWIN, twin
        return None

    # Replay -----------------------------------------------------------------------------------------------------------

    def forward_instead(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """Run the model by the step's twin; by the host's own graph when anything is wrong with that."""

        def forward(runner: Any, *args: Any, **kwargs: Any) -> Any:
            if self._recording is not None:
                return native(runner, *args, **kwargs)
            step = self._cascade.admitted(runner)
            if step is None or step.lane is not Lane.TWIN:
                return native(runner, *args, **kwargs)
            replay = self._preparation.run(self._prepare, _standard, runner, step)
            if replay is None:
                return native(runner, *args, **kwargs)
            output = self._run(native, runner, replay, args, kwargs)
            self._cascade.forget(runner)
            if output is NATIVE:
                return native(runner, *args, **kwargs)
            self._count(replay)
            return output

        return forward

    def _prepare(self, runner: Any, step: AdmittedStep) -> Any:
        twin: Twin = step.twin
        if set(step.plans) != set(twin.groups):
            # Why a group has none was counted, or logged, where its plan was to be made.
            return self._guard.decline("no_plan")
        replay = Replay(twin, [(twin.groups[builder], plan) for builder, plan in step.plans.items()])
        replay.fill()
        return replay

    def _run(self, native: Callable[..., Any], runner: Any, replay: Replay, args: Any, kwargs: Any) -> Any:
        """The model's output by the twin; NATIVE when the twin failed and its replay, if any, has ended."""
        early = runner.parallel_config.world_size > 1
        try:
            if early:
                # Ranks replay collectives together: once launched there is no way back, so the lengths are set before.
                replay.twin.device.current_stream().synchronize()
                replay.update(runner.update_stream)
            self._replay = (self._of(runner), replay)
            try:
                output = native(runner, *args, **kwargs)
            finally:
                self._replay = None
            if not replay.updated:
                raise TwinError("the host did not come to set the parameters of its graph")
            if not replay.launched:
                raise TwinError("the host did not replay a full graph")
        except Exception as error:
            replay.twin.usable = False
            if replay.launched and early:
                raise
            self._replaying.failed(error)
            self._log.warning(
                "cascade-graph: the twin of %d requests is given up; the host's graph runs this step and all others of "
                "its size",
                replay.twin.rows,
            )
            if replay.launched:
                replay.release(runner.update_stream)
            return NATIVE
        self._replaying.in_a_row = 0
        return output

    def _count(self, replay: Replay) -> None:
        guard = self._guard
        guard.engaged += 1
        for group, _ in replay.steps:
            guard.count("prefix_stages_kept" if group.kept() else "prefix_stages_set")
        step = replay.steps[0][1]
        self._cascade.count_step(step.prefix_tokens, step.requests, step.suffix_lengths[: step.requests])

    def call_instead(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """The host's wrapper of a graph looks among the twins for the length of one call."""

        def call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            state, replay = self._replay or (None, None)
            if state is None and self._recording is not None:
                state = self._recording.state
            if state is None or wrapper.runtime_mode.name != "FULL":
                return native(wrapper, *args, **kwargs)
            own, twins = wrapper.concrete_aclgraph_entries, state.entries.setdefault(wrapper, {})
            if replay is not None and replay.twin.descriptor not in twins:
                raise TwinError("the wrapper holds no twin for this step")
            try:
                wrapper.concrete_aclgraph_entries = twins
                if replay is not None:
                    replay.launched = True
                return native(wrapper, *args, **kwargs)
            finally:
                wrapper.concrete_aclgraph_entries = own

        return call

    def update_instead(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """Where the host sets its graph's parameters, the twin's are set; the host's own graph is not running."""

        def update(runner: Any, *args: Any, **kwargs: Any) -> Any:
            if self._recording is not None:
                # A host that sets parameters first comes here before it captures, too: it would record the events of
                # its own graph of this size, and the next replay of that would not wait for its parameters.
                return None
            if self._replay is None:
                return native(runner, *args, **kwargs)
            replay = self._replay[1]
            if not replay.updated:
                if not replay.launched:
                    # This host sets parameters first: the replay before may still be reading its own.
                    replay.twin.device.current_stream().synchronize()
                replay.update(runner.update_stream)
            return None

        return update


def _standard(*_: Any) -> None:
    """What stands in for a body that failed: the step keeps the lane it has, and that is the host's own graph."""
