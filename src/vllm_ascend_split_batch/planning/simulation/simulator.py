"""The simulation's loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from vllm_ascend_split_batch.host_model.admission import Engine, Request, StepResult
from vllm_ascend_split_batch.planning.simulation.outcome import Outcome
from vllm_ascend_split_batch.planning.simulation.setup import Setup
from vllm_ascend_split_batch.planning.simulation.step_graphs import StepGraphs
from vllm_ascend_split_batch.planning.simulation.step_totals import StepTotals
from vllm_ascend_split_batch.planning.traces import TraceRequest

_ENDLESS = 1 << 40


class Simulation:
    """One trace through one engine.

    Steps follow one another without a pause while there is work. A request that arrives during a step enters the
    waiting queue when that step ends, as requests do that reach the host's engine core, and ages from then on. A
    step's tokens are known when it ends.

    Args:
        setup: the engine.

    Attributes:
        totals: what the steps so far add up to.
        now: the virtual clock, seconds of the trace.

    Raises:
        HostFailure, ValueError: the host refuses the settings.

    >>> from vllm_ascend_split_batch.planning.traces import TraceRequest
    >>> outcomes = list(Simulation(Setup()).run([TraceRequest("a", 0.0, 100, 3)]))
    >>> # 32 ms and 100 tokens of 100 us; then two steps of 20 ms and a row
    >>> round(outcomes[0].first_token, 6), round(outcomes[0].finished, 6), outcomes[0].reason
    (0.042, 0.08212, 'stop')
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.totals = StepTotals()
        self.now = 0.0
        self._engine = Engine(setup.engine)
        self._graphs = StepGraphs(setup.host)
        self._outcomes: dict[Request, Outcome] = {}

    def run(
        self, requests: Sequence[TraceRequest], progress: Callable[[int], object] | None = None
    ) -> Iterator[Outcome]:
        """Simulate to the end. May be called once.

        Args:
            requests: in the order of their arrival.
            progress: called with the number of outcomes since its last call.

        Yields:
            Outcomes in the order in which requests finish; those that never do at the end.

        Raises:
            TooManyJobs: the host's engine would end here.
        """
        engine, arrived, total = self._engine, 0, len(requests)
        self.now = requests[0].arrival if requests else 0.0
        idle = 0
        while True:
            while arrived < total and requests[arrived].arrival <= self.now:
                refused = self._add(requests[arrived])
                arrived += 1
                if refused:
                    yield refused
            upcoming = requests[arrived].arrival if arrived < total else None
            if not engine.has_work or idle > 1:
                if upcoming is None:
                    break
                self.now, idle = upcoming, 0
                continue
            result = engine.step(self.now, self._steps_until(upcoming))
            idle = 0 if result.num_requests or result.finished else idle + 1
            began = self.now
            self._pass_time(result)
            finished = self._note(result, began)
            yield from finished
            if progress and finished:
                progress(len(finished))
        left = list(self._outcomes.values())
        yield from left
        if progress:
            progress(len(left))

    def _add(self, traced: TraceRequest) -> Outcome | None:
        outcome = Outcome(traced)
        try:
            request = Request(
                traced.id,
                traced.prompt_tokens,
                traced.output_tokens,
                traced.arrival,
                traced.job,
                traced.priority,
                traced.max_tokens,
            )
            self._engine.add(request, self.now)
        except ValueError as error:
            outcome.reason, outcome.why = "rejected", str(error)
            return outcome
        self._outcomes[request] = outcome
        return None

    def _steps_until(self, upcoming: float | None) -> int:
        """How many steps of the requests that run now begin before the next request arrives."""
        running = self._engine.num_running
        if upcoming is None or not running:
            return _ENDLESS if running else 1
        return max(1, math.ceil((upcoming - self.now) / self._decode_seconds(running)))

    def _decode_seconds(self, requests: int) -> float:
        rows, mode = self._graphs.decode(requests)
        return self.setup.step_time.seconds(rows=rows, prompt_tokens=0, in_graph=mode != 0)

    def _pass_time(self, result: StepResult) -> None:
        tokens = result.num_tokens
        if not tokens:
            return
        rows, mode = self._graphs.of(result)
        prompt_tokens = tokens - result.decodes
        seconds = self.setup.step_time.seconds(rows=rows, prompt_tokens=prompt_tokens, in_graph=mode != 0)
        self.totals.count(
            steps=result.steps, tokens=tokens, rows=rows, mode=mode, decode=not prompt_tokens, seconds=seconds
        )
        self.now += result.steps * seconds

    def _note(self, result: StepResult, began: float) -> list[Outcome]:
        # With asynchronous scheduling the outputs are those of the step before, which ended when this one began.
        known = began if self.setup.engine.asynchronous else self.now
        for request in result.admitted:
            outcome = self._outcomes[request]
            if outcome.admitted is None:
                outcome.admitted = began
        for request in result.first_tokens:
            self._outcomes[request].first_token = known
        finished = []
        for request in result.finished:
            outcome = self._outcomes.pop(request)
            outcome.finished = known
            outcome.outputs = request.outputs
            outcome.preemptions = request.preemptions
            outcome.reason = request.finish_reason or "stop"
            finished.append(outcome)
        return finished
