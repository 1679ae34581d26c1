"""Who reads the host's rope buffers: found in the loaded code and in the model, not assumed.

A *reader* is a function that calls the accessor of the buffers, names the buffers themselves, or calls a reader of its
own module. A model has a reader when one of its modules has a class with a reading method. Standard library only.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

ACCESSOR = "get_cos_and_sin_slice"
BUFFERS = frozenset({"_cos_slice", "_sin_slice"})
#: The functions that fill and hand out the buffers; naming them makes none of these a reader.
KEEPERS = frozenset({"set_cos_and_sin", "update_cos_sin", ACCESSOR})


def find_in_model(model: Any, host_module: str, modules: Mapping[str, Any] | None = None) -> list[str]:
    """The readers among the model's modules, each as ``"module.Class (package.module.function)"``; empty when none.

    Args:
        model: something with `modules()`, as `torch.nn.Module` has.
        host_module: the module that holds the buffers.
        modules: the loaded modules; ``None``: `sys.modules`.

    Raises:
        TypeError: the model cannot be searched.
    """
    if not callable(getattr(model, "modules", None)):
        raise TypeError(f"a model of type {type(model).__name__} cannot be searched for its modules")
    readers = reading_functions(host_module, modules)
    found = {}
    for part in model.modules():
        methods = {**_methods(type(part)), **_own_callables(part)}
        for method in methods.values():
            if method in readers:
                owner = f"{type(part).__module__}.{type(part).__qualname__}"
                found[owner] = f"{owner} ({method.__module__}.{method.__qualname__})"
    return sorted(found.values())


def reading_functions(host_module: str, modules: Mapping[str, Any] | None = None) -> set[FunctionType]:
    """Every reader in the loaded code: in the host's package, and wherever the accessor has been imported to."""
    loaded = dict(sys.modules if modules is None else modules)
    accessor = vars(loaded[host_module])[ACCESSOR]
    package = host_module.partition(".")[0]
    functions = [
        function
        for name, module in loaded.items()
        if isinstance(module, ModuleType)
        and (name.partition(".")[0] == package or any(value is accessor for value in list(vars(module).values())))
        for function in _functions(module)
        if not (function.__module__ == host_module and function.__qualname__ in KEEPERS)
    ]
    readers: set[FunctionType] = set()
    reading_codes: set[CodeType] = set()
    while True:
        new = {
            function
            for function in functions
            if function not in readers and _reads(function, accessor, readers)
        }
        # Two functions of the same code (a method and the function it was made from) are readers together.
        new |= {function for function in functions if function.__code__ in reading_codes and function not in readers}
        if not new:
            return readers
        readers |= new
        reading_codes |= {function.__code__ for function in new}


def _reads(function: FunctionType, accessor: Any, readers: set[FunctionType]) -> bool:
    scope = function.__globals__
    for name in _names(function.__code__):
        if name == ACCESSOR or name in BUFFERS:
            return True
        value = scope.get(name)
        if value is not None and (value is accessor or (isinstance(value, FunctionType) and value in readers)):
            return True
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions that a module defines, its classes' methods included."""
    for value in list(vars(module).values()):
        function = _innermost(value)
        if function is not None:
            yield function
        elif isinstance(value, type) and value.__module__ == module.__name__:
            yield from _methods(value).values()


def _methods(cls: type) -> dict[str, FunctionType]:
    """The functions of a class and its bases, by the name that finds them."""
    found: dict[str, FunctionType] = {}
    for base in reversed(cls.__mro__):
        for name, value in list(vars(base).items()):
            function = _innermost(value)
            if function is not None:
                # What a subclass overrides may still be called through super().
                found[f"{base.__qualname__}.{name}"] = function
    return found


def _own_callables(part: Any) -> dict[str, FunctionType]:
    """Functions put on the object itself, as `module.forward = ...` does."""
    own: Iterable[tuple[str, Any]] = list(getattr(part, "__dict__", {}).items())
    return {name: function for name, value in own if (function := _innermost(value)) is not None}


def _innermost(value: Any) -> FunctionType | None:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value) if inspect.ismethod(value) else value
    if not isinstance(value, FunctionType):
        return None
    value = inspect.unwrap(value)
    return value if isinstance(value, FunctionType) else None
