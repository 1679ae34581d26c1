"""What holds for all tests."""

from __future__ import annotations

import random
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.proofs import proof, pytest_configure, pytest_runtest_makereport

__all__ = ["proof", "pytest_configure", "pytest_runtest_makereport"]

# Property tests draw the same examples in every run, and none fails because the machine is slow;
# `--hypothesis-profile=random` explores. Loaded here, before any test module is imported: a `settings(...)` object
# takes what it does not name from the profile that is loaded when it is made.
_UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **_UNTIMED)
settings.register_profile("random", derandomize=False, **_UNTIMED)
settings.load_profile("repeatable")

# A runner that was started in the background, or under nohup, ignores these, and so would every process that a test
# starts in order to send them to it.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Every test begins with the same state of the global generators, whatever ran before it."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
