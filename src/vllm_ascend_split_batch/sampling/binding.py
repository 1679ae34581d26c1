"""Where fi-sampling meets the host: a step is read in the runner's `_sample`, and drawn in the sampler's forward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from vllm_ascend_split_batch import row_kernels
from vllm_ascend_split_batch.carrier import Context, Patch, Refused
from vllm_ascend_split_batch.fi_sampling_plugin import FORWARD, GATE, SAMPLE

from . import host_switches, ranks, seeds, step
from .cap_counter import CapCounter
from .routes import HostChain, HostSwitches, Route, Thresholds, choose, forced_host_chain

#: Decisions that the trace logs.
TRACED = 20


def patches(context: Context) -> list[Patch]:
    """The carrier's two patches.

    Raises:
        Refused: the host runs its v2 model runner, or the kernels are not there.
    """
    from vllm import envs

    if envs.VLLM_USE_V2_MODEL_RUNNER:
        raise Refused(
            "VLLM_USE_V2_MODEL_RUNNER is on, and the sampler of the v2 model runner is not supported; it runs as it is"
        )
    try:
        ops = row_kernels.load()
    except row_kernels.RowKernelsUnavailable as error:
        raise Refused(f"{error}; sampling stays on the host's chain") from None
    sampling = _Sampling(context, ops)
    return [
        context.patch(SAMPLE, sampling.around_step(context.guard.site("sampling step", counted=False))),
        context.patch(FORWARD, sampling.around_draw(context.guard.site("draw"))),
    ]


class _Sampling:
    """The bodies of the patches."""

    def __init__(self, context: Context, ops: Any) -> None:
        from vllm_ascend.sample import sampler as host

        settings = context.settings
        self._guard = context.guard
        self._log = context.log
        self._ops = ops
        self._sampler_type: type = host.AscendTopKTopPSampler
        self._thresholds = Thresholds(
            joint_min_batch=settings[f"{GATE}_JOINT_MIN_BATCH"],
            joint_min_k=settings[f"{GATE}_JOINT_MIN_K"],
            k1_argmax=settings[f"{GATE}_K1_ARGMAX"],
            seeded=settings[f"{GATE}_SEEDED"],
        )
        self._seed_setting: int = settings[f"{GATE}_SEED"]
        self._to_trace: int = TRACED if settings[f"{GATE}_TRACE"] else 0
        self._switches: weakref.WeakKeyDictionary[Any, HostSwitches] = weakref.WeakKeyDictionary()
        self._caps = CapCounter()
        self._steps = 0
        self._step: step.SamplingStep | None = None
        self._unread = False
        self._seed: int | None = None
        self._ranks: ranks.Ranks | None = None
        self._ranks_agree: bool | None = None
        self._drawing = False
        self._announced = False

    # The step -----------------------------------------------------------------------------------------------------

    def around_step(self, site: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A patch factory: the step is read, then the host samples; outside of it there is no step."""

        def factory(native: Callable[..., Any]) -> Callable[..., Any]:
            def sample(runner: Any, logits: Any, spec_decode_metadata: Any, *args: Any, **kwargs: Any) -> Any:
                site.run(self._begin, self._not_read, runner, spec_decode_metadata)
                try:
                    return native(runner, logits, spec_decode_metadata, *args, **kwargs)
                finally:
                    self._step, self._unread = None, False

            return sample

        return factory

    def _begin(self, runner: Any, spec_decode_metadata: Any) -> None:
        number = self._steps
        self._steps += 1
        self._step = step.read(runner, spec_decode_metadata, number)

    def _not_read(self, *_: Any) -> None:
        self._unread = True

    # The draw -----------------------------------------------------------------------------------------------------

    def around_draw(self, site: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A patch factory: draw by a route, or by the host's chain; a failure must be one of all ranks."""

        def factory(native: Callable[..., Any]) -> Callable[..., Any]:
            def host_chain(*args: Any, **kwargs: Any) -> Any:
                if self._drawing:
                    self._drawing = False
                    if self._ranks is not None and self._step is not None:
                        self._ranks.failed_everywhere(self._step.number)
                return native(*args, **kwargs)

            def forward(sampler: Any, logits: Any, generators: Any, k: Any, p: Any, *args: Any, **kwargs: Any) -> Any:
                return site.run(self._draw, host_chain, sampler, logits, generators, k, p, *args, **kwargs)

            return forward

        return factory

    def _draw(self, sampler: Any, logits: Any, generators: Any, k: Any, p: Any) -> Any:
        self._drawing = True
        if self._unread:
            # A failure like any other: tensor-parallel ranks must leave for the host's chain together.
            raise RuntimeError("the sampling step could not be read from the runner")
        chosen = self._choose(sampler, logits, generators, k, p)
        if self._to_trace:
            self._to_trace -= 1
            self._log.info("[fi-sampling-trace] rows=%d route=%s", logits.shape[0], chosen.value)
        if isinstance(chosen, HostChain):
            self._drawing = False
            return self._guard.decline(chosen.value)
        tokens = self._tokens(chosen, logits, generators, k, p)
        self._drawing = False
        self._guard.count(f"route_{chosen.value}")
        if not self._announced:
            self._announced = True
            self._log.info("fi-sampling: first step drawn by our kernels (%s, %d rows)", chosen.value, len(logits))
        return tokens, None

    def _choose(self, sampler: Any, logits: Any, generators: Any, k: Any, p: Any) -> Route | HostChain:
        now = self._step
        if now is None:
            return HostChain.OUTSIDE_A_STEP
        if type(sampler) is not self._sampler_type:
            return HostChain.OTHER_SAMPLER
        forced = forced_host_chain(
            self._switches_of(sampler), generators=bool(generators), seeded=self._thresholds.seeded
        )
        if forced is not None:
            return forced
        if now.speculative:
            return HostChain.SPECULATIVE_DECODING
        if now.rows != logits.shape[0]:
            return HostChain.ROWS_DIFFER
        chosen = choose(
            now.rows, None if k is None else now.top_k_range(), p is not None, self._thresholds
        )
        if isinstance(chosen, Route) and not self._agreed():
            return HostChain.RANKS_DISAGREE
        return chosen

    def _switches_of(self, sampler: Any) -> HostSwitches:
        known = self._switches.get(sampler)
        if known is None:
            from vllm import envs
            from vllm_ascend.ascend_config import get_ascend_config

            known = self._switches[sampler] = host_switches.read(
                sampler, get_ascend_config, lambda: envs.VLLM_BATCH_INVARIANT
            )
        return known

    def _agreed(self) -> bool:
        """Whether all tensor-parallel ranks draw from the same seed with the same settings; asked once."""
        if self._ranks_agree is None:
            import torch
            from vllm.distributed.parallel_state import get_tp_group

            self._seed = self._seed_setting if self._seed_setting >= 0 else int(torch.initial_seed())
            self._ranks = ranks.of_this_process(get_tp_group())
            ours = f"seed={self._seed} {self._thresholds}"
            self._ranks_agree = self._ranks is None or self._ranks.agree(ours)
            if not self._ranks_agree:
                self._log.warning(
                    "fi-sampling: the tensor-parallel ranks do not all run it with the same seed and settings; "
                    "sampling stays on the host's chain"
                )
        return self._ranks_agree

    def _tokens(self, route: Route, logits: Any, generators: Any, k: Any, p: Any) -> Any:
        if route is Route.ARGMAX:
            return logits.argmax(dim=-1).view(-1)
        now = self._step
        assert now is not None
        assert self._seed is not None
        scores = logits if logits.stride(-1) == 1 else logits.contiguous()
        key, word = seeds.batch_key(self._seed, now.replica, now.number)
        keys = self._row_keys(generators, key, word, now, scores.device) if generators else None
        if route is Route.API1:
            return self._ops.sample(scores, key, word, keys)
        capped = self._caps.rows(now.rows, scores.device)
        tokens = self._ops.sample_top_k_top_p(scores, k, p, capped, key, word, keys)
        total = self._caps.step_done()
        if total:
            self._guard.counters["rows_out_of_rounds"] = total
        return tokens

    @staticmethod
    def _row_keys(generators: Any, key: int, word: int, now: step.SamplingStep, device: Any) -> Any:
        """Per row the key's words, the step and the lane: a seeded request's own, by its seed and position."""
        import numpy as np
        import torch

        table = np.empty((now.rows, 4), dtype=np.int32)
        table[:, :2] = seeds.key_words(key)
        table[:, 2] = word
        table[:, 3] = np.arange(now.rows)
        positions = now.positions()
        for row, generator in generators.items():
            # initial_seed() is kept on the host's side.
            table[row, :2] = seeds.key_words(seeds.request_key(int(generator.initial_seed())))
            table[row, 2:] = positions[row], 0
        host = torch.from_numpy(table)
        if device.type != "cpu":
            host = host.pin_memory()
        return host.to(device, non_blocking=True)

