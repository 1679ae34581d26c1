"""One step: from scheduled tokens to the mode, the graph and the padded tokens of every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_ascend_split_batch.host_model.padding.capture_sizes import capture_sizes
from vllm_ascend_split_batch.host_model.padding.data_parallel import Agreement, RankChoice, agree, never
from vllm_ascend_split_batch.host_model.padding.dispatch import ALL_MODES, Descriptor, GraphDispatch
from vllm_ascend_split_batch.host_model.padding.modes import RuntimeMode
from vllm_ascend_split_batch.host_model.padding.releases import HostFailure
from vllm_ascend_split_batch.host_model.padding.settings import HostSettings


@dataclass(frozen=True)
class Batch:
    """What the scheduler gives one rank for a step.

    Attributes:
        scheduled_tokens: of each request, in this step.
        computed_tokens: of each request, before this step.
        prompt_tokens: prompt length of each request; None where no rule in force looks at it.
        cascade_attention: cascade attention is used, which full graphs exclude.
        encoder_requests: requests with encoder output in this step.
        num_active_loras: LoRA adapters of the batch.
    """

    scheduled_tokens: tuple[int, ...]
    computed_tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...] | None = None
    cascade_attention: bool = False
    encoder_requests: int = 0
    num_active_loras: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return sum(self.scheduled_tokens)

    @property
    def num_requests(self) -> int:
        """Requests of the step."""
        return len(self.scheduled_tokens)


@dataclass(frozen=True)
class Execution:
    """How one rank runs its step.

    Attributes:
        mode: none, or the kind of graph.
        descriptor: of the graph, or of the step as it is.
        tokens_across_ranks: what this rank believes of all data-parallel ranks; None where there is one.
    """

    mode: RuntimeMode
    descriptor: Descriptor
    tokens_across_ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Disagreement:
    """A hazard of data parallelism: a rank believes another to run other tokens than it does."""

    rank: int
    other: int
    believed_tokens: int
    actual_tokens: int


class StepPadding:
    """The padding of an engine's steps.

    Args:
        settings: of the engine.
        ladder: its capture sizes; None: those of `capture_sizes(settings)`.

    Raises:
        HostFailure: the host refuses the settings at start-up.
    """

    def __init__(self, settings: HostSettings, ladder: Sequence[int] | None = None) -> None:
        self.settings = settings
        self.ladder = tuple(capture_sizes(settings) if ladder is None else ladder)
        self.graphs = GraphDispatch(settings, self.ladder)

    def rounded_tokens(self, num_tokens: int) -> int:
        """Tokens rounded up to a multiple of the tensor-parallel size where tokens are sharded."""
        if not self.settings.rounds_tokens:
            return num_tokens
        parallel = self.settings.tensor_parallel_size
        return -(-num_tokens // parallel) * parallel

    def is_uniform_decode(self, batch: Batch) -> bool:
        """Whether the batch counts as a decode batch: equal query lengths, and none at its start."""
        query_length = self.settings.uniform_query_length
        same_length = (
            max(batch.scheduled_tokens) == query_length and batch.num_tokens == query_length * batch.num_requests
        )
        return same_length and self._past_the_start(batch)

    def choose(self, batch: Batch) -> Execution:
        """What one rank dispatches before it hears of others.

        Raises:
            HostFailure: the host stops at this batch.
        """
        tokens = self.rounded_tokens(batch.num_tokens)
        excludes_full = batch.cascade_attention or (self.settings.is_encoder_decoder and batch.encoder_requests > 0)
        mode, descriptor = self._dispatch(batch, tokens, ALL_MODES - ({RuntimeMode.FULL} if excludes_full else set()))
        if self.settings.sequence_parallel and descriptor.num_tokens % self.settings.tensor_parallel_size:
            raise HostFailure(f"{descriptor.num_tokens} padded tokens are no multiple of the tensor-parallel size")
        return Execution(mode, descriptor)

    def execute(self, batch: Batch) -> Execution:
        """How the only rank runs its batch."""
        if self.settings.data_parallel_size != 1:
            raise ValueError("execute() is for one data-parallel rank; use execute_ranks()")
        return self.choose(batch)

    def execute_ranks(
        self, batches: Sequence[Batch], *, skipped: bool, needs_equal_tokens: Callable[[int], bool] = never
    ) -> tuple[Execution, ...]:
        """How each data-parallel rank runs its batch; for the arguments see `agree`.

        Raises:
            HostFailure: the host stops on some rank.
            ValueError: not one batch per rank.
        """
        if len(batches) != self.settings.data_parallel_size:
            raise ValueError(f"{len(batches)} batches for {self.settings.data_parallel_size} data-parallel ranks")
        chosen = [self.choose(batch) for batch in batches]
        choices = [RankChoice(execution.descriptor.num_tokens, execution.mode) for execution in chosen]
        views = agree(self.settings, choices, skipped=skipped, needs_equal_tokens=needs_equal_tokens)
        return tuple(
            self.execute_agreed(batch, rank, view)
            for rank, (batch, view) in enumerate(zip(batches, views, strict=True))
        )

    def execute_agreed(self, batch: Batch, rank: int, view: Agreement) -> Execution:
        """How a rank runs its batch after the agreement: dispatched once more, in the agreed mode alone."""
        tokens = view.tokens_across_ranks[rank]
        mode, descriptor = self._dispatch(batch, tokens, frozenset({view.mode}))
        if descriptor.num_tokens != tokens:
            raise HostFailure(f"rank {rank} agreed on {tokens} tokens and dispatches {descriptor.num_tokens}")
        return Execution(mode, descriptor, view.tokens_across_ranks)

    @staticmethod
    def disagreements(executions: Sequence[Execution]) -> tuple[Disagreement, ...]:
        """Where ranks believe one another to run other tokens than they do."""
        return tuple(
            Disagreement(rank, other, believed, executions[other].descriptor.num_tokens)
            for rank, execution in enumerate(executions)
            for other, believed in enumerate(execution.tokens_across_ranks or ())
            if believed != executions[other].descriptor.num_tokens
        )

    def _dispatch(
        self, batch: Batch, num_tokens: int, allowed: frozenset[RuntimeMode]
    ) -> tuple[RuntimeMode, Descriptor]:
        return self.graphs.dispatch(
            num_tokens,
            uniform=self.is_uniform_decode(batch),
            num_active_loras=batch.num_active_loras,
            allowed=allowed,
        )

    def _past_the_start(self, batch: Batch) -> bool:
        rules = self.settings.release.rules
        computed = batch.computed_tokens
        if rules.computed_tokens_need_speculation and self.settings.num_speculative_tokens == 0:
            return True
        if any(tokens <= 0 for tokens in computed):
            return False
        under_dcp = self.settings.decode_context_parallel_size > 1
        whole_prompt = (rules.whole_prompt_under_dcp and under_dcp) or (
            rules.whole_prompt_of_hybrids and self.settings.is_hybrid
        )
        if not whole_prompt:
            return True
        if batch.prompt_tokens is None:
            raise ValueError("this engine's decode test needs the requests' prompt lengths")
        # A decode instance that recomputes starts from transferred state and computes the last prompt token again.
        resumes = rules.whole_prompt_of_hybrids and not under_dcp and self.settings.recompute_decode_instance
        return all(
            done >= prompt or (resumes and done == prompt - 1)
            for done, prompt in zip(computed, batch.prompt_tokens, strict=True)
        )
