"""Defining the ops, and registering their implementations with PyTorch's dispatcher.

The definitions go into a *fragment* of the namespace ``npu``, so that they stand beside the library that torch_npu
defines under the same name. What somebody else has defined already is left as it is.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.library import Library

from . import cascade, merge, partial_merge, stage1
from .errors import OpDefinitionError
from .schemas import (
    ATTENTION_MERGE,
    ATTENTION_MERGE_STACK,
    CASCADE_PREFIX,
    CASCADE_SUFFIX,
    MERGE,
    NAMESPACE,
    OWN_NAMESPACE,
    OWN_SCHEMAS,
    SCHEMAS,
    STAGE1,
)

#: The op that a function implements, by the function's name, which is the same in the reference and in `triton_ops`.
_FUNCTIONS: dict[str, str] = {
    STAGE1: "fa_fp32_stage1",
    MERGE: "lse_merge",
    ATTENTION_MERGE: "attention_merge",
    f"{ATTENTION_MERGE}.out": "attention_merge_out",
    ATTENTION_MERGE_STACK: "attention_merge_stack",
    f"{ATTENTION_MERGE_STACK}.out": "attention_merge_stack_out",
    CASCADE_PREFIX: "cascade_prefix",
    f"{CASCADE_PREFIX}.out": "cascade_prefix_out",
    CASCADE_SUFFIX: "cascade_suffix",
    f"{CASCADE_SUFFIX}.out": "cascade_suffix_out",
}
_REFERENCE = (stage1, merge, partial_merge, cascade)

IMPLEMENTATIONS = ("reference", "triton")


def _reference(name: str) -> Callable[..., Any]:
    module = next(module for module in _REFERENCE if hasattr(module, name))
    return getattr(module, name)  # type: ignore[no-any-return]


def implementation_of(op: str, implementation: str = "reference") -> Callable[..., Any]:
    """The function that implements `op`: ``"reference"`` (torch alone) or ``"triton"`` (this package's kernels).

    Raises:
        KeyError: an unknown op. ValueError: an unknown implementation.
    """
    name = _FUNCTIONS[op]
    if implementation == "reference":
        return _reference(name)
    if implementation == "triton":
        from . import triton_ops

        return getattr(triton_ops, name)  # type: ignore[no-any-return]
    raise ValueError(f"implementation is {implementation!r}, expected one of {', '.join(IMPLEMENTATIONS)}")


#: An op's implementation wrapped for a device: ``adapt(op, implementation)`` returns what is registered.
Adapter = Callable[[str, Callable[..., Any]], Callable[..., Any]]

# PyTorch drops what a Library registered when the object dies: they live as long as the process.
_LIBRARIES: list[Library] = []


def definition(op: str) -> str | None:
    """Where ``op`` was defined: the file that did it, ``"elsewhere"`` when unnamed, ``None`` when it is not defined."""
    if not torch._C._dispatch_has_kernel(op):
        return None
    found = re.search(r"^debug: registered at (.*?):\d+", torch._C._dispatch_dump(op), re.MULTILINE)
    return found.group(1) if found else "elsewhere"


def is_ours(op: str) -> bool:
    """Whether ``op`` is defined by this package."""
    return definition(op) == __file__


def define() -> dict[str, str]:
    """Define the ops that nobody has defined, and register the CPU and Meta implementations of those.

    Returns:
        For each op that somebody else has defined: where. It stays untouched, and a warning says so.
    """
    foreign: dict[str, str] = {}
    for op, schema in (SCHEMAS | OWN_SCHEMAS).items():
        where = definition(op)
        if where == __file__:
            continue  # this module was imported a second time
        if where is not None:
            foreign[op] = where
            continue
        library = _library(op)
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(op, implementation_of(op), "CPU")
        library.impl(op, _reference(f"{_FUNCTIONS[op]}_meta"), "Meta")
    if foreign:
        listed = ", ".join(f"{op} (by {where})" for op, where in foreign.items())
        warnings.warn(
            f"split_batch_kernels: already defined and left as they are: {listed}. "
            "This package's implementations of them are not registered.",
            RuntimeWarning,
            stacklevel=2,
        )
    return foreign


def _library(op: str) -> Library:
    library = Library(OWN_NAMESPACE if op in OWN_SCHEMAS else NAMESPACE, "FRAGMENT")
    _LIBRARIES.append(library)
    return library


def register(
    dispatch_key: str,
    adapt: Adapter | None = None,
    *,
    implementation: str = "reference",
    ops: Iterable[str] | None = None,
) -> None:
    """Register implementations for one more dispatch key, such as ``"PrivateUse1"``.

    Args:
        dispatch_key: a dispatch key's name. Registering a key a second time does nothing.
        adapt: called once for each op with its name and implementation; what it returns is registered instead. This is
            where an emulated device brings its tensors to the host, or enforces :func:`check_device_limits`.
        implementation: ``"reference"`` or ``"triton"``.
        ops: names of the ops; by default all of this package, the kernel wheel's two included. On a device that has the
            wheel these two are the wheel's: pass ``OWN_SCHEMAS`` there.

    Raises:
        OpDefinitionError: an op is defined by somebody else, or has another implementation for this key. Nothing has
            been registered then.
    """
    missing = []
    for op in tuple(SCHEMAS | OWN_SCHEMAS if ops is None else ops):
        if not is_ours(op):
            raise OpDefinitionError(
                f"{op} is defined by {definition(op) or 'nobody'}, not by split_batch_kernels: "
                f"its {dispatch_key} implementation is not replaced"
            )
        if not torch._C._dispatch_has_kernel_for_dispatch_key(op, dispatch_key):
            missing.append((op, implementation_of(op, implementation)))
        elif not _registered_here(op, dispatch_key):
            raise OpDefinitionError(f"{op} already has an implementation for {dispatch_key} that is not this package's")
    for op, function in missing:
        _library(op).impl(op, function if adapt is None else adapt(op, function), dispatch_key)


def registered(dispatch_key: str, ops: Iterable[str]) -> bool:
    """Whether every op has an implementation for a dispatch key, no matter whose."""
    return all(torch._C._dispatch_has_kernel_for_dispatch_key(op, dispatch_key) for op in ops)


def _registered_here(op: str, dispatch_key: str) -> bool:
    line = re.search(rf"^{re.escape(dispatch_key)}: (.*)$", torch._C._dispatch_dump(op), re.MULTILINE)
    return line is not None and __file__ in line.group(1)
