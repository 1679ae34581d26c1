"""Gates in the environment: exported by hand for extensions that are off, and names that look like a mistake."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from vllm_hust_ext.errors import BrokenState
from vllm_hust_ext.findings import Finding, Severity
from vllm_hust_ext.intents import State
from vllm_hust_ext.launch_environment import means_on
from vllm_hust_ext.session import Session


def exported(session: Session) -> Iterator[Finding]:
    """Variables of extensions that are exported in this shell."""
    for bundle in session.inventory.bundles.values():
        try:
            state = session.state(bundle.extension_id)
        except BrokenState:
            return
        for name, wanted in bundle.manifest.activation.environment.items():
            value = os.environ.get(name)
            if value is None:
                continue
            if state is State.ENABLED and value != wanted:
                yield Finding(
                    "gates",
                    Severity.NOTE,
                    f"you exported {name}={value}; {bundle.extension_id} asks for {wanted!r}, and yours wins",
                    "unset it, or launch with --override",
                )
            elif state is not State.ENABLED and means_on(value):
                yield Finding(
                    "gates",
                    Severity.WARNING,
                    f"{bundle.extension_id} is {state.value}, but you exported {name}={value}, which may"
                    " switch it on all the same",
                    f"unset {name}",
                )


def misspelt(session: Session) -> Iterator[Finding]:
    """Exported names that differ from a known gate by a slip of the fingers."""
    known = {n for b in session.inventory.bundles.values() for n in b.manifest.activation.environment}
    if not known:
        return
    foreign = host_variables(session)
    for name in sorted(os.environ):
        if name in known or name in foreign or len(name) < 8:
            continue
        near = next((k for k in sorted(known) if _near(name, k)), None)
        if near is not None:
            yield Finding(
                "misspelt-gates",
                Severity.WARNING,
                f"you exported {name}, which nothing here reads; did you mean {near}?",
                f"export {near}={os.environ[name]}; unset {name}",
            )


def host_variables(session: Session) -> frozenset[str]:
    """Names that the installed vLLM and vllm-ascend read, taken from the text of their ``envs.py``."""
    names: set[str] = set()
    for host in session.hosts.found.values():
        if host.folder is None:
            continue
        try:
            text = (host.folder / "envs.py").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        names |= set(re.findall(r"""["']([A-Z][A-Z0-9_]{3,})["']""", text))
    return frozenset(names)


def _near(left: str, right: str) -> bool:
    """One or two slips apart: an edit distance of at most 2, or the same letters with other separators or case."""
    if left == right:
        return False
    if re.sub(r"[^A-Z0-9]", "", left.upper()) == re.sub(r"[^A-Z0-9]", "", right.upper()):
        return True
    if abs(len(left) - len(right)) > 2:
        return False
    previous = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        current = [i]
        for j, b in enumerate(right, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (a != b)))
        if min(current) > 2:
            return False
        previous = current
    return previous[-1] <= 2
