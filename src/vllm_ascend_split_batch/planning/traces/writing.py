"""Writing the trace format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from vllm_ascend_split_batch.planning.traces.request import SCHEMA, TraceRequest


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> int:
    """Write a header and one line per request; returns how many requests."""
    written = 0
    with path.open("w", encoding="utf-8") as out:
        out.write(json.dumps({"schema": SCHEMA}) + "\n")
        for request in requests:
            out.write(request.line() + "\n")
            written += 1
    return written
