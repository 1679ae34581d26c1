"""Fake hosts made on the fly, and the framework's own log lines."""

from __future__ import annotations

import importlib
import itertools
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch.carrier import log as carrier_log
from vllm_ascend_split_batch.carrier import near_misses, post_import

_numbers = itertools.count()


class FakeHost:
    """A package of a name of its own in a temporary folder; nothing of it is imported until a test does."""

    def __init__(self, folder: Path) -> None:
        self.package = f"fake_host_{next(_numbers)}"
        self.folder = folder / self.package
        self.folder.mkdir()
        (self.folder / "__init__.py").write_text("")

    def write(self, name: str, source: str) -> str:
        """Write the module ``name`` (without the package) and return its full name."""
        (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return f"{self.package}.{name}"

    def load(self, name: str):
        return importlib.import_module(f"{self.package}.{name}")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHost]:
    monkeypatch.syspath_prepend(str(tmp_path))
    fake = FakeHost(tmp_path)
    path_before = list(sys.meta_path)
    yield fake
    for name in [name for name in sys.modules if name.partition(".")[0] == fake.package]:
        del sys.modules[name]
    sys.meta_path[:] = path_before
    post_import._finder.waiters.clear()


class Lines(logging.Handler):
    """The records of one logger; ``lines(level)`` are their messages."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def __call__(self, level: int) -> list[str]:
        return [record.getMessage() for record in self.records if record.levelno == level]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """The framework's log records. vLLM's logger does not propagate, so they are taken at the source."""
    handler = Lines()
    logger = carrier_log.logger
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    monkeypatch.setattr(carrier_log, "_warned", set())
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set variables; those that the framework looks at are unset first."""
    import os

    for name in list(os.environ):
        if name in near_misses.PUBLISHED or name.startswith(("VLLM_HUST_", "VLLM_ASCEND_CASCADE")):
            monkeypatch.delenv(name)

    def put(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put
