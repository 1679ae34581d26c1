"""Options and helpers that commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


JSON_KEY = "vllm_hust_ext.json"
"""Where click's context keeps whether the command was asked for JSON."""


def _remember_json(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    context.meta[JSON_KEY] = value
    return value


def json_option(function: F) -> F:
    return click.option(
        "--json",
        "json_mode",
        is_flag=True,
        is_eager=True,
        callback=_remember_json,
        help="Print one JSON document on stdout.",
    )(function)


def python_option(function: F) -> F:
    return click.option(
        "--python",
        metavar="PYTHON",
        default=None,
        help="Inspect the environment of this interpreter instead of the manager's own.",
    )(function)


def _complete_id(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from vllm_hust_ext.session import Session

    try:
        return [i for i in Session(context.params.get("python")).inventory.known_ids() if i.startswith(incomplete)]
    except Exception:
        return []


def id_argument(function: F) -> F:
    return click.argument("extension_id", metavar="ID", shell_complete=_complete_id)(function)


def id_option(name: str, help_text: str) -> Callable[[F], F]:
    parameter = name.lstrip("-").replace("-", "_")
    return click.option(
        name,
        parameter + ("_" if parameter == "with" else ""),
        multiple=True,
        metavar="ID",
        help=help_text,
        shell_complete=_complete_id,
    )
