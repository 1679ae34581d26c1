"""The one operator that torch.compile sees in place of an MLP that may be cut.

Whether to cut is decided when the operator runs, on the real number of rows: a compiled graph serves prefill and decode
alike, and a decision taken while tracing would hold for both. The sum over ranks stays outside, in the graph, where the
host's passes look for it.

The operator names its MLP by the module's path in the model, which is the same in every process, so that compiled
artifacts can be stored and loaded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

NAMESPACE, NAME = "split_batch_mlp", "forward"
_DEVICES = ("PrivateUse1", "CPU")

_library: torch.library.Library | None = None
_run: Callable[[Any, str], Any] | None = None


def define() -> Any:
    """The operator `(Tensor x, str name, int width) -> Tensor [rows, width]`, defined on first use and kept.

    Compiled code may outlive the carrier, so the definition is never taken back.
    """
    global _library
    if _library is None:
        library = torch.library.Library(NAMESPACE, "FRAGMENT")
        library.define(f"{NAME}(Tensor x, str name, int width) -> Tensor")
        for device in _DEVICES:
            library.impl(NAME, _call, device)
        torch.library.register_fake(f"{NAMESPACE}::{NAME}", _fake, lib=library)
        _library = library
    return getattr(getattr(torch.ops, NAMESPACE), NAME)


def serve(run: Callable[[Any, str], Any]) -> None:
    """Have the operator call `run(x, name)`."""
    global _run
    _run = run


def _call(x: Any, name: str, width: int) -> Any:
    if _run is None:
        raise RuntimeError(f"{NAMESPACE}::{NAME} was called for {name}, and no MLP was ever registered here")
    return _run(x, name)


def _fake(x: Any, name: str, width: int) -> Any:
    return x.new_empty((*x.shape[:-1], width))


class Registry:
    """Which module a name means: the one of the model that is running. Keeps no module alive."""

    def __init__(self) -> None:
        self._entries: dict[str, list[tuple[weakref.ref[Any], Any]]] = {}
        self._mlps: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def add(self, module: Any, mlp: Any, layers: Any) -> None:
        """Register a module and its `DenseMlp`. `layers` identifies its model in the host's forward context."""
        entries = self._entries.setdefault(mlp.name, [])
        entries[:] = [entry for entry in entries if entry[0]() not in (None, module)]
        entries.append((weakref.ref(module), layers))
        self._mlps[module] = mlp

    def of(self, module: Any) -> Any:
        """The `DenseMlp` of a registered module."""
        return self._mlps[module]

    def named(self, name: str, layers: Any) -> Any:
        """The module of this name in the model that `layers` identifies.

        Raises:
            LookupError: there is none, or there are several and none is of that model.
        """
        alive = [(module(), owner) for module, owner in self._entries.get(name, ()) if module() is not None]
        running = [module for module, owner in alive if owner is layers]
        if not running and len(alive) == 1:
            running = [alive[0][0]]
        if len(running) != 1:
            raise LookupError(f"{len(alive)} loaded models have an MLP {name}, and {len(running)} of them run")
        return running[0]
