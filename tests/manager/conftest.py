"""Fixtures of the manager's tests: each test gets an environment of its own, in which only the manager is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .scratch import Scratch, copy_venv, make_scratch, make_venv


@pytest.fixture(scope="session")
def shared_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One virtual environment for all tests that do not write into it."""
    return make_venv(tmp_path_factory.mktemp("manager") / "venv")


@pytest.fixture
def scratch(tmp_path: Path, shared_venv: Path) -> Scratch:
    """An empty site folder on the path, and intents and state of its own."""
    return make_scratch(tmp_path, shared_venv)


@pytest.fixture
def own_scratch(tmp_path: Path, shared_venv: Path) -> Scratch:
    """As ``scratch``, with a virtual environment that the test may change."""
    return make_scratch(tmp_path, copy_venv(shared_venv, tmp_path / "venv"))
