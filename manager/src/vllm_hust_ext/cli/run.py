"""``vllm-hust-ext run``: launch a command with the enabled extensions, by exec."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from vllm_hust_ext.cli.common import id_option, json_option, python_option
from vllm_hust_ext.cli.output import Output, warn
from vllm_hust_ext.errors import ExitCode, UsageFault
from vllm_hust_ext.selection import Flags
from vllm_hust_ext.session import Session


@dataclass(frozen=True)
class Chosen:
    """The flags that choose and shape one launch."""

    flags: Flags
    override: bool
    allowed_variables: tuple[str, ...]


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Flags that choose the extensions of one launch, handed over as ``chosen``; shared with ``env`` and ``render``."""

    @functools.wraps(function)
    def command(
        *args: Any,
        with_: tuple[str, ...],
        without: tuple[str, ...],
        no_extensions: bool,
        allow: tuple[str, ...],
        skip_incompatible: bool,
        override: bool,
        allow_variable: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        flags = Flags(with_, without, no_extensions, allow, skip_incompatible)
        return function(*args, chosen=Chosen(flags, override, allow_variable), **kwargs)

    for option in (
        click.option(
            "--allow-variable",
            "allow_variable",
            multiple=True,
            metavar="NAME",
            help="Let a manifest set this loader variable (PATH, LD_PRELOAD, ...).",
        ),
        click.option("--override", is_flag=True, help="Extensions' values win over variables that you exported."),
        click.option("--skip-incompatible", is_flag=True, help="Start with those that fit; leave the others out."),
        id_option("--allow", "Launch this one although it does not fit."),
        click.option("--no-extensions", is_flag=True, help="This launch has no extension."),
        id_option("--without", "This launch leaves this one out."),
        id_option("--with", "This launch also has this one."),
    ):
        command = option(command)
    return command


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--dry-run", is_flag=True, help="Show what would be launched, as a diff; start nothing.")
@selection_options
@click.option("--metrics", is_flag=True, help="Expose extensions' counters on vLLM's own /metrics.")
@click.option(
    "--shutdown-grace-seconds",
    type=float,
    default=None,
    hidden=True,
    help="Accepted for earlier managers' scripts; has no effect.",
)
@json_option
@python_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    dry_run: bool,
    chosen: Chosen,
    metrics: bool,
    shutdown_grace_seconds: float | None,
    json_mode: bool,
    python: str | None,
    command: tuple[str, ...],
) -> int:
    """Launch COMMAND with the enabled extensions: vllm-hust-ext run -- vllm serve MODEL

    The manager replaces itself by the command, so signals and the exit code are the command's own.
    """
    from vllm_hust_ext import launch, launch_folders
    from vllm_hust_ext.cli.plan_text import refuse_conflicts
    from vllm_hust_ext.launch_environment import LAUNCH_ID_VARIABLE, METRICS_VARIABLE, REPORT_DIR_VARIABLE
    from vllm_hust_ext.planning import plan_launch

    if json_mode and not dry_run:
        raise UsageFault(
            "--json goes with --dry-run: a started command has the output for itself", hint="add --dry-run"
        )
    if not command:
        raise UsageFault("there is no command", where="run", hint="for example: vllm-hust-ext run -- vllm serve MODEL")
    if shutdown_grace_seconds is not None:
        warn("--shutdown-grace-seconds has no effect: the command gets its signals directly")
    session, out = Session(python), Output(json_mode)
    variables = dict(os.environ)
    launch_id = launch_folders.new_launch_id()
    own: dict[str, str] = {}
    folder = launch_folders.launches_folder()
    if not chosen.flags.no_extensions and not folder.is_absolute():
        warn(f"{launch_folders.UNKNOWN_FOLDER}; set {launch_folders.STATE_VARIABLE} to have them seen")
    elif not chosen.flags.no_extensions:
        own = {REPORT_DIR_VARIABLE: str(folder / launch_id), LAUNCH_ID_VARIABLE: launch_id}
        if metrics:
            own[METRICS_VARIABLE] = "1"
    planned = plan_launch(
        session,
        chosen.flags,
        command,
        variables,
        override=chosen.override,
        allowed_variables=chosen.allowed_variables,
        manager_variables=own,
    )
    plan = planned.plan
    if dry_run:
        return _dry_run(session, out, planned, variables)
    refuse_conflicts(plan)
    program = launch.resolve(plan.command, session.environment, variables)
    for text in plan.warnings:
        warn(text)
    variables.update(plan.changes)
    exported = os.environ.get(REPORT_DIR_VARIABLE)
    if exported and not os.path.isdir(exported):
        warn(f"you exported {REPORT_DIR_VARIABLE}={exported}, which is no folder: engines will write no reports")
    if own and variables.get(REPORT_DIR_VARIABLE) == own[REPORT_DIR_VARIABLE]:
        try:
            launch_folders.create(launch_id, session.environment.prefix, plan.command, plan.extensions)
            launch_folders.age_out()
        except OSError as error:
            warn(
                f"no report folder could be made ({error.strerror or error}), so 'extension status' will"
                " not see this launch"
            )
            variables.pop(REPORT_DIR_VARIABLE, None)
    launch.execute(program, plan.command, variables)
    return None


def _dry_run(session: Session, out: Output, planned: Any, variables: dict[str, str]) -> int:
    from vllm_hust_ext import launch
    from vllm_hust_ext.cli.plan_text import refuse_conflicts, show
    from vllm_hust_ext.errors import ManagerError

    plan = planned.plan
    problem: ManagerError | None = None
    program: launch.Program | None = None
    try:
        program = launch.resolve(plan.command, session.environment, variables)
    except ManagerError as error:
        problem = error
    if out.json_mode:
        if plan.conflicts or problem is None:
            out.document(
                "run-plan",
                {
                    "would_launch": not plan.conflicts,
                    "program": str(program.path) if program else None,
                    "environment": plan.changes,
                    **planned.as_json(),
                },
            )
            return ExitCode.REFUSED if plan.conflicts else ExitCode.OK
    else:
        show(out, planned)
        if program is not None:
            out.line(f"program: {program.path}")
            if not program.from_environment:
                out.line(
                    "note: it is no Python program of this environment; what it starts itself is not checked", "dim"
                )
    refuse_conflicts(plan)
    if problem is not None:
        raise problem
    out.line(f"nothing was started; 'vllm-hust-ext run -- {shlex.join(plan.original_command)}' does it")
    return ExitCode.OK
