"""Launching the package's Triton kernels: compiled on a device, in Triton's interpreter on CPU tensors.

``triton.jit`` decides between the two when a module is imported, by ``TRITON_INTERPRET``; so does Triton's own library
of reductions. Here the tensors decide, at launch, whatever that variable says and whoever imported Triton before.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from .errors import TritonUnavailableError

_SUFFIX = "_triton"
#: The interpreter keeps its state in module globals: one launch at a time.
_INTERPRETER = threading.RLock()


def unavailable(device: torch.device) -> str | None:
    """Why no Triton kernel can be launched on `device`; None where one can be."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed (on an Ascend NPU: triton-ascend; on the CPU: triton)"
    if device.type == "meta":
        return "meta tensors hold no data"
    return None


def kernel(module: str, name: str, device: torch.device) -> Any:
    """The kernel `name` of the kernel source `module`, launched as ``kernel(...)[grid](arguments)``.

    Args:
        module: a kernel source of this package, such as ``"merge_triton"``. name: the ``triton.jit`` function.
        device: of the tensors that will be passed. On the CPU the kernel is interpreted.

    Raises:
        TritonUnavailableError: Triton is not there.
    """
    reason = unavailable(device)
    if reason is not None:
        raise TritonUnavailableError(f"{module}.{name} cannot run on {device}: {reason}")
    function = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return Interpreted(function) if device.type == "cpu" else function


class Interpreted:
    """A kernel that runs in the interpreter."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            import numpy

            with _interpreting() as interpreted, numpy.errstate(all="ignore"):
                interpreted(self._function)[grid](*args, **kwargs)

        return launch


@contextlib.contextmanager
def _interpreting() -> Iterator[Callable[[Any], Any]]:
    """Puts interpreted functions in place of the compiled ones that a kernel reaches by name, and takes them back."""
    import triton.language
    import triton.language.standard
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    changed: list[tuple[ModuleType, str, Any]] = []

    def interpreted(function: Any) -> Any:
        if not isinstance(function, JITFunction):
            return function  # imported under TRITON_INTERPRET=1: interpreted already
        if function.fn not in _TWINS:
            _TWINS[function.fn] = InterpretedFunction(function.fn)
        return _TWINS[function.fn]

    with contextlib.suppress(ImportError):  # Triton imports it at its first launch, and it wants the language unchanged
        importlib.import_module("triton.experimental.gluon")
    with _INTERPRETER:
        # The interpreter itself replaces builtins and, in functions that a kernel calls, does not put them back.
        before = [(owner, dict(vars(owner))) for owner in _language()]
        try:
            for module in (triton.language, triton.language.standard, *_sources()):
                for name, value in list(vars(module).items()):
                    if isinstance(value, JITFunction):
                        changed.append((module, name, value))
                        setattr(module, name, interpreted(value))
            yield interpreted
        finally:
            for module, name, value in changed:
                setattr(module, name, value)
            for owner, attributes in before:
                for name, value in attributes.items():
                    if vars(owner).get(name) is not value:
                        setattr(owner, name, value)


#: One interpreted function per Python function: the interpreter recognises Triton's own reductions by identity.
_TWINS: dict[Any, Any] = {}


def _language() -> list[Any]:
    """The modules and classes of Triton's language in which the interpreter replaces builtins."""
    import triton.language as tl
    import triton.language.standard

    return [tl, tl.core, tl.math, triton.language.standard, tl.tensor]


def _sources() -> list[ModuleType]:
    """The kernel sources that are loaded: where a kernel's body finds this package's functions."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(f"{__package__}.") and name.endswith(_SUFFIX)
    ]
