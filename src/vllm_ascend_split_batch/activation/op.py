"""`torch.ops.vllm_ascend_split_batch.geglu`: one node for torch.compile, with the guard inside of it.

What may fail, and what counts, runs within the op, when it runs: a compiler sees the op's name and the shape of its
result, so that nothing of the guard is in the traced code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

NAMESPACE = "vllm_ascend_split_batch"
NAME = f"{NAMESPACE}::geglu"

_library: Library | None = None
_run: Callable[[Any], Any] | None = None


def _implementation(gate_up: Any) -> Any:
    assert _run is not None
    return _run(gate_up)


def _shape(gate_up: Any) -> Any:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


def serve(run: Callable[[Any], Any]) -> Any:
    """Define the op, if it is not yet, let it call ``run`` from now on, and return it.

    ``run`` takes ``(..., 2 * width)`` and returns a contiguous tensor ``(..., width)`` of the same dtype and device.
    """
    global _library, _run
    _run = run
    if _library is None:
        _library = Library(NAMESPACE, "FRAGMENT")
        _library.define("geglu(Tensor gate_up) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl("geglu", _implementation, "CompositeExplicitAutograd")
        _library.impl("geglu", _shape, "Meta")
    return torch.ops.vllm_ascend_split_batch.geglu
