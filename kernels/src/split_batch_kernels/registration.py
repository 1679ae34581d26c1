"""Defining the ops, and registering their implementations with PyTorch's dispatcher.

The definitions go into a *fragment* of the namespace ``npu``, so that they stand beside the library that torch_npu
defines under the same name. What somebody else has defined already is left as it is.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from .errors import OpDefinitionError
from .merge import lse_merge, lse_merge_meta
from .schemas import MERGE, NAMESPACE, SCHEMAS, STAGE1
from .stage1 import fa_fp32_stage1, fa_fp32_stage1_meta

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {STAGE1: fa_fp32_stage1, MERGE: lse_merge}
_META: dict[str, Callable[..., Any]] = {STAGE1: fa_fp32_stage1_meta, MERGE: lse_merge_meta}

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
    for op, schema in SCHEMAS.items():
        where = definition(op)
        if where == __file__:
            continue  # this module was imported a second time
        if where is not None:
            foreign[op] = where
            continue
        library = Library(NAMESPACE, "FRAGMENT")
        _LIBRARIES.append(library)
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(op, IMPLEMENTATIONS[op], "CPU")
        library.impl(op, _META[op], "Meta")
    if foreign:
        listed = ", ".join(f"{op} (by {where})" for op, where in foreign.items())
        warnings.warn(
            f"split_batch_kernels: already defined and left as they are: {listed}. "
            "This package's implementations of them are not registered.",
            RuntimeWarning,
            stacklevel=2,
        )
    return foreign


def register(dispatch_key: str, adapt: Adapter | None = None) -> None:
    """Register the reference implementations for one more dispatch key, such as ``"PrivateUse1"``.

    Args:
        dispatch_key: a dispatch key's name. Registering a key a second time does nothing.
        adapt: called once for each op with its name and implementation; what it returns is registered instead. This is
            where an emulated device brings its tensors to the host, or enforces :func:`check_device_limits`.

    Raises:
        OpDefinitionError: an op is defined by somebody else, or has another implementation for this key. Nothing has
            been registered then.
    """
    missing = []
    for op in SCHEMAS:
        if not is_ours(op):
            raise OpDefinitionError(
                f"{op} is defined by {definition(op) or 'nobody'}, not by split_batch_kernels: "
                f"its {dispatch_key} implementation is not replaced"
            )
        if not torch._C._dispatch_has_kernel_for_dispatch_key(op, dispatch_key):
            missing.append(op)
        elif not _registered_here(op, dispatch_key):
            raise OpDefinitionError(f"{op} already has an implementation for {dispatch_key} that is not this package's")
    for op in missing:
        implementation = IMPLEMENTATIONS[op]
        library = Library(NAMESPACE, "FRAGMENT")
        _LIBRARIES.append(library)
        library.impl(op, implementation if adapt is None else adapt(op, implementation), dispatch_key)


def _registered_here(op: str, dispatch_key: str) -> bool:
    line = re.search(rf"^{re.escape(dispatch_key)}: (.*)$", torch._C._dispatch_dump(op), re.MULTILINE)
    return line is not None and __file__ in line.group(1)
