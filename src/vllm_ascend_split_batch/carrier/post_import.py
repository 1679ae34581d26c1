"""Run something once certain modules have been imported, without importing them.

A finder at the head of ``sys.meta_path`` hands on the specification of an awaited module with its loader wrapped, so
that the end of the module's execution is seen. It leaves ``sys.meta_path`` when nothing is awaited.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import fork
from .log import logger


def imported(name: str) -> bool:
    """Whether a module has been imported to its end."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


class Waiter:
    """A callback that runs once, in the thread whose import completes the set of awaited modules."""

    def __init__(self, names: frozenset[str], callback: Callable[[], None]) -> None:
        self.names = names
        self.callback = callback

    def cancel(self) -> None:
        """Do not run the callback, if it has not run yet."""
        _finder.remove(self)


class _Finder:
    def __init__(self) -> None:
        self.waiters: list[Waiter] = []
        self.lock = threading.RLock()
        self.searching = threading.local()

    def add(self, waiter: Waiter) -> None:
        fork.in_child(_after_fork)
        with self.lock:
            self.waiters.append(waiter)
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)

    def remove(self, waiter: Waiter) -> bool:
        """Take a waiter out; false when somebody else has already."""
        with self.lock:
            if waiter not in self.waiters:
                return False
            self.waiters.remove(waiter)
            if not self.waiters and self in sys.meta_path:
                sys.meta_path.remove(self)
            return True

    def check(self, just_executed: str | None = None) -> None:
        """Run the callbacks whose modules are all there. A module that just ran counts although it is still locked."""
        for waiter in tuple(self.waiters):
            if all(name == just_executed or imported(name) for name in waiter.names) and self.remove(waiter):
                _run(waiter.callback)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Modules that came another way (put into sys.modules by hand, or half imported when the waiter was added) are
        # noticed at the next import.
        self.check()
        if not any(name in waiter.names for waiter in tuple(self.waiters)):
            return None
        searching: set[str] = self.searching.__dict__.setdefault("names", set())
        if name in searching:
            return None
        searching.add(name)
        try:
            spec = self._ask_the_others(name, path, target)
        finally:
            searching.discard(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec

    def _ask_the_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


class _Loader:
    """Another loader, with a word to the finder when a module has been executed to its end."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        return create(spec) if create is not None else None

    def exec_module(self, module: ModuleType) -> None:
        # The module, and whoever asks it for its source, sees its real loader.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _finder.check(just_executed=module.__name__)


def _run(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        # An error of ours must not become an error of the host's import statement.
        logger.exception("A callback after an import failed")


_finder = _Finder()


def _after_fork() -> None:
    # The lock may be held by a thread that the child does not have.
    _finder.lock = threading.RLock()


def when_imported(names: Iterable[str], callback: Callable[[], None]) -> Waiter:
    """Call ``callback`` once, when every module of ``names`` has been imported: at once if they all are already.

    A module whose execution fails does not count; a later, successful import of it does. What ``callback`` raises is
    logged and goes no further. Forked children inherit what is awaited.
    """
    waiter = Waiter(frozenset(names), callback)
    _finder.add(waiter)
    _finder.check()
    return waiter
