"""``extension plan``, ``render`` and ``env``: what a launch would get, for people and for other launchers."""

from __future__ import annotations

import os

import click

from vllm_hust_ext.cli.common import id_argument, json_option, python_option
from vllm_hust_ext.cli.output import Output, one_line, warn
from vllm_hust_ext.cli.plan_text import refuse_conflicts, show
from vllm_hust_ext.cli.run import Chosen, selection_options
from vllm_hust_ext.errors import ExitCode
from vllm_hust_ext.planning import Planned, plan_launch
from vllm_hust_ext.session import Session

_PLACEHOLDER = ("vllm", "serve")


def _plan(session: Session, chosen: Chosen, command: tuple[str, ...]) -> Planned:
    return plan_launch(
        session,
        chosen.flags,
        command,
        dict(os.environ),
        override=chosen.override,
        allowed_variables=chosen.allowed_variables,
    )


@click.command()
@selection_options
@json_option
@python_option
def env(chosen: Chosen, json_mode: bool, python: str | None) -> int:
    """Show the environment that 'run' would add, for all enabled extensions."""
    session, out = Session(python), Output(json_mode)
    planned = _plan(session, chosen, ())
    refuse_conflicts(planned.plan)
    if json_mode:
        out.document(
            "extension-env",
            {
                "environment": planned.plan.changes,
                "items": [i.as_json() for i in planned.plan.environment],
                "notes": [n.as_json() for n in planned.plan.notes],
            },
        )
    else:
        for name, value in sorted(planned.plan.changes.items()):
            out.raw(f"{name}={one_line(value)}\n")
        for text in planned.plan.warnings:
            warn(text)
    return ExitCode.OK


@click.command()
@id_argument
@json_option
@python_option
def plan(extension_id: str, json_mode: bool, python: str | None) -> int:
    """Show what this one extension would add to a launch of 'vllm serve', whether it is enabled or not."""
    session, out = Session(python), Output(json_mode)
    planned = _plan_one(session, extension_id)
    if json_mode:
        out.document("extension-plan", {"extension_id": extension_id, **planned.as_json()})
    else:
        show(out, planned)
    if not json_mode:
        refuse_conflicts(planned.plan)
    return ExitCode.REFUSED if planned.plan.conflicts else ExitCode.OK


def _plan_one(session: Session, extension_id: str) -> Planned:
    """The plan of one extension alone; that it does not fit, or is inert, does not hide what it would do."""
    from vllm_hust_ext.launch_model import Member, Request
    from vllm_hust_ext.launch_plan import make_plan
    from vllm_hust_ext.planning import read_yaml
    from vllm_hust_ext.selection import Selection

    bundle = session.bundle(extension_id)
    member = Member(bundle, session.intents.configuration(extension_id))
    made = make_plan(
        Request(
            members=[member],
            inventory=session.inventory,
            variables=dict(os.environ),
            command=_PLACEHOLDER,
            host_keys={h.distribution.key: h.distribution.name for h in session.hosts.found.values()},
            read_yaml=read_yaml,
        )
    )
    return Planned(made, Selection((member,), {extension_id: "asked for"}, {}))


@click.command()
@click.argument("extension_id", metavar="[ID]", required=False)
@click.option(
    "--format", "format_", type=click.Choice(["shell", "dotenv", "systemd"]), default="shell", show_default=True
)
@selection_options
@json_option
@python_option
def render(extension_id: str | None, format_: str, chosen: Chosen, json_mode: bool, python: str | None) -> int:
    """Print a launch for people who launch by other means: shell lines, a dotenv file or a systemd drop-in.

    With ID it is that extension's part alone; without, that of all enabled ones. Nothing is written.
    """
    from vllm_hust_ext.rendering import FORMATS

    session, out = Session(python), Output(json_mode)
    if extension_id is not None:
        planned = _plan_one(session, extension_id)
    else:
        planned = _plan(session, chosen, _PLACEHOLDER)
    refuse_conflicts(planned.plan)
    artifact = FORMATS[format_](planned.plan)
    if json_mode:
        out.document(
            "extension-render",
            {"artifacts": [{"name": artifact.name, "media_type": artifact.media_type, "content": artifact.content}]},
        )
    else:
        out.raw(artifact.content)
        for text in planned.plan.warnings:
            warn(text)
    return ExitCode.OK
