"""The checks of ``doctor``, a file per subject. Each is a function of a session that yields findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vllm_hust_ext.checks import gates, installation, intents, runtime, stack
from vllm_hust_ext.errors import ManagerError
from vllm_hust_ext.findings import Finding, Severity
from vllm_hust_ext.session import Session

Check = Callable[[Session], Iterable[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("extensions", installation.extensions),
    ("distributions", installation.duplicates),
    ("plugins", installation.plugins),
    ("allowlist", installation.allowlist),
    ("optional-requirements", installation.optional_requirements),
    ("intents", intents.intents),
    ("gates", gates.exported),
    ("misspelt-gates", gates.misspelt),
    ("host-stack", stack.stack),
    ("reports", runtime.reports),
    ("providers", installation.providers),
)


def run_all(session: Session) -> Iterator[Finding]:
    """Every check's findings; a check that finds nothing wrong says so with one OK finding of its name."""
    yield from session.providers.doctor_findings(session.environment)
    for name, check in CHECKS:
        try:
            found = list(check(session))
        except ManagerError as error:
            where = f"{error.where}: " if error.where else ""
            found = [Finding(name, Severity.ERROR, where + error.message, error.hint)]
        if not any(f.severity is not Severity.OK for f in found) and not found:
            found = [Finding(name, Severity.OK, "nothing to report")]
        yield from found
