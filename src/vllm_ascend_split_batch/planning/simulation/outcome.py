"""What became of one request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vllm_ascend_split_batch.planning.traces import TraceRequest

_DECIMALS = 6


@dataclass(slots=True)
class Outcome:
    """Times in seconds of the trace's clock; None where it did not happen.

    Attributes:
        request: as it was in the trace.
        admitted: the step began in which it ran first.
        first_token: the step ended that produced its first token.
        finished: the step ended that produced its last token.
        outputs: tokens produced.
        preemptions: how often it lost its place and was computed again.
        reason: "stop", "length" (cut off by `max_tokens` or the model length), "rejected" (it can never run) or
            "unfinished" (nothing could be scheduled any more).
        why: of "rejected".
    """

    request: TraceRequest
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None
    outputs: int = 0
    preemptions: int = 0
    reason: str = "unfinished"
    why: str = ""

    @property
    def wait(self) -> float | None:
        """Seconds from arrival to admission."""
        return None if self.admitted is None else self.admitted - self.request.arrival

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.request.arrival

    @property
    def latency(self) -> float | None:
        """Seconds from arrival to the last token."""
        return None if self.finished is None else self.finished - self.request.arrival

    def document(self) -> dict[str, Any]:
        """One line of the command's output."""
        document: dict[str, Any] = {
            "id": self.request.id,
            "arrival": self.request.arrival,
            "admitted": _rounded(self.admitted),
            "first_token": _rounded(self.first_token),
            "finished": _rounded(self.finished),
            "prompt_tokens": self.request.prompt_tokens,
            "output_tokens": self.outputs,
            "preemptions": self.preemptions,
            "finish_reason": self.reason,
        }
        if self.request.job:
            document["job"] = self.request.job
        if self.why:
            document["why"] = self.why
        return document

    def line(self) -> str:
        """The same as JSON."""
        return json.dumps(self.document(), ensure_ascii=False, separators=(",", ":"))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DECIMALS)
