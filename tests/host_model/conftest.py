"""Fixtures of the host model's tests."""

from __future__ import annotations

import pytest

from tests.host_model.recorded_admission import Recorded, record


@pytest.fixture(scope="session")
def recorded_admission(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """What the installed host answered to the generated cases of admission."""
    return record(tmp_path_factory.mktemp("admission"))
