"""What the carriers of this process really do, written to one small file for whoever manages the engine.

The file is ``<pid>-vllm-ascend-split-batch.json`` in the folder that ``VLLM_HUST_EXT_REPORT_DIR`` names; without that
variable nothing is written. A daemon thread compares once a second and writes when something changed; a last version is
written at exit. Nothing happens on the path of a step: the thread reads counters that the step's thread increments.

A forked child inherits the carriers but no thread and another process id: it starts to count at zero and writes a file
of its own. ``docs/formats/engine-report.md`` describes the document.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any, Protocol

from vllm_ascend_split_batch import __version__

from . import fork, process_facts
from .guard import text_of, utc_now
from .log import logger

SCHEMA = "vllm-hust-ext.engine-report/1"
DISTRIBUTION = "vllm-ascend-split-batch"
FOLDER_VARIABLE = "VLLM_HUST_EXT_REPORT_DIR"
LAUNCH_VARIABLE = "VLLM_HUST_EXT_LAUNCH_ID"
INTERVAL_S = 1.0


class Reported(Protocol):
    """What the report needs of a carrier."""

    def report(self) -> dict[str, Any]:
        """The carrier's entry of the document."""

    def restart_counting(self) -> None:
        """Called in a forked child."""


class EngineReport:
    """This process's report: the carriers in it, the thread that writes it."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.carriers: list[Reported] = []
        self.interval_s = interval_s
        self._begin()
        self._registered = False
        self._host: dict[str, str | None] | None = None

    def _begin(self) -> None:
        self._folder = _absolute(os.environ.get(FOLDER_VARIABLE))
        self._launch_id = os.environ.get(LAUNCH_VARIABLE) or None
        self._started_at = utc_now()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: str | None = None
        self._process: dict[str, Any] | None = None
        self._warned = False

    def add(self, carrier: Reported) -> None:
        """Report ``carrier`` from now on. Starts the thread with the first one, where a folder is named."""
        if carrier not in self.carriers:
            self.carriers.append(carrier)
        if self._folder is None or self._thread is not None:
            return
        if not self._registered:
            self._registered = True
            atexit.register(self.finish)
            fork.in_child(self._in_child)
        self._start()

    def _start(self) -> None:
        # Without a thread (none can be started any more at exit) the report is still written at the end.
        with contextlib.suppress(RuntimeError):
            thread = threading.Thread(target=self._write_forever, name="split-batch-report", daemon=True)
            thread.start()
            self._thread = thread

    def _write_forever(self) -> None:
        stop = self._stop
        while not stop.wait(self.interval_s):
            self.write()

    def _in_child(self) -> None:
        self._begin()
        for carrier in self.carriers:
            carrier.restart_counting()
        self._finish_with_multiprocessing()
        # The first write is an interval away: a child that only lives to run another program leaves no file.
        self._start()

    def _finish_with_multiprocessing(self) -> None:
        """Children that multiprocessing forks end without atexit; it has a list of its own, which it empties first."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, lambda report: util.Finalize(None, report.finish, exitpriority=0))

    def finish(self) -> None:
        """Write the last version and end the thread."""
        self._stop.set()
        self.write()

    def document(self) -> dict[str, Any]:
        """The document as it is now."""
        if self._process is None:
            self._process = process_facts.describe()
        return {
            "schema": SCHEMA,
            "distribution": {"name": DISTRIBUTION, "version": __version__},
            "launch_id": self._launch_id,
            "process": self._process,
            "started_at": self._started_at,
            "written_at": utc_now(),
            "host": self._host_versions(),
            "carriers": [carrier.report() for carrier in self.carriers],
        }

    def write(self) -> bool:
        """Write the document if it differs from the last one written; says whether it was. Never raises."""
        if self._folder is None:
            return False
        try:
            with self._lock:
                document = self.document()
                written_at = document.pop("written_at")
                text = json.dumps(document, sort_keys=True)
                if text == self._last:
                    return False
                self._replace_file(json.dumps({**document, "written_at": written_at}, indent=1) + "\n")
                self._last = text
                return True
        except Exception as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "The engine report cannot be written to %s (%s: %s); the engine runs on without it. Check that the "
                    "folder exists and can be written to.", self._folder, type(error).__name__, text_of(error),
                )
            return False

    def _replace_file(self, text: str) -> None:
        path = os.path.join(str(self._folder), f"{os.getpid()}-{DISTRIBUTION}.json")
        temporary = f"{path}.{time.monotonic_ns():x}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _host_versions(self) -> dict[str, str | None]:
        if self._host is None:
            self._host = {name: _version(name) for name in ("vllm", "vllm-ascend")}
        return self._host


def _absolute(folder: str | None) -> str | None:
    """A relative folder is meant from where the process started; it may change its working folder later."""
    if not folder:
        return None
    try:
        return os.path.abspath(folder)
    except OSError:  # the working folder was removed
        return folder


def _version(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return str(metadata.version(distribution))
    except Exception:  # not installed, or its metadata is damaged
        return None


_report: EngineReport | None = None


def engine_report() -> EngineReport:
    """This process's report."""
    global _report
    if _report is None:
        _report = EngineReport()
    return _report
