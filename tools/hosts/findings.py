"""From the parts of a release's record to one row a carrier, and to the list of what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: The proof test's "carrier" that is about the release as such.
STOCK = "stock host"
UNKNOWN = "unknown"


@dataclass
class Row:
    """What is known of one carrier on one release; `None` where the part was not run.

    Attributes:
        static, live: (seams that match, seams, those that the sources alone cannot judge).
        agree: whether the two say the same of every seam that both judge.
        state: installed, refused, ... in the live check, with the reason.
        defects: name -> present, as the proof tests found it. engaged: the most that one engine counted.
        proof: (passed, run). clean: nothing of the carrier was left in the host.
        problems: what makes the run fail.
    """

    carrier: str
    static: tuple[int, int, int] | None = None
    live: tuple[int, int, int] | None = None
    agree: bool | None = None
    state: str | None = None
    reason: str = ""
    defects: dict[str, bool] = field(default_factory=dict)
    engaged: int | None = None
    proof: tuple[int, int] | None = None
    clean: bool | None = None
    problems: list[str] = field(default_factory=list)


def rows(parts: Mapping[str, Any], carriers: Iterable[str]) -> list[Row]:
    """One row for each of `carriers`; `parts` is part -> result of a record."""
    return [_row(name, parts) for name in carriers]


def _row(name: str, parts: Mapping[str, Any]) -> Row:
    row = Row(name)
    static = (parts.get("static") or {}).get(name)
    live = (parts.get("live") or {}).get("carriers", {}).get(name)
    if static is not None:
        row.static = _count(static)
    elif parts.get("static") is not None:
        row.problems.append("no bundle's seams sidecar names it")
    if live is not None:
        row.live = _count(live["seams"])
        row.state, row.reason = live["state"], live["state_reason"]
        row.clean = not live["left"]
        if live["left"]:
            row.problems.append(f"left in the host after uninstall: {', '.join(live['left'][:5])}")
        if live["state"] == "installed" and not live["changed"]:
            row.problems.append("installed, but nothing of the host was changed")
    elif parts.get("live") is not None:
        row.problems.append("tests/emulated/switched_on.py does not say how it is switched on")
    if static is not None and live is not None:
        differing = disagreements(static, live["seams"])
        row.agree = not differing
        row.problems += differing
    if parts.get("proofs") is not None:
        _add_proofs(row, parts["proofs"]["records"])
    return row


def _count(seams: list[Mapping[str, Any]]) -> tuple[int, int, int]:
    statuses = [seam["status"] for seam in seams]
    return statuses.count("matched"), len(statuses), statuses.count(UNKNOWN)


def disagreements(static: list[Mapping[str, Any]], live: list[Mapping[str, Any]]) -> list[str]:
    """The seams of which the source files and the live host say different things."""
    named = [[(seam["target"], seam["check"]) for seam in seams] for seams in (static, live)]
    if named[0] != named[1]:
        return ["its sidecar holds other seams than it declares: run python tools/write_sidecars.py"]
    return [
        f"{one['target']} ({one['check']}): {one['status']} in the sources ({one['detail']}), "
        f"{other['status']} on the live host ({other['detail']})"
        for one, other in zip(static, live, strict=True)
        if one["status"] != UNKNOWN and (one["status"] == "matched") != (other["status"] == "matched")
    ]


def _add_proofs(row: Row, records: list[Mapping[str, Any]]) -> None:
    mine = [record for record in records if row.carrier in record["carriers"]]
    passed = [record for record in mine if record["outcome"] == "passed"]
    row.proof = len(passed), len(mine)
    if not mine:
        row.problems.append("no proof test names it")
    row.problems += [
        f"{record['test']} {record['outcome']}: {record['message']}" for record in mine if record["outcome"] != "passed"
    ]
    for record in mine:
        for defect in record["defects"]:
            name = defect["name"]
            if row.defects.setdefault(name, defect["present"]) != defect["present"]:
                row.problems.append(f"its proof tests contradict each other about the defect {name}")
    reports = [report for record in mine for report in record["reports"] if report["name"] == row.carrier]
    if reports:
        row.engaged = max(int(report["engaged"]) for report in reports)
    failures = sorted({cause for report in reports for cause in report.get("failures", {})})
    row.problems += [f"it failed and the host's own path ran: {cause}" for cause in failures]


def release_problems(parts: Mapping[str, Any], carriers: Iterable[str]) -> list[str]:
    """Everything that makes the run of a release fail, a line each."""
    found = [f"{row.carrier}: {problem}" for row in rows(parts, carriers) for problem in row.problems]
    live, proofs, model = parts.get("live"), parts.get("proofs"), parts.get("host_model")
    if live is not None:
        found += [f"{name} cannot be imported: {why}" for name, why in live["not_imported"].items()]
        if live["together"]["left"]:
            found.append(f"left after all carriers together: {', '.join(live['together']['left'][:5])}")
    if proofs is not None:
        for record in proofs["records"]:
            if STOCK in record["carriers"] and record["outcome"] != "passed":
                found.append(f"{record['test']} {record['outcome']}: {record['message']}")
    if model is not None:
        found += [f"host model: {line}" for line in model["not_passed"]]
    return found
