"""How many rows ran out of rounds: counted on the device, and read so that nothing waits for it."""

from __future__ import annotations

from typing import Any

#: Joint steps between two looks at the device's counts.
INTERVAL = 1024


class CapCounter:
    """Counts of one device, a number per row, that kernels add to.

    Every :data:`INTERVAL` steps a copy to pinned memory is queued behind the step's kernels; it is looked at in a
    later step, once its event says that it has arrived. No step waits, and most copy nothing.
    """

    def __init__(self) -> None:
        self._counts: Any = None
        self._steps = 0
        self._copy: Any = None
        self._arrived: Any = None
        #: Rows that ran out of rounds, as of the newest copy that has arrived.
        self.total = 0
        self._of_smaller_buffers = 0

    def rows(self, count: int, device: Any) -> Any:
        """The counts of a step's rows: int32 ``(count,)`` on ``device``, for a kernel to add to."""
        import torch

        if self._counts is None or len(self._counts) < count:
            # A count in a buffer that has become too small is lost unless it was seen: batches grow a few times only.
            self._of_smaller_buffers = self.total
            self._copy = None
            self._counts = torch.zeros(max(count, 256), dtype=torch.int32, device=device)
        return self._counts[:count]

    def step_done(self) -> int:
        """To be called after each joint step; the number of rows known to have run out of rounds."""
        import torch

        self._steps += 1
        if self._copy is not None and self._arrived.query():
            self.total = self._of_smaller_buffers + int(self._copy.sum())
            self._copy = None
        if self._steps % INTERVAL == 0 and self._copy is None:
            pinned = self._counts.device.type != "cpu"
            copy = torch.empty(len(self._counts), dtype=torch.int32, pin_memory=pinned)
            copy.copy_(self._counts, non_blocking=True)
            self._arrived = getattr(torch, self._counts.device.type).Event() if pinned else _Here()
            self._arrived.record()
            self._copy = copy
        return self.total


class _Here:
    """The event of a copy that was made at once."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True
