"""Keys and values that arrive from elsewhere while their request waits.

    WAITING or PREEMPTED --start--> LOADING --received--> RECEIVED --promote--> WAITING, or PREEMPTED if it ever was
                                       |                     |
                                    invalid               (the same with
                                       v                   fewer tokens)
                                    FAILED --received--> RECEIVED
    LOADING or FAILED --cancel--> finished; its blocks stay taken until --received-->
    RECEIVED --cancel--> finished

A failed load keeps the tokens before the first bad block, and the blocks of all; with none left the blocks are given
back and the request starts from scratch.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from vllm_ascend_split_batch.host_model.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm_ascend_split_batch.host_model.admission.kv_blocks import KvBlocks


class LoadState(Enum):
    """How far a load is."""

    LOADING = "loading"
    FAILED = "failed, not all of it has ended"
    RECEIVED = "received"
    CANCELLED = "cancelled, its blocks are still written"


class RemoteLoads:
    """The loads of one engine.

    Args:
        blocks: the engine's pool.
    """

    def __init__(self, blocks: KvBlocks) -> None:
        self._blocks = blocks
        self._states: dict[Request, LoadState] = {}
        self._failed: set[Request] = set()

    def __len__(self) -> int:
        """Loads that have not ended, and ended ones whose request was not promoted yet."""
        return len(self._states)

    def state(self, request: Request) -> LoadState | None:
        """How far the request's load is; None where it has none."""
        return self._states.get(request)

    def start(self, request: Request, tokens: int) -> None:
        """The request has blocks for `tokens` computed tokens, which are on their way."""
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.computed = tokens
        self._states[request] = LoadState.LOADING

    def invalid(self, request: Request, valid_tokens: int) -> None:
        """A part of the load failed: only the first tokens, whole blocks of them, are good."""
        request.computed = valid_tokens
        self._failed.add(request)
        self._states[request] = LoadState.FAILED

    def received(self, request: Request) -> bool:
        """The load has ended, well or not. True where the request had been cancelled: its blocks are free only now."""
        if self._states[request] is LoadState.CANCELLED:
            del self._states[request]
            self._blocks.release(request)
            return True
        self._states[request] = LoadState.RECEIVED
        return False

    def try_promote(self, request: Request) -> bool:
        """Let a request whose load has ended wait for admission again; whether it does."""
        if self._states[request] is not LoadState.RECEIVED:
            return False
        del self._states[request]
        if request not in self._failed:
            request.hashed_tokens = max(request.hashed_tokens, request.computed)
            # One token has to be computed here, to have something to sample from.
            request.computed = min(request.computed, request.num_tokens - 1)
        elif request.computed:
            request.hashed_tokens = max(request.hashed_tokens, request.computed)
        else:
            self._blocks.release(request)
        self._failed.discard(request)
        request.status = RequestStatus.PREEMPTED if request.preemptions else RequestStatus.WAITING
        return True

    def cancel(self, request: Request) -> bool:
        """The request was aborted while it waited. True: its blocks must stay taken until the load ends."""
        self._failed.discard(request)
        if self._states.pop(request) is LoadState.RECEIVED:
            return False
        self._states[request] = LoadState.CANCELLED
        return True
