"""``vllm-hust-ext doctor``: all checks, what they found, and what to do."""

from __future__ import annotations

import click

from vllm_hust_ext.cli.common import json_option, python_option
from vllm_hust_ext.cli.output import Output
from vllm_hust_ext.errors import BrokenState, ExitCode
from vllm_hust_ext.findings import Finding, Severity
from vllm_hust_ext.session import Session

_TONES = {Severity.OK: "good", Severity.NOTE: "", Severity.WARNING: "warn", Severity.ERROR: "bad"}


@click.command()
@click.option("--repair", is_flag=True, help="Move a damaged intents file aside and keep what can be read of it.")
@json_option
@python_option
def doctor(repair: bool, json_mode: bool, python: str | None) -> int:
    """Run all checks. Exit code 0 healthy, 1 if there is a warning or an error, 4 if the intents file is damaged."""
    from vllm_hust_ext.checks import run_all

    session, out = Session(python), Output(json_mode)
    repaired = _repair(session) if repair else None
    findings = [*([repaired] if repaired else []), *run_all(session)]
    damaged = False
    try:
        _ = session.intents
    except BrokenState:
        damaged = True
    unhealthy = any(f.severity in (Severity.WARNING, Severity.ERROR) for f in findings)
    if json_mode:
        from vllm_hust_ext.views import environment_view

        out.document(
            "doctor",
            {
                "healthy": not unhealthy and not damaged,
                "environment": environment_view(session),
                "findings": [f.as_json() for f in findings],
            },
        )
    else:
        _show(out, session, findings)
    return ExitCode.BROKEN if damaged else ExitCode.NO if unhealthy else ExitCode.OK


def _repair(session: Session) -> Finding:
    result = session.store.repair()
    if result is None:
        return Finding("repair", Severity.OK, "the intents file is sound; nothing was changed")
    kept, rescued = result
    names = ", ".join(sorted(rescued.entries)) or "nothing"
    return Finding(
        "repair",
        Severity.NOTE,
        f"{session.origin.path} was damaged: it is kept as {kept}, and a new file holds what could be"
        f" read of it ({names})",
        "look whether something that you masked or enabled is missing",
    )


def _show(out: Output, session: Session, findings: list[Finding]) -> None:
    hosts = ", ".join(h.describe() for h in session.hosts.found.values()) or "no host"
    out.line(f"{session.environment.prefix}: Python {session.environment.python_version}, {hosts}")
    if session.hosts.emulated_npu:
        out.line(f"emulated NPU ({session.hosts.emulated_npu})", "warn")
    for finding in findings:
        out.line(f"{finding.severity.value:<8}{finding.check}: {finding.message}", _TONES[finding.severity], indent=2)
        if finding.fix and finding.severity is not Severity.OK:
            out.line(f"what to do: {finding.fix}", "dim", indent=10)
    count = sum(f.severity in (Severity.WARNING, Severity.ERROR) for f in findings)
    out.line(
        (f"{count} thing{'' if count == 1 else 's'} to look at") if count else "healthy", "warn" if count else "good"
    )
