"""What running engines say of themselves.

An extension writes one small file per process into the folder that ``VLLM_HUST_EXT_REPORT_DIR`` names
(``docs/formats/engine-report.md``). Here they are read; a file that cannot be understood is named and never stops the
others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_hust_ext.launch_folders import LAUNCH_FILE
from vllm_hust_ext.process_identity import Life, ProcessIdentity
from vllm_hust_ext.regular_files import read_regular

SCHEMA = "vllm-hust-ext.engine-report/1"
MAX_BYTES = 4 << 20
UNHEALTHY_STATES = ("refused", "latched")


@dataclass(frozen=True)
class Gate:
    name: str
    value: Any
    raw: str | None
    source: str


@dataclass(frozen=True)
class LiveSeam:
    target: str
    status: str
    detail: str


@dataclass(frozen=True)
class CarrierReport:
    """One carrier in one process.

    ``calls`` counts how often it was asked, ``engaged`` how often it took over; ``reasons`` counts why it did not.
    """

    name: str
    extension_id: str | None
    state: str
    state_reason: str
    engaged: int
    calls: int
    counters: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    last_failure: Mapping[str, Any] | None = None
    gates: tuple[Gate, ...] = ()
    seams: tuple[LiveSeam, ...] = ()

    @property
    def unhealthy(self) -> bool:
        return self.state in UNHEALTHY_STATES

    @property
    def effective(self) -> bool:
        """It is in place and really took over at least once."""
        return self.state == "installed" and self.engaged > 0

    def sentence(self) -> str:
        """For example: ``cascade engaged 1,280 of 1,400 calls; 120 below the prefix threshold``."""
        if self.state != "installed" and not self.calls:
            return f"{self.name} is {self.state}" + (f": {self.state_reason}" if self.state_reason else "")
        text = f"{self.name} engaged {self.engaged:,} of {self.calls:,} calls"
        for name, count in sorted(self.reasons.items(), key=lambda item: (-item[1], item[0])):
            text += f"; {count:,} {name.replace('_', ' ').replace('-', ' ')}"
        failed = sum(self.failures.values())
        if failed:
            text += f"; {failed:,} failed and ran the host's own path"
        if self.state != "installed":
            text += f"; now {self.state}" + (f": {self.state_reason}" if self.state_reason else "")
        return text

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "extension_id": self.extension_id,
            "state": self.state,
            "state_reason": self.state_reason,
            "effective": self.effective,
            "engaged": self.engaged,
            "calls": self.calls,
            "counters": dict(self.counters),
            "reasons": dict(self.reasons),
            "failures": dict(self.failures),
            "last_failure": dict(self.last_failure) if self.last_failure else None,
            "gates": [vars(g) for g in self.gates],
            "seams": [vars(s) for s in self.seams],
            "sentence": self.sentence(),
        }


@dataclass(frozen=True)
class EngineReport:
    """One process of an engine, as one distribution reports it."""

    path: Path
    distribution: str
    distribution_version: str | None
    launch_id: str | None
    process: ProcessIdentity
    role: str
    argv0: str
    started_at: str
    written_at: str
    host: Mapping[str, Any]
    carriers: tuple[CarrierReport, ...]

    @property
    def life(self) -> Life:
        return self.process.life()

    @property
    def title(self) -> str:
        return f"{self.role} {self.process.pid}"

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "distribution": {"name": self.distribution, "version": self.distribution_version},
            "launch_id": self.launch_id,
            "process": {**self.process.as_json(), "role": self.role, "argv0": self.argv0},
            "life": self.life.value,
            "started_at": self.started_at,
            "written_at": self.written_at,
            "host": dict(self.host),
            "carriers": [c.as_json() for c in self.carriers],
        }


@dataclass(frozen=True)
class UnreadableReport:
    path: Path
    reason: str


def _text(value: Any, default: str = "") -> str:
    return value if isinstance(value, str) else default


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _counts(value: Any) -> dict[str, int]:
    return {str(k): _count(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _carrier(value: Mapping[str, Any]) -> CarrierReport:
    failure = value.get("last_failure")
    return CarrierReport(
        name=_text(value.get("name"), "(unnamed)"),
        extension_id=value["extension_id"] if isinstance(value.get("extension_id"), str) else None,
        state=_text(value.get("state"), "unknown"),
        state_reason=_text(value.get("state_reason")),
        engaged=_count(value.get("engaged")),
        calls=_count(value.get("calls")),
        counters=_counts(value.get("counters")),
        reasons=_counts(value.get("reasons")),
        failures=_counts(value.get("failures")),
        last_failure=failure if isinstance(failure, dict) else None,
        gates=tuple(
            Gate(
                _text(g.get("name")),
                g.get("value"),
                g["raw"] if isinstance(g.get("raw"), str) else None,
                _text(g.get("source")),
            )
            for g in _objects(value.get("gates"))
        ),
        seams=tuple(
            LiveSeam(_text(s.get("target")), _text(s.get("status")), _text(s.get("detail")))
            for s in _objects(value.get("seams"))
        ),
    )


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def read_report(path: Path) -> EngineReport | UnreadableReport:
    """Read one report file."""
    try:
        if path.is_symlink():
            return UnreadableReport(path, "is a symbolic link")
        data = read_regular(path, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return UnreadableReport(path, f"has more than {MAX_BYTES} bytes")
        document: Any = json.loads(data, parse_constant=_refuse_constant)
    except OSError as error:
        return UnreadableReport(path, f"cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError) as error:
        return UnreadableReport(path, f"is not JSON: {error}")
    if not isinstance(document, dict):
        return UnreadableReport(path, "is not a JSON object")
    if document.get("schema") != SCHEMA:
        return UnreadableReport(path, f"has schema {document.get('schema')!r}, not {SCHEMA!r}")
    described = document.get("process")
    process = ProcessIdentity.from_json(described) if isinstance(described, dict) else None
    if process is None or not isinstance(described, dict):
        return UnreadableReport(path, "names no process")
    owner = document.get("distribution")
    owner = owner if isinstance(owner, dict) else {}
    host = document.get("host")
    return EngineReport(
        path=path,
        distribution=_text(owner.get("name"), "(unnamed)"),
        distribution_version=owner["version"] if isinstance(owner.get("version"), str) else None,
        launch_id=document["launch_id"] if isinstance(document.get("launch_id"), str) else None,
        process=process,
        role=_text(described.get("role"), "other"),
        argv0=_text(described.get("argv0")),
        started_at=_text(document.get("started_at")),
        written_at=_text(document.get("written_at")),
        host=host if isinstance(host, dict) else {},
        carriers=tuple(_carrier(c) for c in _objects(document.get("carriers"))),
    )


def read_folder(folder: Path) -> tuple[list[EngineReport], list[UnreadableReport]]:
    """All reports in a folder, by role and pid, and the files that are none."""
    try:
        paths = sorted(
            p for p in folder.iterdir() if p.suffix == ".json" and p.name != LAUNCH_FILE and p.name[0] != "."
        )
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return [], [] if missing else [UnreadableReport(folder, f"cannot be read: {error.strerror or error}")]
    read = [read_report(path) for path in paths]
    good = [r for r in read if isinstance(r, EngineReport)]
    return sorted(good, key=lambda r: (r.role, r.process.pid, r.distribution)), [
        r for r in read if isinstance(r, UnreadableReport)
    ]


def effective_extensions(reports: Iterable[EngineReport]) -> dict[str, list[EngineReport]]:
    """Extension id -> live processes in which one of its carriers really engaged."""
    found: dict[str, list[EngineReport]] = {}
    for report in reports:
        if report.life is not Life.LIVE:
            continue
        for extension_id in dict.fromkeys(c.extension_id for c in report.carriers if c.effective and c.extension_id):
            found.setdefault(extension_id, []).append(report)
    return found
