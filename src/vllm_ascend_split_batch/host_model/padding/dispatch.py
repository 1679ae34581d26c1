"""Which captured graph a number of tokens runs in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

from vllm_ascend_split_batch.host_model.padding.modes import GraphMode, RuntimeMode
from vllm_ascend_split_batch.host_model.padding.releases import HostFailure
from vllm_ascend_split_batch.host_model.padding.settings import HostSettings

ALL_MODES = frozenset(RuntimeMode)


@dataclass(frozen=True)
class Descriptor:
    """What identifies a graph, and the padded shape of a step that runs in it.

    Attributes:
        num_tokens: rows, padding rows included.
        num_reqs: requests, padding ones included; None where a graph does not depend on them.
        uniform: every request has the uniform query length.
        has_lora: LoRA adapters are active.
        num_active_loras: how many the graph was captured for.
    """

    num_tokens: int
    num_reqs: int | None = None
    uniform: bool = False
    has_lora: bool = False
    num_active_loras: int = 0


class GraphDispatch:
    """The keys of the captured graphs, and the choice among them.

    Args:
        settings: of the engine.
        ladder: its capture sizes in tokens, ascending.

    Raises:
        HostFailure: a decode graph's size is no multiple of the uniform query length.
    """

    def __init__(self, settings: HostSettings, ladder: Iterable[int]) -> None:
        self._settings = settings
        self._ladder = tuple(ladder)
        self._mode = settings.mode_in_force
        self._lora_counts = _captured_lora_counts(settings)
        self.keys: dict[RuntimeMode, frozenset[Descriptor]] = {
            RuntimeMode.PIECEWISE: frozenset(),
            RuntimeMode.FULL: frozenset(),
        }
        if self._mode is not GraphMode.NONE:
            self._capture()

    def dispatch(
        self,
        num_tokens: int,
        *,
        uniform: bool = False,
        num_active_loras: int = 0,
        has_lora: bool | None = None,
        allowed: frozenset[RuntimeMode] = ALL_MODES,
    ) -> tuple[RuntimeMode, Descriptor]:
        """The mode and padded descriptor of a step of `num_tokens` tokens.

        Args:
            num_tokens: scheduled tokens, rounded for sequence parallelism.
            uniform: the batch is a uniform decode batch.
            num_active_loras: LoRA adapters in the batch.
            has_lora: whether LoRA counts as active; None: where any adapter is.
            allowed: modes that may be chosen.

        Raises:
            HostFailure: no graph fits and a step without one is not allowed; a size is no multiple of the query length.
        """
        largest = self._ladder[-1] if self._ladder else 0
        if self._mode is GraphMode.NONE or num_tokens > largest or allowed <= {RuntimeMode.NONE}:
            return RuntimeMode.NONE, Descriptor(num_tokens)
        lora = num_active_loras > 0 if has_lora is None else has_lora
        padded = self._padded(
            num_tokens, uniform, lora, self._graph_loras(num_active_loras) if lora else num_active_loras
        )
        if RuntimeMode.FULL in allowed and padded in self.keys[RuntimeMode.FULL]:
            return RuntimeMode.FULL, padded
        relaxed = replace(padded, num_reqs=None, uniform=False)
        if RuntimeMode.PIECEWISE in allowed and relaxed in self.keys[RuntimeMode.PIECEWISE]:
            return RuntimeMode.PIECEWISE, relaxed
        if RuntimeMode.NONE not in allowed:
            raise HostFailure(f"no graph holds {num_tokens} tokens in any of {sorted(mode.name for mode in allowed)}")
        return RuntimeMode.NONE, Descriptor(num_tokens)

    def _capture(self) -> None:
        loras = [0] if self._settings.max_loras is None else list(self._lora_counts)
        if self._settings.max_loras is not None and self._settings.graphs_without_lora:
            loras.insert(0, 0)
        mixed = [self._padded(size, False, count > 0, count) for size in self._ladder for count in loras]
        if self._mode.mixed is RuntimeMode.PIECEWISE:
            self.keys[RuntimeMode.PIECEWISE] = frozenset(replace(key, num_reqs=None) for key in mixed)
        elif self._mode.mixed is RuntimeMode.FULL:
            self.keys[RuntimeMode.FULL] = frozenset(mixed)
        if self._mode.separates_decode:
            query_length = self._settings.uniform_query_length
            decode = [
                size for size in self._ladder if query_length <= size <= query_length * self._settings.max_num_seqs
            ]
            self.keys[RuntimeMode.FULL] = frozenset(
                self._padded(size, True, count > 0, count) for size in decode for count in loras
            )

    def _padded(self, num_tokens: int, uniform: bool, has_lora: bool, num_active_loras: int) -> Descriptor:
        tokens = self._ladder[bisect_left(self._ladder, num_tokens)] if num_tokens else 0
        # One set of full graphs for all batches is never captured as uniform.
        uniform = uniform and self._mode.separates_decode
        query_length = self._settings.uniform_query_length if uniform else 1
        if tokens % query_length:
            raise HostFailure(f"capture size {tokens} is no multiple of the query length {query_length}")
        requests = min(tokens // query_length, self._settings.max_num_seqs)
        return Descriptor(tokens, requests, uniform, has_lora, num_active_loras)

    def _graph_loras(self, active: int) -> int:
        """The number of adapters of the graph that serves `active` ones."""
        if active == 0:
            return 0
        if self._settings.max_loras is None:
            raise HostFailure("LoRA is active in an engine without LoRA")
        if not self._settings.graphs_per_lora_count:
            return self._settings.max_loras + 1
        return next((count for count in self._lora_counts if count >= active), active)


def _captured_lora_counts(settings: HostSettings) -> tuple[int, ...]:
    """Numbers of adapters for which graphs are captured: powers of two and the most, or the most alone."""
    if settings.max_loras is None:
        return ()
    most = settings.max_loras + 1
    if not (settings.graphs_per_lora_count and settings.graphs_without_lora):
        return (most,)
    return tuple(count for count in range(1, most + 1) if count & (count - 1) == 0 or count == most)
