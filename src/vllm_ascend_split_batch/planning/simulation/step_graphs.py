"""How many rows a step runs, and in what: the host's own padding, looked up once per size."""

from __future__ import annotations

from typing import NamedTuple

from vllm_ascend_split_batch.host_model.admission import StepResult
from vllm_ascend_split_batch.host_model.padding import Batch, HostSettings, RuntimeMode, StepPadding


class StepRows(NamedTuple):
    """Rows of a step, padding ones included, and the mode it runs in."""

    rows: int
    mode: RuntimeMode


class StepGraphs:
    """The graphs of an engine.

    Args:
        settings: of the engine; without speculative decoding, one data-parallel rank.

    Raises:
        HostFailure: the host refuses the settings at start-up.
        ValueError: several ranks, or speculative decoding.
    """

    def __init__(self, settings: HostSettings) -> None:
        if settings.data_parallel_size != 1 or settings.num_speculative_tokens:
            raise ValueError("simulated is one data-parallel rank, without speculative decoding")
        self._padding = StepPadding(settings)
        self._decode: dict[int, StepRows] = {}
        self._mixed: dict[int, StepRows] = {}
        self._most_known = max((*self.ladder, settings.max_num_seqs))

    @property
    def ladder(self) -> tuple[int, ...]:
        """The capture sizes, ascending."""
        return self._padding.ladder

    def decode(self, requests: int) -> StepRows:
        """A step in which so many requests decode one token each, and nothing else is computed."""
        known = self._decode.get(requests)
        if known is None:
            known = self._decode[requests] = self._rows(requests, uniform=True)
        return known

    def mixed(self, tokens: int) -> StepRows:
        """A step of so many tokens that is no uniform decode batch."""
        known = self._mixed.get(tokens)
        if known is None:
            known = self._rows(tokens, uniform=False)
            if tokens <= self._most_known:
                self._mixed[tokens] = known
        return known

    def of(self, result: StepResult) -> StepRows:
        """A step of the engine."""
        if not result.prefills:
            return self.decode(result.decodes)
        tokens = result.num_tokens
        if tokens > result.num_requests or not self._all_one_token(result):
            return self.mixed(tokens)
        return self.decode(tokens)

    def _all_one_token(self, result: StepResult) -> bool:
        """Whether a step with prompt tokens is a uniform decode batch all the same, as the host's test has it."""
        prefills = [request for request, _ in result.prefills]
        decodes = result.decodes
        return self._padding.is_uniform_decode(
            Batch(
                scheduled_tokens=(1,) * result.num_requests,
                computed_tokens=(*(request.computed - 1 for request in prefills), *[1] * decodes),
                prompt_tokens=(*(request.prompt_tokens for request in prefills), *[1] * decodes),
            )
        )

    def _rows(self, tokens: int, *, uniform: bool) -> StepRows:
        mode, descriptor = self._padding.graphs.dispatch(self._padding.rounded_tokens(tokens), uniform=uniform)
        return StepRows(descriptor.num_tokens, mode)
