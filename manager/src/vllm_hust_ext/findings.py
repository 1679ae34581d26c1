"""One finding of ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Severity(str, Enum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do."""

    check: str
    severity: Severity
    message: str
    fix: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"check": self.check, "severity": self.severity.value, "message": self.message, "fix": self.fix}
