"""Proof tests: the tests that show, on whatever host release is installed, what a carrier does there.

`make hosts` runs them on every release and makes a table of what they record. A proof test is marked with its carrier
and tells the `proof` fixture what it saw::

    @pytest.mark.proof("rope-fix")
    def test_scaled_positions_equal_transformers(engines, build_model, proof):
        proof.defect("llama3-scaling-key", present=found, because="get_rope caches without the scaling")
        result = engines.run(model, batches, env=SWITCHED_ON["rope-fix"])
        proof.engine(result)                    # state, engaged, calls, reasons and failures of the worker's report
        assert result.tokens == expected

It holds on every release: where the carrier refuses, or its defect is not there, the test asserts just that (the state,
the reason by name, the host's own tokens). It never skips; a skipped proof is none.

With `SPLIT_BATCH_PROOF_RECORDS` naming a folder, every proof test leaves one JSON file there (`SCHEMA`); without it
nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

SCHEMA = "split-batch.proof/1"
RECORDS_VARIABLE = "SPLIT_BATCH_PROOF_RECORDS"
MARKER = "proof"

#: What is kept of a carrier's entry in an engine report.
KEPT = ("state", "state_reason", "engaged", "calls", "counters", "reasons", "failures")


class EngineResult(Protocol):
    def worker(self, name: str) -> dict[str, Any]: ...


@dataclass
class Facts:
    """What one proof test saw.

    Attributes:
        carriers: the names in the test's marker. defects: what the host lacks or wastes, as found on the live host.
        reports: entries of engine reports, in the order they were recorded. numbers: anything measured.
    """

    carriers: tuple[str, ...]
    defects: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)

    def defect(self, name: str, *, present: bool, because: str) -> None:
        """The host has (or no longer has) the defect or cost the carrier is made for; `because` is what was looked at.

        A carrier with several defects records each; a capability without a defect on the host's side records none.
        """
        self.defects.append({"name": name, "present": bool(present), "because": because})

    def engine(self, result: EngineResult, carrier: str | None = None) -> dict[str, Any]:
        """Record what the carrier did in the worker of an engine run, and return its entry in the report."""
        entry = result.worker(carrier or self._only_carrier())
        self.report(entry)
        return entry

    def report(self, entry: dict[str, Any]) -> None:
        """Record a carrier's entry of an engine report, or the result of `Carrier.report()` where there is none."""
        unmatched = [seam for seam in entry.get("seams", ()) if seam["status"] != "matched"]
        kept = {key: entry[key] for key in KEPT if key in entry}
        self.reports.append({"name": entry["name"], **kept, "unmatched_seams": unmatched})

    def number(self, name: str, value: float | int | str) -> None:
        """Record something measured, such as the bytes saved, for the table's reader."""
        self.numbers[name] = value

    def _only_carrier(self) -> str:
        assert len(self.carriers) == 1, f"name the carrier: the test is marked with {', '.join(self.carriers)}"
        return self.carriers[0]


FACTS = pytest.StashKey[Facts]()


def carriers_of(item: pytest.Item) -> tuple[str, ...]:
    """The carriers a test is marked with."""
    return tuple(dict.fromkeys(name for mark in item.iter_markers(MARKER) for name in mark.args))


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Facts:
    """What this test records about its carrier; see the module's docstring."""
    carriers = carriers_of(request.node)
    assert carriers, "a test with the fixture `proof` is marked: @pytest.mark.proof('the carrier\\'s name')"
    return request.node.stash.setdefault(FACTS, Facts(carriers))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}(carrier, ...): shows what a carrier does on the installed host")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    folder = os.environ.get(RECORDS_VARIABLE)
    carriers = carriers_of(item)
    report: pytest.TestReport = outcome.get_result()
    if not folder or not carriers or not (report.when == "call" or (report.when == "setup" and not report.passed)):
        return
    facts = item.stash.get(FACTS, Facts(carriers))
    said = "" if report.passed else str(report.longrepr[2] if report.skipped else call.excinfo and call.excinfo.value)
    document = {
        "schema": SCHEMA,
        "test": item.nodeid,
        "outcome": report.outcome,
        "message": said.strip().splitlines()[0][:300] if said.strip() else "",
        "seconds": round(report.duration, 2),
        **asdict(facts),
    }
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
    (place / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
