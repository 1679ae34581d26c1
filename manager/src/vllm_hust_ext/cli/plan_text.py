"""A launch plan as text: what changes, who asks for it, what was left as the user had it and why."""

from __future__ import annotations

import shlex

from vllm_hust_ext.cli.output import Output
from vllm_hust_ext.errors import Refused
from vllm_hust_ext.launch_model import EnvironmentItem, LaunchPlan
from vllm_hust_ext.planning import Planned


def show(out: Output, planned: Planned) -> None:
    """Print the plan as a diff: ``+`` added, ``~`` changed, ``=`` left."""
    plan = planned.plan
    if plan.extensions:
        out.line("extensions in this launch:")
        for extension_id in plan.extensions:
            out.line(f"{extension_id} ({planned.selection.sources.get(extension_id, '')})", indent=2)
    else:
        out.line("no extension is in this launch")
    out.line("environment:")
    for item in plan.environment:
        _environment(out, item)
    if not plan.environment:
        out.line("unchanged", indent=2)
    if plan.original_command:
        _command(out, plan)
    for note in plan.notes:
        out.line(f"{note.level}: {note.text}", "warn" if note.level == "warning" else "dim")


def _environment(out: Output, item: EnvironmentItem) -> None:
    owners = ", ".join(item.owners)
    why = f"; {item.why}" if item.why else ""
    if item.action == "set":
        out.line(f"+ {item.name}={item.value}", "good", indent=2, wrap=False)
        out.line(f"by {owners}{why}", "dim", indent=6)
    elif item.action in ("replaced", "extended"):
        out.line(f"- {item.name}={item.before}", "bad", indent=2, wrap=False)
        out.line(f"+ {item.name}={item.value}", "good", indent=2, wrap=False)
        out.line(f"{item.action} by {owners}{why}", "dim", indent=6)
    else:
        out.line(f"= {item.name}={item.value}", indent=2, wrap=False)
        asked = f"{owners} asks for {item.wanted}; left because " if item.action == "kept" else f"as {owners} asks; "
        out.line(f"{asked}{item.why}".rstrip("; "), "dim", indent=6)


def _command(out: Output, plan: LaunchPlan) -> None:
    out.line("command:")
    if plan.command == plan.original_command:
        out.line(f"= {shlex.join(plan.command)}", indent=2, wrap=False)
    else:
        out.line(f"- {shlex.join(plan.original_command)}", "bad", indent=2, wrap=False)
        out.line(f"+ {shlex.join(plan.command)}", "good", indent=2, wrap=False)
    for item in plan.arguments:
        name = f"{item.option} {item.key}" if item.key else item.option
        words = "already in your command, as" if item.action == "same" else "added for"
        out.line(f"{name} = {item.value}: {words} {', '.join(item.owners)}", "dim", indent=6)


def refuse_conflicts(plan: LaunchPlan) -> None:
    """Raise where the plan holds contradictions."""
    if not plan.conflicts:
        return
    ways = list(dict.fromkeys(way for c in plan.conflicts for way in c.ways_out))
    raise Refused(
        f"the launch contradicts itself in {len(plan.conflicts)} place{'s' if len(plan.conflicts) > 1 else ''}",
        name="launch-conflict",
        where="run",
        reasons=[c.text for c in plan.conflicts],
        hint="; or ".join(ways),
    )
