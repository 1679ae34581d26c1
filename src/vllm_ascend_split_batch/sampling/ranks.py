"""Tensor-parallel ranks draw the same tokens, or none of them draws by our kernels.

Every rank of a tensor-parallel group samples for itself and goes on with its own token: ranks that draw differently
would compute nonsense from then on. So the ranks compare their settings once, before the first draw; and when a draw
fails, the host's chain may only take over if it failed on every rank. Both go through the store by which the processes
found each other: no collective, because a rank on which this carrier is not installed takes part in none, and nothing
at all while draws succeed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

#: Seconds to wait for the other ranks: they are in the same step, so that only start-up and compilation part them.
PATIENCE = 60.0


class Store(Protocol):
    """What is used of ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...


class RanksDiverged(RuntimeError):
    """A draw failed on this rank and not on all others: going on would give wrong tokens."""


class Ranks:
    """One tensor-parallel group, seen from one of its ranks."""

    def __init__(self, store: Store, rank: int, members: Sequence[int], patience: float = PATIENCE) -> None:
        self._store = store
        self._rank = rank
        self._members = list(members)
        self._patience = timedelta(seconds=patience)

    def agree(self, settings: str) -> bool:
        """Whether every rank has these settings; false, too, where one does not answer in time."""
        try:
            return set(self._exchange("settings", settings)) == {settings}
        except Exception:  # the store's own error types differ between releases of torch
            return False

    def failed_everywhere(self, step: int) -> None:
        """Return when the draw of this step failed on every rank.

        Raises:
            RanksDiverged: it did not, as far as can be seen in time.
        """
        try:
            self._exchange(f"failed/{step}", "failed")
        except Exception as error:
            raise RanksDiverged(
                f"fi-sampling: the draw of step {step} failed on rank {self._rank} of the tensor-parallel ranks "
                f"{self._members} and not on all of them within {self._patience.total_seconds():g} s; their tokens "
                "would differ, so this engine ends. Unset VLLM_HUST_FI_SAMPLING to run without fi-sampling"
            ) from error

    def _exchange(self, topic: str, value: str) -> list[str]:
        prefix = f"fi-sampling/{'-'.join(map(str, self._members))}/{topic}"
        self._store.set(f"{prefix}/{self._rank}", value)
        keys = [f"{prefix}/{member}" for member in self._members]
        self._store.wait(keys, self._patience)
        return [self._store.get(key).decode() for key in keys]


def of_this_process(group: Any) -> Ranks | None:
    """The ranks of a tensor-parallel group of the host (its `GroupCoordinator`); ``None`` where there is one alone."""
    if group.world_size == 1:
        return None
    from torch.distributed import distributed_c10d

    return Ranks(distributed_c10d._get_default_store(), int(group.rank), [int(rank) for rank in group.ranks])
