"""The first half of a step: tokens and blocks for the running requests, and who loses its place for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ascend_split_batch.host_model.admission.settings import Policy
from vllm_ascend_split_batch.host_model.request import Request

if TYPE_CHECKING:
    from vllm_ascend_split_batch.host_model.admission.scheduler import ScheduledStep, Scheduler


class RunningPass:
    """Schedules the running requests, in the order of their admission.

    Each gets the tokens that it has not computed: one where it decodes. Where its blocks are not free, another running
    request loses its place: the one admitted last, or under "priority" the one of the largest (priority, arrival),
    until they are, or it was the request itself: then nothing more is scheduled.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._settings = scheduler.settings
        self._running = scheduler.running
        self._blocks = scheduler.blocks

    def schedule(self, step: ScheduledStep, now: float) -> int:
        """Schedule them; the tokens that are left for others."""
        running, rounds, budget = self._running, self._running.rounds, self._settings.max_num_batched_tokens
        if self._scheduler.undelivered is not None:
            self._hold_back(self._scheduler.undelivered)
        if not running.others and rounds.num_due() <= self._blocks.free:
            self._blocks.allocate(rounds.num_due())
            return budget - len(rounds)
        by_priority = self._settings.policy is Policy.PRIORITY
        may_stop = self._settings.rules.waits_for_frees and self._settings.defers_frees
        if by_priority or may_stop or not self._everyone_fits(budget):
            for request in list(running):
                if request.in_rounds:
                    self._scheduler.leave_rounds(request)
            return self._one_by_one(step, budget, now)
        return self._those_needing_attention(step, budget, now)

    def _hold_back(self, before: ScheduledStep) -> None:
        """Who is known to end with the outputs under way is not scheduled again."""
        for request in before.ending:
            if request.in_rounds and self._scheduler.foresees_end(request):
                self._scheduler.leave_rounds(request)

    def _wanted(self, request: Request) -> int:
        """Tokens that a request outside decode rounds would compute, with the budget to itself."""
        if request.pending and request.outputs >= request.last_output and self._scheduler.foresees_end(request):
            return 0
        tokens = request.num_tokens - request.computed
        threshold = self._settings.long_prefill_token_threshold
        return min(tokens, threshold) if threshold else tokens

    def _everyone_fits(self, budget: int) -> bool:
        """Whether nobody's tokens depend on the order: at most the newest request gets what others leave."""
        left = budget - len(self._running.rounds)
        others = self._running.others
        if sum(self._wanted(request) for request in others) <= left:
            return True
        return len(others) == 1 and self._running.newest in others and left >= 0

    def _those_needing_attention(self, step: ScheduledStep, budget: int, now: float) -> int:
        """Only those that need a block, or more than one token, are looked at; the others decode in any case."""
        running, rounds = self._running, self._running.rounds
        spent = 0
        for request in running.needing_attention():
            if request not in running:
                break  # it lost its place, and all behind it
            if request.in_rounds:
                if not self._make_room(request, 1, step, now):
                    break
                self._blocks.allocate(1)
                continue
            tokens = min(self._wanted(request), budget - len(rounds) - spent)
            if tokens <= 0:
                continue
            if not self._give(request, tokens, step, now):
                break
            spent += tokens
        return budget - len(rounds) - spent

    def _one_by_one(self, step: ScheduledStep, budget: int, now: float) -> int:
        """Every running request, in order, within the budget that those before it left."""
        moves_up = self._settings.recompute or not self._settings.rules.passes_over_next
        order = list(self._running)
        position = 0
        while position < len(order) and budget > 0:
            request = order[position]
            tokens = min(self._wanted(request), budget)
            position += 1
            if tokens == 0:
                continue
            needed = self._needed(request, tokens)
            while needed > self._blocks.free:
                victim = self._victim()
                if self._scheduler.frees_later(victim):
                    return budget
                place = order.index(victim)
                del order[place]
                if place < position and (moves_up or victim in step.chunks):
                    position -= 1
                budget += step.chunks.pop(victim, 0)
                self._scheduler.lose(victim, step, now)
                if victim is request:
                    return budget
            self._take(request, tokens, needed, step)
            budget -= tokens
        return budget

    def _give(self, request: Request, tokens: int, step: ScheduledStep, now: float) -> bool:
        needed = self._needed(request, tokens)
        if not self._make_room(request, needed, step, now):
            return False
        self._take(request, tokens, needed, step)
        return True

    def _needed(self, request: Request, tokens: int) -> int:
        reach = min(request.computed + tokens, self._settings.max_model_len)
        return max(self._blocks.blocks_for(reach) - request.blocks, 0)

    def _take(self, request: Request, tokens: int, needed: int, step: ScheduledStep) -> None:
        self._blocks.allocate(needed)
        request.blocks += needed
        known = request.num_tokens - request.pending
        request.hashed_tokens = max(request.hashed_tokens, min(request.computed + tokens, known))
        step.chunks[request] = tokens

    def _make_room(self, request: Request, blocks: int, step: ScheduledStep, now: float) -> bool:
        """Free blocks for a request, at the cost of those admitted last; False where it was the last one itself."""
        while blocks > self._blocks.free:
            victim = self._running.newest
            self._scheduler.lose(victim, step, now)
            if victim is request:
                return False
        return True

    def _victim(self) -> Request:
        by_priority = self._settings.policy is Policy.PRIORITY
        if self._settings.recompute and not self._settings.rules.recompute_by_priority:
            by_priority = False
        if by_priority:
            return max(self._running, key=lambda request: (request.priority, request.arrival))
        return self._running.newest
