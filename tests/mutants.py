"""Mutants: copies of a module with one piece of its source changed, to show that a test can fail."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def mutant() -> Iterator[Callable[[ModuleType, str, str], ModuleType]]:
    """Load a copy of a module with one piece of its source replaced; the piece must occur exactly once.

    Relative imports of the copy reach the originals of its package.
    """
    loaded: list[str] = []

    def make(module: ModuleType, old: str, new: str) -> ModuleType:
        path = Path(module.__file__ or "")
        source = path.read_text()
        assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {path.name}"
        name = f"{module.__package__}._mutant_{path.stem}_{len(loaded)}"
        spec = importlib.util.spec_from_loader(name, loader=None)
        assert spec is not None
        copy = importlib.util.module_from_spec(spec)
        copy.__package__ = module.__package__
        copy.__file__ = str(path)
        sys.modules[name] = copy
        loaded.append(name)
        exec(compile(source.replace(old, new), str(path), "exec"), copy.__dict__)
        return copy

    yield make
    for name in loaded:
        sys.modules.pop(name, None)
