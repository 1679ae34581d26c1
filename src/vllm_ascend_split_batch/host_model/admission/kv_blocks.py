"""The pool of key/value blocks of one full-attention group: counts, and what a preempted request finds again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from vllm_ascend_split_batch.host_model.request import Request


@dataclass
class FreedBlocks:
    """Blocks next to each other in the queue of free blocks; those of one request keep what they hold until reused."""

    count: int


class KvBlocks:
    """Free blocks as the host's pool counts and orders them.

    With prefix caching, full blocks of a preempted or finished request stay findable until they are taken from the
    front of the free queue, the request's last block first. Prompts are taken to share nothing, so a block can only be
    found again by the request that filled it.

    Args:
        num_blocks: as the host counts them; one is never handed out.
        block_size: tokens of a block.
        caching: prefix caching is on.
        unhashed_first: partly filled blocks go to the front of the free queue, before all others.
    """

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool, unhashed_first: bool) -> None:
        self.block_size = block_size
        self.free = num_blocks - 1
        self._caching = caching
        self._unhashed_first = unhashed_first
        self._queue: deque[FreedBlocks] = deque([FreedBlocks(self.free)])

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold that many tokens."""
        return -(-tokens // self.block_size)

    def found(self, request: Request) -> int:
        """Blocks that a request without computed tokens finds again, from its first token on.

        The last token is computed in any case, to have something to sample from.
        """
        if request.freed is None:
            return 0
        return min(request.freed.count, (request.num_tokens - 1) // self.block_size)

    def reuse(self, request: Request, blocks: int) -> None:
        """Take found blocks out of the free queue: the request holds them again."""
        if request.freed is not None:
            request.freed.count -= blocks
            request.freed = None
        self.free -= blocks

    def allocate(self, blocks: int) -> None:
        """Take blocks from the front of the free queue. There must be as many."""
        self.free -= blocks
        if not self._caching:
            return
        while blocks:
            front = self._queue[0]
            if front.count > blocks:
                front.count -= blocks
                return
            blocks -= front.count
            front.count = 0
            self._queue.popleft()

    def release(self, request: Request) -> None:
        """Give a request's blocks back."""
        blocks, request.blocks = request.blocks, 0
        hashed = min(request.hashed_tokens // self.block_size, blocks)
        request.hashed_tokens = 0
        self.free += blocks
        request.freed = None
        if not self._caching or not blocks:
            return
        if blocks > hashed:
            loose = FreedBlocks(blocks - hashed)
            if self._unhashed_first:
                self._queue.appendleft(loose)
            else:
                self._queue.append(loose)
        if hashed:
            freed = FreedBlocks(hashed)
            self._queue.append(freed)
            if not request.status.is_finished:
                request.freed = freed
