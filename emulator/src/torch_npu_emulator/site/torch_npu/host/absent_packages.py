"""Stand-ins for packages that the host's dense path imports and never calls.

Only where the package is not installed. An imported name can be passed around and subclassed; calling it raises and
names it. What the host calls already while it is imported is served: ``numba``'s decorators return a function that
raises when it is called, and a number of ``scipy`` is computed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import statistics
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

PACKAGES = ("torchvision", "fla_npu", "scipy", "numba")
_DECORATORS = frozenset({"numba.jit", "numba.njit"})
# Called while the host's modules are imported (a class attribute of its expert load balancing): computed truly.
_FUNCTIONS: dict[str, Callable[..., Any]] = {"scipy.stats.norm.ppf": statistics.NormalDist().inv_cdf}


class AbsentPackageError(NotImplementedError):
    """A package that is not installed was called."""

    def __init__(self, name: str) -> None:
        package = name.split(".")[0]
        super().__init__(
            f"{name} was called, but {package} is not installed (the emulated NPU lets it be imported only)"
        )


class _Name:
    """A name of an absent package."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.__qualname__ in _FUNCTIONS:
            return _FUNCTIONS[self.__qualname__](*args, **kwargs)
        if self.__qualname__ not in _DECORATORS:
            raise AbsentPackageError(self.__qualname__)
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return _refusing(self.__qualname__, args[0])
        return lambda function: _refusing(self.__qualname__, function)

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__qualname__}.{name}")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (_refusing_class(self.__qualname__),)


def _refusing(decorator: str, function: Callable[..., Any]) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise AbsentPackageError(decorator)

    refuse.__name__ = getattr(function, "__name__", "refuse")
    return refuse


def _refusing_class(name: str) -> type:
    def refuse(self: object, *args: Any, **kwargs: Any) -> None:
        raise AbsentPackageError(name)

    return type(name.rsplit(".", 1)[-1], (), {"__init__": refuse})


class _Module(types.ModuleType):
    __version__ = "0.0"  # below whatever version a feature test asks for

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to execute."""


def install() -> None:
    absent = tuple(name for name in PACKAGES if importlib.util.find_spec(name) is None)
    if absent:
        sys.meta_path.append(_Finder(absent))
