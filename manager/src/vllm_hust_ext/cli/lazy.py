"""Commands that are imported when they are used: what a command line does not need costs it nothing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are named as ``module:attribute``.

    Args:
        commands_from: name -> ``module:attribute``.
        external: also offer the commands that installed distributions register (``vllm_hust_ext.commands``).
    """

    def __init__(self, *args: Any, commands_from: Mapping[str, str], external: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(commands_from)
        self._external = external

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = list(self._lazy)
        if self._external:
            from vllm_hust_ext.cli.external import external_commands

            names += [name for name in sorted(external_commands()) if name not in self._lazy]
        return names

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        target = self._lazy.get(name)
        if target is not None:
            module, _, attribute = target.partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        if self._external:
            from vllm_hust_ext.cli.external import external_command

            return external_command(name)
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if near:
                raise click.UsageError(f"{error.message.rstrip('.')}; did you mean {near[0]!r}?", ctx) from None
            raise
