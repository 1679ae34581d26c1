"""The ops that work row by row, ``torch.ops.split_batch.{sample, sample_top_k_top_p, geglu}``: defined and registered.

Importing this module defines them with their CPU reference and Meta implementations. On a device they exist once
somebody registers them: :func:`register` with the reference (an emulated device) or with the Triton kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.library import Library

from . import geglu, row_launch, sampling
from .errors import OpDefinitionError
from .launch import unavailable

NAMESPACE = "split_batch"
REFERENCE, TRITON = "reference", "triton"

#: An op's implementation wrapped for a device: ``adapt(op, implementation)`` returns what is registered.
Adapter = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class RowOp:
    """One op: its schema, and a function each for the CPU, for shapes alone, and for launching the Triton kernel."""

    schema: str
    reference: Callable[..., Any]
    meta: Callable[..., Any]
    triton: Callable[..., Any]


OPS: dict[str, RowOp] = {
    sampling.SAMPLE: RowOp(
        sampling.SCHEMAS[sampling.SAMPLE], sampling.sample, sampling.sample_meta, row_launch.sample
    ),
    sampling.SAMPLE_TOP_K_TOP_P: RowOp(
        sampling.SCHEMAS[sampling.SAMPLE_TOP_K_TOP_P],
        sampling.sample_top_k_top_p,
        sampling.sample_top_k_top_p_meta,
        row_launch.sample_top_k_top_p,
    ),
    geglu.GEGLU: RowOp(geglu.SCHEMAS[geglu.GEGLU], geglu.geglu, geglu.geglu_meta, row_launch.geglu_rows),
}

# PyTorch drops what a Library registered when the object dies: they live as long as the process.
_LIBRARIES: list[Library] = []


def registered(op: str, dispatch_key: str) -> bool:
    """Whether ``op`` has an implementation for a dispatch key."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op, dispatch_key))


def _define() -> None:
    for op, parts in OPS.items():
        if torch._C._dispatch_has_kernel(op):
            continue  # this module was imported a second time
        library = Library(NAMESPACE, "FRAGMENT")
        _LIBRARIES.append(library)
        library.define(parts.schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(op, parts.reference, "CPU")
        library.impl(op, parts.meta, "Meta")


def register(dispatch_key: str, implementation: str = REFERENCE, adapt: Adapter | None = None) -> None:
    """Give the ops implementations for one more dispatch key, such as ``"PrivateUse1"``; those that have one keep it.

    Args:
        implementation: ``"reference"``, or ``"triton"`` to launch the kernels.
        adapt: called once for each op with its name and implementation; what it returns is registered instead.

    Raises:
        OpDefinitionError: no such implementation.
    """
    if implementation not in (REFERENCE, TRITON):
        raise OpDefinitionError(f"implementation {implementation!r} is neither {REFERENCE!r} nor {TRITON!r}")
    for op, parts in OPS.items():
        if registered(op, dispatch_key):
            continue
        function = parts.reference if implementation == REFERENCE else parts.triton
        library = Library(NAMESPACE, "FRAGMENT")
        _LIBRARIES.append(library)
        library.impl(op, function if adapt is None else adapt(op, function), dispatch_key)


def ensure(device_type: str) -> str | None:
    """Make the ops work on tensors of a device: as they are, or by registering the Triton kernels.

    Returns:
        ``None`` when they do now; else why they cannot, in one sentence.
    """
    dispatch_key = "PrivateUse1" if device_type == torch._C._get_privateuse1_backend_name() else device_type.upper()
    if all(registered(op, dispatch_key) for op in OPS):
        return None
    reason = unavailable_on(device_type)
    if reason is None:
        register(dispatch_key, TRITON)
    return reason


def unavailable_on(device_type: str) -> str | None:
    """Why no Triton kernel can be compiled for a kind of device; ``None`` where one can be. Starts no device."""
    reason = unavailable(torch.device(device_type))
    if reason is not None:
        return reason
    from triton.backends import backends

    wanted = {"npu": ("ascend", "npu"), "cuda": ("nvidia", "amd")}.get(device_type, (device_type,))
    if not any(name in backends for name in wanted):
        return (
            f"the installed triton compiles for {', '.join(sorted(backends)) or 'no device'}, not for {device_type}"
            + (": triton-ascend is needed" if device_type == "npu" else "")
        )
    return None


_define()
