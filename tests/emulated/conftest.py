"""Fixtures of the tests that start engines on the emulated NPU. Engines and models are shared by the whole session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import tiny_models
from .engines import Engines

#: Those run in a process of the emulated NPU, started by `test_inside_host.py`.
collect_ignore = [] if "TORCH_NPU_EMULATOR" in os.environ else ["inside_host"]


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def build_model(model_folder: Path):
    """A function (model, dtype) -> folder of that tiny model, made on first use."""

    def build(model: tiny_models.TinyModel, dtype: str = "float32") -> Path:
        return tiny_models.build(model, model_folder, dtype)

    return build
