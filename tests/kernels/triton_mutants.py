"""Mutants of kernel sources: changed copies in files of their own, since Triton reads a kernel from its file."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import split_batch_kernels
from split_batch_kernels import launch, triton_ops

SOURCES = Path(split_batch_kernels.__file__).parent
_numbers = itertools.count()


@pytest.fixture
def triton_mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], ModuleType]]:
    """A function (kernel source, old, new): the wrappers launch that source with one piece replaced."""
    loaded: list[str] = []

    def plant(stem: str, old: str, new: str) -> ModuleType:
        source = (SOURCES / f"{stem}.py").read_text()
        assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {stem}"
        name = f"split_batch_kernels.mutant{next(_numbers)}_triton"
        path = tmp_path / f"{name}.py"
        path.write_text(source.replace(old, new))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        loaded.append(name)
        spec.loader.exec_module(module)
        original = launch.kernel

        def kernel(source_name: str, function: str, device: object) -> object:
            if source_name == stem:
                return launch.Interpreted(getattr(module, function))
            return original(source_name, function, device)  # type: ignore[arg-type]

        monkeypatch.setattr(triton_ops, "kernel", kernel)
        return module

    yield plant
    for name in loaded:
        sys.modules.pop(name, None)
