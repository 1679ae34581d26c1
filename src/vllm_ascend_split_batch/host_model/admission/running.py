"""The running requests, in the order in which they were admitted."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_ascend_split_batch.host_model.admission.decode_rounds import DecodeRounds
from vllm_ascend_split_batch.host_model.request import Request


class RunningRequests:
    """An ordered set: the newest is last. Each member either takes part in decode rounds or is among `others`."""

    def __init__(self, block_size: int, in_flight: int = 0) -> None:
        self.rounds = DecodeRounds(block_size, in_flight)
        self.others: dict[Request, None] = {}
        self._all: dict[Request, None] = {}
        self._admissions = 0

    def append(self, request: Request) -> None:
        """Add a request that was just admitted."""
        self._admissions += 1
        request.order = self._admissions
        self._all[request] = None
        self.others[request] = None

    def remove(self, request: Request) -> None:
        """Take a request out."""
        del self._all[request]
        if request.in_rounds:
            self.rounds.leave(request)
        else:
            del self.others[request]

    @property
    def newest(self) -> Request:
        """The request admitted last."""
        return next(reversed(self._all))

    def join_rounds(self, request: Request) -> None:
        """From now on the request decodes one token a step."""
        del self.others[request]
        self.rounds.join(request)

    def leave_rounds(self, request: Request) -> None:
        """From now on the request is looked at by itself."""
        self.rounds.leave(request)
        self.others[request] = None

    def others_in_order(self) -> list[Request]:
        """`others` in the order of admission."""
        return sorted(self.others, key=_order)

    def needing_attention(self) -> list[Request]:
        """Members that need a block in the coming round, and the others, in the order of admission."""
        return sorted([*self.rounds.due(), *self.others], key=_order)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._all)

    def __contains__(self, request: object) -> bool:
        return request in self._all


def _order(request: Request) -> int:
    return request.order
