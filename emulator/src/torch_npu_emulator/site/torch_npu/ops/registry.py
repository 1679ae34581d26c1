"""Defines the ``npu::`` operators with the published schemas, and registers emulations of some of them.

An emulation receives CPU tensors that share the memory of the npu tensors of the call. It is registered under the key
PrivateUse2, to which the backend passes calls with npu tensors: a call with CPU tensors is refused by torch, as on
hardware. An operator without an emulation raises and names itself.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torch_npu import _backend

Function = TypeVar("Function", bound=Callable[..., Any])

SCHEMAS = pathlib.Path(__file__).parent.parent / "schemas" / "torch_npu-2.10.0.post4.txt"

_library = torch.library.Library("npu", "DEF")
_defined = [line.strip() for line in SCHEMAS.read_text(encoding="utf-8").splitlines() if line.strip()]
for _schema in _defined:
    _library.define(_schema)

# Operator names as attributes of torch_npu: overloads share one.
NAMES = frozenset(schema.split("(")[0].split(".")[0] for schema in _defined)
_emulated: list[str] = []


def emulates(
    name: str, *, meta: Callable[..., Any] | None = None, capture: Callable[..., Any] | None = None
) -> Callable[[Function], Function]:
    """Registers the decorated function as emulation of ``npu::name`` (with overload, as in ``name.out``).

    ``meta`` computes shapes and dtypes from tensors without data, for tracing. ``capture`` does the same when the
    operator is captured into a graph, where its arguments are checked too (default: ``meta``).
    """

    def register(function: Function) -> Function:
        _library.impl(name, function, "PrivateUse2")
        if meta is not None:
            _library.impl(name, meta, "Meta")
        if capture is not None:
            _library.impl(name, capture, "PrivateUse3")
        _emulated.append(name)
        return function

    return register


def emulated() -> tuple[str, ...]:
    """The names of the emulated operators."""
    return tuple(_emulated)


def bind_all() -> None:
    """Connects npu tensors with the emulations."""
    for name in _emulated:
        _backend.bind("npu", name)
