"""An engine driven step by step on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vllm_ascend_split_batch.host_model.admission.scheduler import ScheduledStep, Scheduler
from vllm_ascend_split_batch.host_model.admission.settings import EngineSettings, Policy
from vllm_ascend_split_batch.host_model.admission.step_result import StepResult
from vllm_ascend_split_batch.host_model.remote_kv.connector import Connector
from vllm_ascend_split_batch.host_model.request import Request


class Engine:
    """Requests in, steps out. Time is what the caller says it is: `now` in seconds of any origin, never decreasing.

    Args:
        settings: of the engine.
        connector: None: no keys and values from elsewhere.

    Example:
        >>> engine = Engine(EngineSettings(max_num_seqs=1))
        >>> engine.add(Request("a", prompt_tokens=64, output_tokens=2), now=0.0)
        >>> engine.step(0.0).prefills
        [(Request('a', 64+1/2, RUNNING), 64)]
        >>> engine.step(0.001).finished
        [Request('a', 64+2/2, FINISHED_STOPPED)]
    """

    def __init__(self, settings: EngineSettings, connector: Connector | None = None) -> None:
        self.settings = settings
        self.scheduler = Scheduler(settings, connector)
        self._idle = False

    @property
    def num_running(self) -> int:
        """Running requests."""
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, for admission or for keys and values."""
        return len(self.scheduler.waiting) + len(self.scheduler.skipped)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.scheduler.blocks.free

    @property
    def has_work(self) -> bool:
        """A request is unfinished, or outputs are still to be told."""
        return bool(self.num_running or self.num_waiting or self.scheduler.undelivered)

    @property
    def blocked(self) -> bool:
        """The last step did nothing, and so will the next one unless time, a load or an arrival changes something."""
        return self._idle and not self.num_running and self.num_waiting > 0

    def add(self, request: Request, now: float) -> None:
        """A request arrives.

        Raises:
            ValueError: the model length leaves no room for its prompt and one token.
        """
        room = self.settings.max_model_len - request.prompt_tokens
        if room < 1:
            raise ValueError(
                f"request {request.request_id!r}: a prompt of {request.prompt_tokens} tokens leaves no room for output "
                f"in max_model_len ({self.settings.max_model_len})"
            )
        most = room if request.max_tokens is None else min(room, request.max_tokens)
        request.last_output = min(request.output_tokens, most)
        self._idle = False
        self.scheduler.add(request, now)

    def abort(self, request: Request) -> None:
        """A caller gave up. Unknown and finished requests are passed over."""
        if not request.status.is_finished:
            self.scheduler.abort(request)

    def step(
        self,
        now: float,
        at_most: int = 1,
        *,
        loads_failed: Mapping[Request, int] | None = None,
        loads_ended: Iterable[Request] = (),
    ) -> StepResult:
        """Schedule one step, and make the outputs that are known by then count.

        Args:
            now: the time at which the step is scheduled.
            at_most: do up to this many steps at once, where they are the same step of decoding requests alone.
            loads_failed: requests whose load failed, with the first bad block, as workers report with the outputs.
            loads_ended: requests whose load has ended, likewise.
        """
        scheduler = self.scheduler
        if at_most > 1 and not loads_failed and not loads_ended:
            equal = self._equal_steps(at_most)
            if equal:
                return equal
        step = scheduler.schedule(now)
        result = step.result
        known: ScheduledStep | None = step
        if self.settings.asynchronous:
            known, scheduler.undelivered = scheduler.undelivered, (step if result.num_requests else None)
        if loads_failed:
            scheduler.loads_failed(loads_failed)
        if known is not None:
            scheduler.deliver(known, result)
        scheduler.loads_ended(loads_ended)
        self._idle = not (result.num_requests or result.finished or result.loading)
        return result

    def _equal_steps(self, at_most: int) -> StepResult | None:
        """Several steps in which all running requests decode, and nothing else happens; None: not even one."""
        scheduler = self.scheduler
        rounds = scheduler.running.rounds
        before = scheduler.undelivered
        if scheduler.running.others or not len(rounds) or (before and (before.ending or before.sampled)):
            return None
        if self.num_waiting and self.num_running < self.settings.max_num_seqs and not self._waits_for_blocks():
            return None
        steps = rounds.quiet_rounds(at_most, scheduler.blocks.free)
        if not steps:
            return None
        for ahead in range(steps):
            scheduler.blocks.allocate(rounds.num_due(ahead))
        rounds.advance(steps)
        return StepResult(steps=steps, decodes=len(rounds))

    def _waits_for_blocks(self) -> bool:
        """Whether the request to admit next found too few blocks, and will as long as nobody gives blocks back."""
        scheduler = self.scheduler
        return (
            scheduler.stopped_for_blocks
            and self.settings.policy in (Policy.FCFS, Policy.PRIORITY)
            and self.settings.reserve_full_prompt
            and not scheduler.skipped
        )
