"""How a rank prepares for DyntraLB's plan, and carries it out at its next step.

RUNNING --out--> PREEMPTED with its blocks and its progress, first in the waiting queue; not admitted again in this step
WAITING, PREEMPTED --into--> admitted if it fits; all others are passed over in this step
WAITING, PREEMPTED --prefetch--> WAITING_FOR_REMOTE_KVS, ahead of any plan
"""

from __future__ import annotations

from vllm_ascend_split_batch.host_model.admission.scheduler import Scheduler
from vllm_ascend_split_batch.host_model.admission.settings import EngineSettings, Policy
from vllm_ascend_split_batch.host_model.load_balance.planner import RankPlan, RankRequests
from vllm_ascend_split_batch.host_model.remote_kv.connector import Connector
from vllm_ascend_split_batch.host_model.request import Request, RequestStatus

ADMISSIBLE = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class BalancedScheduler(Scheduler):
    """A scheduler that follows a plan made for all ranks.

    Attributes:
        plan: of the next step; None: everybody may be admitted.
        prefetched: requests whose loads the last preparation began.

    Raises:
        ValueError: the release does not balance ranks.
    """

    def __init__(self, settings: EngineSettings, connector: Connector | None = None) -> None:
        if not settings.rules.has_load_balancing:
            raise ValueError(f"vllm-ascend {settings.release.value} does not balance ranks")
        super().__init__(settings, connector)
        self.plan: RankPlan | None = None
        self.prefetched: list[Request] = []
        self._candidates: list[Request] = []
        self._allowed: set[Request] | None = None

    def load(self, request: Request) -> int:
        """Blocks of a request's known tokens: the planner's unit."""
        return self.blocks.blocks_for(request.num_tokens)

    def prepare(self, *, prefetch: bool) -> RankRequests:
        """What the planner is told of this rank; loads are begun early where asked for."""
        for request in list(self.skipped):
            if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                self.loads.try_promote(request)
        self.prefetched = []
        not_ready = self._prefetch() if prefetch and self.connector is not None else set()
        self._candidates = [
            request
            for request in self._in_schedule_order()
            if request.status in ADMISSIBLE and request not in not_ready
        ]
        return RankRequests(
            tuple(self.load(request) for request in self.running),
            tuple(self.load(request) for request in self._candidates),
        )

    def begin(self, now: float) -> None:
        """Carry the plan out, before the step's requests are chosen."""
        self._allowed = None
        if self.plan is None:
            return
        out = list(self.plan.out)
        for request in list(self.running):
            if self.load(request) in out:
                out.remove(self.load(request))
                self._pause(request, now)
        into = [] if self.plan.freeze else list(self.plan.into)
        self._allowed = set()
        for request in self._candidates:
            if self.load(request) in into:
                into.remove(self.load(request))
                self._allowed.add(request)

    def admits(self, request: Request) -> bool:
        """Whether the plan lets this request be admitted."""
        return self._allowed is None or request in self._allowed

    def _pause(self, request: Request, now: float) -> None:
        self._stop_running(request)
        request.status = RequestStatus.PREEMPTED
        self.waiting.prepend(request, now)

    def _prefetch(self) -> set[Request]:
        """Begin the loads of requests that nothing is computed of; those that cannot be admitted for now."""
        limit = 2 * self.settings.max_num_seqs - len(self.running)
        looked_at, not_ready, moved = 0, set(), []
        for request in self._in_schedule_order():
            if request.status not in ADMISSIBLE or request.computed:
                continue
            if looked_at >= limit:
                not_ready.add(request)
                continue
            looked_at += 1
            found = self.blocks.found(request)
            assert self.connector is not None
            match = self.connector.matched(request, found * self.settings.block_size)
            if match is None:
                not_ready.add(request)
                continue
            if not match.asynchronous or not match.tokens:
                continue
            if not self._allocate(request, found, match.tokens, 0, margin=self._watermark):
                not_ready.add(request)
                continue
            self.connector.allocated(request, match.tokens)
            moved.append(request)
            self._start_load(request, found * self.settings.block_size + match.tokens)
        waiting = [request for request in moved if request in set(self.waiting)]
        self.waiting.remove(waiting)
        for request in waiting:
            self.skipped.add(request, 0.0)
        self.prefetched = moved
        return not_ready

    def _in_schedule_order(self) -> list[Request]:
        if self.settings.policy is not Policy.PRIORITY:
            return [*self.skipped, *self.waiting]
        waiting, skipped = list(self.waiting), list(self.skipped)
        ordered: list[Request] = []
        while waiting and skipped:
            ordered.append((waiting if waiting[0] < skipped[0] else skipped).pop(0))
        return ordered + waiting + skipped
