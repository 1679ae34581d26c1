"""What one step of the engine did."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm_ascend_split_batch.host_model.request import Request


@dataclass
class StepResult:
    """One step, or several equal ones.

    Attributes:
        steps: equal steps covered; everything else is per one of them.
        decodes: requests that computed one token, the newest one, after earlier ones.
        prefills: requests that computed prompt tokens (after preemption also earlier outputs), and how many.
        admitted: requests that began to run, or did again, in order.
        loading: requests that were given blocks and now wait for remote keys and values.
        preempted: requests that lost their place; they wait again.
        recomputed: requests that lost their place and left the engine, for another one to compute them again.
        aborted: requests that lost their place and left the engine for good.
        first_tokens: requests whose first token is known.
        finished: requests that produced their last token, in the order of the batch.

    The last two are of this step, known at its end; with asynchronous scheduling they are of the step before it.
    """

    steps: int = 1
    decodes: int = 0
    prefills: list[tuple[Request, int]] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    loading: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    recomputed: list[Request] = field(default_factory=list)
    aborted: list[Request] = field(default_factory=list)
    first_tokens: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of one step."""
        return self.decodes + sum(tokens for _, tokens in self.prefills)

    @property
    def num_requests(self) -> int:
        """Requests in the batch of one step."""
        return self.decodes + len(self.prefills)
