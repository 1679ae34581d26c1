"""Commands that extensions bring: entry-point group ``vllm_hust_ext.commands``, name = command, value = module.

They are run by exec of ``python -m MODULE ARGUMENTS``; the manager imports nothing of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import click

from vllm_hust_ext import environment as environments
from vllm_hust_ext.distributions import Distribution
from vllm_hust_ext.errors import BrokenState

GROUP = "vllm_hust_ext.commands"


@lru_cache(maxsize=1)
def external_commands() -> dict[str, tuple[str, Distribution]]:
    """Command -> (module, distribution). The first distribution by name wins where two register one command."""
    found: dict[str, tuple[str, Distribution]] = {}
    for key in sorted(environments.current().active):
        distribution = environments.current().active[key]
        for entry in distribution.entry_points:
            if entry.group == GROUP:
                found.setdefault(entry.name, (entry.value, distribution))
    return found


def external_command(name: str) -> click.Command | None:
    """The command ``name`` of an extension, or None."""
    entry = external_commands().get(name)
    if entry is None:
        return None
    module, distribution = entry

    @click.command(
        name=name,
        help=f"Command of {distribution.name} {distribution.version or ''}: runs 'python -m {module}'.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
        short_help=f"(from {distribution.name})",
        add_help_option=False,
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> Any:
        import os
        from pathlib import Path

        from vllm_hust_ext.launch import Program, execute

        if not all(part.isidentifier() for part in module.split(".")):
            raise BrokenState(
                f"{distribution.name} registers command {name!r} as {module!r}, which is not a module name",
                where=str(distribution.metadata_path),
                hint=f"tell the author of {distribution.name}",
            )
        python = environments.current().executable
        execute(Program(Path(python), Path(python), True), [str(python), "-m", module, *arguments], os.environ)

    return command
