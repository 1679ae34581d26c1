"""Work that is done while the process runs and when it ends, also in forked children."""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import os
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.5


class Repeated:
    """Calls ``work`` twice a second on a daemon thread, and once more at the end of the process.

    In a forked child ``after_fork`` is called and the thread, which a fork does not copy, started again. A failure of
    ``work`` is logged once and ends the repetition, not the process.
    """

    def __init__(self, work: Callable[[], None], after_fork: Callable[[], None]) -> None:
        self._work, self._after_fork = work, after_fork
        self._stopped = False
        self._start_thread()
        self._at_end()
        atexit.register(self._call)
        os.register_at_fork(after_in_child=self._in_child)
        # Children of multiprocessing forget their parent's finalizers after the hook above: register anew.
        multiprocessing.util.register_after_fork(self, Repeated._at_end)

    def _start_thread(self) -> None:
        threading.Thread(target=self._run, name="npu-emulator-report", daemon=True).start()

    def _at_end(self) -> None:
        # Children of multiprocessing leave by os._exit, without the handlers of atexit: it has finalizers of its own.
        multiprocessing.util.Finalize(None, self._call, exitpriority=0)

    def _in_child(self) -> None:
        self._after_fork()
        self._start_thread()

    def _run(self) -> None:
        wait = threading.Event()
        while not self._stopped:
            wait.wait(INTERVAL_SECONDS)
            self._call()

    def _call(self) -> None:
        if self._stopped:
            return
        try:
            self._work()
        except Exception:
            self._stopped = True
            _log.exception("the emulated NPU stops writing its report")
