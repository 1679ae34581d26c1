"""What becomes of a running request that loses its blocks.

plain scheduler, or no connector:   RUNNING --> PREEMPTED, first in the waiting queue, computed again here
recompute scheduler, by the connector's answer to `offload`:
    saved:                          RUNNING --> PREEMPTED; what was saved is loaded again at its next admission
    not saved, or no such hook:     RUNNING --> finished, stop reason "recomputed": the caller sends prompt and
                                    outputs so far to another engine
        the same, in 0.30 with projections that are split over ranks of their own:
                                        RUNNING --> aborted
"""

from __future__ import annotations

from enum import Enum

from vllm_ascend_split_batch.host_model.remote_kv.connector import Connector
from vllm_ascend_split_batch.host_model.request import Request

RECOMPUTED = "recomputed"


class Recovery(Enum):
    """Where a victim goes on."""

    HERE = "preempted; computed, or loaded, again here"
    NOWHERE = "aborted"
    ELSEWHERE = "finished; computed again by another engine"


def recovery_of(victim: Request, connector: Connector | None, *, recompute: bool, aborts_unsaved: bool) -> Recovery:
    """Where a victim goes on.

    Args:
        victim: still holds its blocks.
        connector: of the engine, None without one.
        recompute: the recompute scheduler is on.
        aborts_unsaved: what cannot be saved is lost: other engines could not take it over.
    """
    if not recompute:
        return Recovery.HERE
    saved = connector is not None and connector.offload is not None and connector.offload(victim)
    if saved:
        return Recovery.HERE
    return Recovery.NOWHERE if aborts_unsaved else Recovery.ELSEWHERE
