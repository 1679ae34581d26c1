"""What holds for all tests."""

from __future__ import annotations

import signal

from tests.proofs import proof, pytest_configure, pytest_runtest_makereport

__all__ = ["proof", "pytest_configure", "pytest_runtest_makereport"]

# A runner that was started in the background, or under nohup, ignores these, and so would every process that a test
# starts in order to send them to it.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)
