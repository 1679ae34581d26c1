"""Work that is done about once a second and when the process ends, also in forked children."""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import os
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


def every_second(work: Callable[[], None], *, after_fork: Callable[[], None] | None = None) -> None:
    """Calls ``work`` about once a second on a daemon thread, and once more at the end of the process.

    In a forked child ``after_fork`` is called, and the thread, which a fork does not copy, started again. A failure of
    ``work`` is logged once and ends the thread, not the process.
    """

    def run() -> None:
        stop = threading.Event()
        while not stop.wait(1.0):
            try:
                work()
            except Exception:
                _log.exception("the emulated NPU stops writing its report")
                return

    def last() -> None:
        try:
            work()
        except Exception:
            _log.exception("the emulated NPU could not write its last report")

    def start() -> None:
        threading.Thread(target=run, name="npu-emulator-report", daemon=True).start()
        # Children of multiprocessing leave by os._exit, without the handlers of atexit: it has finalizers of its own.
        multiprocessing.util.Finalize(None, last, exitpriority=0)

    def in_child() -> None:
        if after_fork is not None:
            after_fork()
        start()

    start()
    atexit.register(last)
    os.register_at_fork(after_in_child=in_child)
