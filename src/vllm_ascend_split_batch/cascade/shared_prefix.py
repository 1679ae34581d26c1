"""How many leading blocks every request of a batch has in common, by the ids themselves.

The core's scheduler announces a common prefix from reference counts; a block whose release is deferred keeps its count,
so that number has been too high for batches whose first blocks differ (vllm-project/vllm#55227). Equal block ids are
the fact that a shared read rests on, and comparing them costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def shared_blocks(ids: npt.NDArray[np.integer[Any]], limit: int) -> int:
    """The length of the longest common leading run of block ids.

    Args:
        ids: int array [requests, columns]; row r lists the blocks of request r in token order.
        limit: no more than this many columns count (columns behind it may hold leftovers of earlier requests).

    Returns:
        The largest n <= min(limit, columns) such that all rows agree in their first n ids; 0 without requests.
    """
    if ids.shape[0] == 0:
        return 0
    limit = min(limit, ids.shape[1])
    if limit <= 0:
        return 0
    head = ids[:, :limit]
    # A batch that shares nothing is the common case: look at one column before comparing all of them.
    first = head[:, 0].tolist()
    if first.count(first[0]) != len(first):
        return 0
    # Next to it comes one that shares all that may be shared. Bytes are compared for a third of what arrays cost.
    if head.tobytes() == head[0].tobytes() * len(head):
        return limit
    return int((head == head[0]).all(axis=0).argmin())


def shared_prefix_tokens(
    ids: npt.NDArray[np.integer[Any]],
    used: npt.NDArray[np.integer[Any]],
    block_size: int,
    computed_tokens: Sequence[int],
) -> int:
    """The shared prefix of a step in tokens: whole blocks, and no token that is not yet computed for every request.

    The cap at the smallest number of computed tokens keeps every request's suffix non-empty: the token that a request
    computes in this step always lies behind it.

    Args:
        ids: int array [requests, columns] of block ids.
        used: int array [requests]; valid leading columns of each row.
        block_size: tokens per block.
        computed_tokens: one number a request.

    Returns:
        A multiple of `block_size`, 0 where nothing is shared.
    """
    if len(computed_tokens) == 0:
        return 0
    limit = min(min(computed_tokens) // block_size, min(used.tolist()))
    return shared_blocks(ids, limit) * block_size
