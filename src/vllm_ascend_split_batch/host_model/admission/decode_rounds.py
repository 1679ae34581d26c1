"""Running requests that all decode one token a step, advanced together in constant time.

Nothing here decides anything: it is bookkeeping that makes a step cheap. A member's position follows the rounds' count;
the rounds in which it needs its next block, and the one after which it has produced its last token, are known when it
joins.
"""

from __future__ import annotations

from vllm_ascend_split_batch.host_model.request import Request


class DecodeRounds:
    """The members and their calendar.

    Args:
        block_size: tokens of a block.
        in_flight: tokens of a member that are not known yet when the next step is scheduled: 1 with asynchronous
            scheduling, else 0. A block counts as full, and can be found again, when its tokens are known.
    """

    def __init__(self, block_size: int, in_flight: int = 0) -> None:
        self.count = 0
        self._in_flight = in_flight
        self._size = 0
        self._block_size = block_size
        self._due: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self._ending: dict[int, dict[Request, None]] = {}

    def __len__(self) -> int:
        return self._size

    def join(self, request: Request) -> None:
        """Take a request that has computed all its tokens but the newest, and holds the blocks of those alone."""
        self._due[(self.count - request.computed) % self._block_size][request] = None
        left = request.last_output - request.outputs
        if left > 0:
            self._ending.setdefault(self.count + left, {})[request] = None
        request.enter_rounds(self)
        self._size += 1

    def leave(self, request: Request) -> None:
        """Let a member go: its position stands still, its blocks are those of its computed tokens."""
        computed = request.computed
        left = request.last_output - request.outputs
        del self._due[(self.count - computed) % self._block_size][request]
        if left > 0:
            self._ending[self.count + left].pop(request)
        request.enter_rounds(None)
        request.blocks = -(-computed // self._block_size)
        request.hashed_tokens = max(request.hashed_tokens, computed - self._in_flight)
        self._size -= 1

    def due(self) -> dict[Request, None]:
        """Members that need a block in the coming round."""
        return self._due[self.count % self._block_size]

    def num_due(self, ahead: int = 0) -> int:
        """How many members need a block in the round that many rounds after the coming one."""
        return len(self._due[(self.count + ahead) % self._block_size])

    def quiet_rounds(self, most: int, free_blocks: int) -> int:
        """How many of the coming rounds, `most` at most, end no member and find their blocks among the free ones."""
        for rounds in range(most):
            free_blocks -= self.num_due(rounds)
            if free_blocks < 0 or self._ending.get(self.count + rounds + 1):
                return rounds
        return most

    def advance(self, rounds: int = 1) -> list[Request]:
        """Go on by that many rounds; the members that then have produced their last token."""
        self.count += rounds
        return list(self._ending.pop(self.count, ()))
