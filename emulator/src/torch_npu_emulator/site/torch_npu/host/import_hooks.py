"""Calls a function right after a module was imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence

_waiting: dict[str, list[Callable[[types.ModuleType], None]]] = {}


def after_import(name: str, hook: Callable[[types.ModuleType], None]) -> None:
    """Calls ``hook(module)`` when the module ``name`` was imported; at once where it is imported already."""
    if name in sys.modules:
        hook(sys.modules[name])
        return
    if not _waiting:
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(hook)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        hooks = _waiting.pop(name, None)
        if hooks is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _Loader(spec.loader, hooks)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, hooks: list[Callable[[types.ModuleType], None]]) -> None:
        self._loader, self._hooks = loader, hooks

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # The module keeps its own loader: importlib.resources and inspect ask it for files and sources.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for hook in self._hooks:
            hook(module)
