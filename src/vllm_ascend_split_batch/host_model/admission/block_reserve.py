"""Blocks that BatchJobAware keeps free for running requests, so that admitting does not lead to preemption."""

from __future__ import annotations

from vllm_ascend_split_batch.host_model.admission.job_predictor import BatchJobSettings
from vllm_ascend_split_batch.host_model.admission.running import RunningRequests
from vllm_ascend_split_batch.host_model.request import Request


class RunningReserve:
    """Predicts how many blocks the next step will ask for.

    The sum is remembered by the number of running requests: with as many as before it is not computed anew, with one
    more the newest alone is added, whatever else changed meanwhile.

    Args:
        settings: of the policy.
        block_size: tokens of a block.
        max_tokens: most tokens of a step.
        lookahead_tokens: draft tokens for which slots are kept.
        running: the running requests.
    """

    def __init__(
        self,
        settings: BatchJobSettings,
        *,
        block_size: int,
        max_tokens: int,
        lookahead_tokens: int,
        running: RunningRequests,
    ) -> None:
        self._settings = settings
        self._block_size = block_size
        self._max_tokens = max_tokens
        self._decode_tokens = 1 + lookahead_tokens
        self._running = running
        self._sum = 0
        self._running_then = -1

    def forget(self) -> None:
        """Compute anew when asked next; the scheduler says so at the start of each step."""
        self._running_then = -1

    def blocks(self) -> int:
        """Blocks to keep free."""
        running = len(self._running)
        if running != self._running_then:
            if self._running_then >= 0 and running == self._running_then + 1:
                self._sum += self.next_blocks(self._running.newest)
            else:
                self._sum = self._blocks_of_all()
            self._running_then = running
        return min(self._sum + self._settings.reserve_margin_blocks, self._settings.reserve_max_blocks)

    def budget_tokens(self, free_blocks: int) -> int:
        """Tokens that fit beyond the reserve."""
        return max(0, (free_blocks - self.blocks()) * self._block_size)

    def next_blocks(self, request: Request) -> int:
        """Blocks that a running request will need beyond this step: it goes on by this step, then by the next one."""
        computed, prompt = request.computed, request.prompt_tokens
        after = computed + self._step_tokens(prompt - computed)
        tokens = self._step_tokens(prompt - after)
        room = -after % self._block_size
        return max(0, -(-(tokens - room) // self._block_size))

    def _step_tokens(self, prompt_left: int) -> int:
        return min(prompt_left, self._max_tokens) if prompt_left > 0 else self._decode_tokens

    def _blocks_of_all(self) -> int:
        if self._decode_tokens > 1:
            return sum(self.next_blocks(request) for request in self._running)
        # Who decodes needs a block exactly where the round after the coming one starts one.
        others = sum(self.next_blocks(request) for request in self._running.others)
        return others + self._running.rounds.num_due(ahead=1)
