"""From a session, flags and a command to a launch plan: the part that reads (files, environment) around the pure
plan.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_hust_ext.launch_model import LaunchPlan, Note, Request
from vllm_hust_ext.launch_plan import make_plan
from vllm_hust_ext.regular_files import read_regular
from vllm_hust_ext.selection import Flags, Selection, select
from vllm_hust_ext.session import Session

MAX_YAML_BYTES = 8 << 20


@dataclass(frozen=True)
class Planned:
    """A plan and where its extensions come from."""

    plan: LaunchPlan
    selection: Selection

    def as_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.as_json(),
            "sources": dict(self.selection.sources),
            "skipped": [r.as_json() for r in self.selection.skipped],
            "allowed": [r.as_json() for r in self.selection.allowed],
        }


def read_yaml(path: str) -> Mapping[str, Any]:
    """Read a ``--config`` file as vLLM does.

    Raises:
        ValueError: one sentence.
    """
    # By name: its type stubs are a distribution of their own that need not be there.
    yaml: Any = importlib.import_module("yaml")
    if path.rpartition(".")[2] not in ("yaml", "yml"):
        raise ValueError("vLLM takes only .yaml and .yml files")
    try:
        document = yaml.safe_load(read_regular(path, MAX_YAML_BYTES).decode("utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is not YAML: {' '.join(str(error).split())}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError("is not a mapping")
    return document


def plan_launch(
    session: Session,
    flags: Flags,
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    override: bool = False,
    allowed_variables: Sequence[str] = (),
    manager_variables: Mapping[str, str] | None = None,
) -> Planned:
    """Choose the extensions and compose the launch.

    Raises:
        Refused, UsageFault: see :func:`vllm_hust_ext.selection.select`.
    """
    selection = select(session, flags)
    wanted = dict(manager_variables or {})
    notes: list[Note] = [Note("note", text) for text in selection.notes]
    if wanted and "--fail-on-environ-validation" in [part.replace("_", "-") for part in command]:
        # vLLM refuses VLLM_ variables that it does not know under this option.
        notes.append(
            Note(
                "warning",
                f"not set because of --fail-on-environ-validation: {', '.join(sorted(wanted))};"
                " 'extension status' will not see this launch",
            )
        )
        wanted = {}
    plan = make_plan(
        Request(
            members=selection.members,
            inventory=session.inventory,
            variables=variables,
            command=command,
            host_keys={h.distribution.key: h.distribution.name for h in session.hosts.found.values()},
            read_yaml=read_yaml,
            override=override,
            allowed_variables=frozenset(allowed_variables),
            manager_variables=wanted,
            excluded=selection.excluded,
        )
    )
    for refusal in selection.skipped:
        notes.append(Note("warning", f"{refusal.extension_id} is skipped: {'; '.join(refusal.reasons)}"))
    for refusal in selection.allowed:
        notes.append(
            Note(
                "warning",
                f"{refusal.extension_id} is launched because of --allow, although: {'; '.join(refusal.reasons)}",
            )
        )
    if notes:
        from dataclasses import replace

        plan = replace(plan, notes=(*notes, *plan.notes))
    return Planned(plan, selection)
