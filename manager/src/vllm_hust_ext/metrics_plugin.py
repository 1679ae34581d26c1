"""The manager's own vLLM plugin: extensions' counters on vLLM's ``/metrics``. Off means absent.

``VLLM_HUST_EXT_METRICS=1`` (set by ``vllm-hust-ext run --metrics``) switches it on. Without it ``load`` returns at
once and imports nothing.
"""

from __future__ import annotations

import os

GATE = "VLLM_HUST_EXT_METRICS"
REPORT_DIR = "VLLM_HUST_EXT_REPORT_DIR"


def load() -> None:
    """Entry point of ``vllm.general_plugins``; never raises, may be called in every process and more than once."""
    if os.environ.get(GATE, "").strip().lower() not in ("1", "true", "yes", "on"):
        return
    import logging

    log = logging.getLogger("vllm.vllm_hust_ext.metrics")
    folder = os.environ.get(REPORT_DIR)
    if not folder:
        log.warning("%s is set, but %s is not: there are no reports to expose", GATE, REPORT_DIR)
        return
    try:
        from vllm_hust_ext.metrics import register

        register(folder)
    except Exception as error:
        log.warning("extensions' counters are not exposed on /metrics: %s: %s", type(error).__name__, error)
