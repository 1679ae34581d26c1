"""The scheduler's frame: running requests first, then two waiting queues, within tokens, places and blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from vllm_ascend_split_batch.host_model.admission.kv_blocks import KvBlocks
from vllm_ascend_split_batch.host_model.admission.policies import Waiting, waiting_queues
from vllm_ascend_split_batch.host_model.admission.queues import WaitingQueue
from vllm_ascend_split_batch.host_model.admission.running import RunningRequests
from vllm_ascend_split_batch.host_model.admission.running_pass import RunningPass
from vllm_ascend_split_batch.host_model.admission.settings import EngineSettings, Policy
from vllm_ascend_split_batch.host_model.admission.step_result import StepResult
from vllm_ascend_split_batch.host_model.padding.releases import HostFailure
from vllm_ascend_split_batch.host_model.recovery.recompute import RECOMPUTED, Recovery, recovery_of
from vllm_ascend_split_batch.host_model.remote_kv.connector import Connector
from vllm_ascend_split_batch.host_model.remote_kv.loads import RemoteLoads
from vllm_ascend_split_batch.host_model.request import Request, RequestStatus


class ScheduledStep:
    """One scheduled step, until its outputs are known.

    Attributes:
        result: what the caller is told.
        chunks: tokens of the requests that do not take part in decode rounds.
        sampled: of those, the ones that produce a token, and which of their outputs that is.
        ending: requests that produce their last token.
        stale: requests that lost their place after they were scheduled in this step: their token is still to come.
    """

    __slots__ = ("chunks", "ending", "result", "sampled", "stale")

    def __init__(self) -> None:
        self.result = StepResult()
        self.chunks: dict[Request, int] = {}
        self.sampled: list[tuple[Request, int]] = []
        self.ending: list[Request] = []
        self.stale: list[Request] = []


class Scheduler:
    """The host's scheduler of one engine, without clock and without tokens.

    Args:
        settings: of the engine.
        connector: None: no keys and values from elsewhere.
    """

    def __init__(self, settings: EngineSettings, connector: Connector | None = None) -> None:
        self.settings = settings
        self.connector = connector
        rules = settings.rules
        self.blocks = KvBlocks(
            settings.num_blocks,
            settings.block_size,
            caching=settings.prefix_caching,
            unhashed_first=rules.unhashed_first,
        )
        self.running = RunningRequests(settings.block_size, in_flight=1 if settings.asynchronous else 0)
        self.policy: Waiting = waiting_queues(settings, self.running, self.blocks)
        self.waiting: WaitingQueue = self.policy.waiting
        self.skipped: WaitingQueue = self.policy.skipped
        self.loads = RemoteLoads(self.blocks)
        self.running_pass = RunningPass(self)
        self.undelivered: ScheduledStep | None = None
        self.stopped_for_blocks = False
        self._defers_frees = settings.defers_frees and connector is not None
        self._deferred: deque[tuple[int, Request]] = deque()  # until that step's outputs are known
        self._steps_scheduled = self._steps_delivered = 0
        self._watermark = int(settings.watermark * settings.num_blocks)
        self._prefilling: dict[Request, None] = {}  # with blocks still to come, loads included

    # What a balanced scheduler does otherwise.

    def begin(self, now: float) -> None:
        """A step is about to be scheduled."""

    def admits(self, request: Request) -> bool:
        """Whether a waiting request may be admitted in this step; else it is passed over."""
        del request
        return True

    # What enters and leaves.

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        self.stopped_for_blocks = False
        self.waiting.add(request, now)

    def abort(self, request: Request) -> None:
        """Take an unfinished request out, wherever it is."""
        if request.status is RequestStatus.RUNNING:
            self._stop_running(request)
        else:
            self.waiting.remove((request,))
            self.skipped.remove((request,))
        keep_blocks = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and self.loads.cancel(request)
        self._leave(request, RequestStatus.FINISHED_ABORTED, "abort", keep_blocks=keep_blocks)

    # One step.

    def schedule(self, now: float) -> ScheduledStep:
        """Choose the next step's requests and tokens, and count these as computed.

        Raises:
            HostFailure: the host's engine ends here.
            TooManyJobs: so it does.
        """
        step = ScheduledStep()
        self.begin(now)
        self.policy.step_begins()
        budget = self.running_pass.schedule(step, now)
        self.stopped_for_blocks = False
        if not step.result.preempted and not step.result.recomputed:
            self._admit(step, budget, now)
        self._advance(step)
        return step

    def deliver(self, step: ScheduledStep, result: StepResult) -> None:
        """The outputs of a step are known: tell `result`, and let requests end."""
        self._steps_delivered += 1
        while self._deferred and self._deferred[0][0] <= self._steps_delivered:
            self.blocks.release(self._deferred.popleft()[1])
        for request in step.stale:
            if not request.status.is_finished:
                request.outputs += 1
        for request, output in step.sampled:
            if request.status is RequestStatus.FINISHED_ABORTED:
                continue
            if request.pending and not request.in_rounds:
                request.pending -= 1
                request.hashed_tokens = max(request.hashed_tokens, request.computed - request.pending)
            if output == 1:
                result.first_tokens.append(request)
        for request in sorted(step.ending, key=lambda request: request.order):
            if not request.status.is_finished:
                self._finish(request)
            elif request.finish_reason != RECOMPUTED or not self.settings.rules.recomputed_answers:
                continue
            result.finished.append(request)

    def frees_later(self, victim: Request) -> bool:
        """Whether it is no use to take a running request's place: its blocks would not be free in this step."""
        return self.settings.rules.waits_for_frees and self._still_written(victim)

    def lose(self, victim: Request, step: ScheduledStep, now: float) -> None:
        """A running request loses its place and its blocks."""
        unknown = self.settings.asynchronous and (victim.in_rounds or victim.pending)
        self._stop_running(victim)
        recovery = recovery_of(
            victim,
            self.connector,
            recompute=self.settings.recompute,
            aborts_unsaved=self.settings.split_projections and self.settings.rules.recompute_aborts_split,
        )
        if recovery is not Recovery.HERE:
            elsewhere = recovery is Recovery.ELSEWHERE
            self._leave(victim, RequestStatus.FINISHED_ABORTED, RECOMPUTED if elsewhere else "abort")
            (step.result.recomputed if elsewhere else step.result.aborted).append(victim)
            return
        if unknown:
            victim.outputs -= 1
            victim.pending = 0
            if self.undelivered is not None:
                self.undelivered.stale.append(victim)
        self._release(victim)
        self._prefilling.pop(victim, None)
        victim.status = RequestStatus.PREEMPTED
        victim.computed = 0
        victim.preemptions += 1
        self.waiting.prepend(victim, now)
        step.result.preempted.append(victim)

    def leave_rounds(self, request: Request) -> None:
        """Look at a decoding request by itself from here on."""
        self.running.leave_rounds(request)
        request.scheduled_in = self._steps_scheduled
        if self.undelivered is not None:
            request.pending = 1
            if request not in self.undelivered.chunks:
                self.undelivered.sampled.append((request, 0))

    # The waiting requests.

    def _admit(self, step: ScheduledStep, budget: int, now: float) -> None:
        passed_over: list[Request] = []
        while budget > 0 and len(self.running) < self.settings.max_num_seqs:
            queue = self._queue_to_look_at(now)
            if queue is None:
                break
            request = queue.peek(now)
            waits = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and not self.loads.try_promote(request)
            if waits or not self.admits(request):
                passed_over.append(queue.pop(now))
                continue
            found = remote = 0
            asynchronous = False
            if request.computed == 0:
                found = self.blocks.found(request)
                if self.connector is not None:
                    match = self.connector.matched(request, found * self.settings.block_size)
                    if match is None:
                        passed_over.append(queue.pop(now))
                        continue
                    remote, asynchronous = match.tokens, match.asynchronous
            tokens = 0
            if not asynchronous:
                tokens = self._first_chunk(request, found, remote, budget)
                if tokens == 0:
                    break
            # A load makes no progress of its own: it must not take what requests under way will need.
            reserves = asynchronous and (self.settings.rules.recompute_reserves or not self.settings.recompute)
            reserved = sum(self._blocks_to_come(other) for other in self._prefilling) if reserves else 0
            margin = self._watermark if len(self.running) and not request.status.is_finished else 0
            if not self._allocate(request, found, remote, tokens, margin=margin, reserved=reserved):
                self.stopped_for_blocks = True
                break
            if self.connector is not None:
                self.connector.allocated(request, remote)
            queue.pop(now)
            computed = request.computed + found * self.settings.block_size + remote
            if asynchronous:
                self._start_load(request, computed)
                passed_over.append(request)
                step.result.loading.append(request)
                continue
            if request.status.is_finished:
                # The queue remembered a request that was aborted since.
                raise HostFailure(f"{request.request_id} is admitted after it was aborted")
            request.status = RequestStatus.RUNNING
            request.computed = computed
            self.running.append(request)
            if computed + tokens < request.num_tokens:
                self._prefilling[request] = None
            step.result.admitted.append(request)
            step.chunks[request] = tokens
            budget -= tokens
        for request in reversed(passed_over):
            self.skipped.prepend(request, now)

    def _queue_to_look_at(self, now: float) -> WaitingQueue | None:
        """Requests passed over earlier go first, whatever the policy; under "priority" the heads are compared."""
        skipped, waiting = self.skipped, self.waiting
        if self.settings.policy is Policy.PRIORITY and skipped and waiting:
            return waiting if waiting.peek(now) < skipped.peek(now) else skipped
        if skipped:
            return skipped
        return waiting if waiting else None

    def _first_chunk(self, request: Request, found: int, remote: int, budget: int) -> int:
        """Tokens that the request would compute in its first step; 0: it has to wait, and all behind it."""
        tokens = request.num_tokens - (request.computed + found * self.settings.block_size + remote)
        threshold = self.settings.long_prefill_token_threshold
        if threshold:
            tokens = min(tokens, threshold)
        if not self.settings.chunked_prefill and tokens > budget:
            return 0
        return min(tokens, budget)

    def _allocate(
        self, request: Request, found: int, remote: int, tokens: int, *, margin: int, reserved: int = 0
    ) -> bool:
        """Give a waiting request its first blocks, beyond a margin; False where too few are free.

        Args:
            request: waits.
            found: blocks of it that are found again.
            remote: tokens of it that come from elsewhere.
            tokens: to compute in this step; 0: it is loaded first.
            margin: blocks to leave free.
            reserved: more of them, unless the whole prompt is asked for.
        """
        blocks, longest = self.blocks, self.settings.max_model_len
        held = request.blocks + found
        if self.settings.reserve_full_prompt:
            whole = max(blocks.blocks_for(min(request.num_tokens, longest)) - held, 0) + found
            if whole + margin > blocks.free:
                return False
        computed = request.computed + found * blocks.block_size + remote
        new = max(blocks.blocks_for(min(computed + tokens, longest)) - held, 0)
        if new + found + margin > blocks.free - reserved:
            return False
        if found:
            blocks.reuse(request, found)
        blocks.allocate(new)
        request.blocks = held + new
        request.hashed_tokens = min(computed + tokens, request.num_tokens) if tokens else found * blocks.block_size
        return True

    def _start_load(self, request: Request, computed: int) -> None:
        self.loads.start(request, computed)
        self._prefilling[request] = None

    def _blocks_to_come(self, request: Request) -> int:
        whole = self.blocks.blocks_for(min(request.num_tokens, self.settings.max_model_len))
        return max(whole - request.blocks, 0)

    # After the choice.

    def _advance(self, step: ScheduledStep) -> None:
        """Count the scheduled tokens as computed, and the tokens that they will produce as produced."""
        result, rounds = step.result, self.running.rounds
        if len(rounds) or step.chunks:
            self._steps_scheduled += 1
        result.decodes = len(rounds)
        if len(rounds):
            step.ending = rounds.advance()
        for request, tokens in step.chunks.items():
            before = request.computed
            request.computed = before + tokens
            request.scheduled_in = self._steps_scheduled
            left = request.num_tokens - request.computed
            if tokens == 1 and before and not left:
                result.decodes += 1
            else:
                result.prefills.append((request, tokens))
            if left:
                continue
            self._prefilling.pop(request, None)
            request.outputs += 1
            step.sampled.append((request, request.outputs))
            ends = request.outputs == request.last_output
            if ends:
                step.ending.append(request)
            if self.settings.asynchronous:
                request.pending += 1
            elif ends:
                continue
            if not (ends and self.foresees_end(request)):
                self._join_rounds(request)

    def _join_rounds(self, request: Request) -> None:
        if request.blocks == self.blocks.blocks_for(request.computed):
            request.pending = 0
            self.running.join_rounds(request)

    def foresees_end(self, request: Request) -> bool:
        """Whether the scheduler knows before it sees the request's last token that there can be no more."""
        last = request.last_output
        return last == request.max_tokens or request.prompt_tokens + last >= self.settings.max_model_len

    def _finish(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._stop_running(request)
        else:  # it lost its place while its last token was under way
            self.waiting.remove((request,))
            self.skipped.remove((request,))
        request.outputs = request.last_output
        if request.outputs < request.output_tokens:
            self._leave(request, RequestStatus.FINISHED_LENGTH_CAPPED, "length")
        else:
            self.policy.stopped(request)
            self._leave(request, RequestStatus.FINISHED_STOPPED, "stop")

    def _leave(self, request: Request, status: RequestStatus, reason: str, *, keep_blocks: bool = False) -> None:
        request.status = status
        request.finish_reason = reason
        request.pending = 0
        self._prefilling.pop(request, None)
        self.stopped_for_blocks = False
        if not keep_blocks:
            self._release(request)

    def _stop_running(self, request: Request) -> None:
        if request.in_rounds:
            request.scheduled_in = self._steps_scheduled
        self.running.remove(request)

    def _still_written(self, request: Request) -> bool:
        return self._defers_frees and (request.in_rounds or request.scheduled_in > self._steps_delivered)

    def _release(self, request: Request) -> None:
        """Give a request's blocks back, at once or when no step under way can write them any more."""
        if request.blocks and self._still_written(request):
            self._deferred.append((self._steps_scheduled, request))
        else:
            self.blocks.release(request)

    # What workers report.

    def loads_failed(self, first_bad_block: Mapping[Request, int]) -> None:
        """Blocks of loads under way could not be filled: from the given block on the load is void."""
        for request, block in first_bad_block.items():
            self.loads.invalid(request, block * self.settings.block_size)

    def loads_ended(self, requests: Iterable[Request]) -> None:
        """These loads have ended."""
        for request in requests:
            self.loads.received(request)
