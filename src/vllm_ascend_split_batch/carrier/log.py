"""The logger of everything in this package: a child of vLLM's, so that its lines show in a serve log."""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.split_batch")

_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Log ``message`` as a warning, unless this process has logged the very same one before."""
    if message not in _warned:
        _warned.add(message)
        logger.warning("%s", message)
