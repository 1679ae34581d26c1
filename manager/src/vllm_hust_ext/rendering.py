"""A launch plan in the words of other launchers: shell, dotenv, systemd."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from vllm_hust_ext.errors import Refused
from vllm_hust_ext.launch_model import LaunchPlan


@dataclass(frozen=True)
class Artifact:
    name: str
    media_type: str
    content: str


def _extra_arguments(plan: LaunchPlan) -> list[str]:
    """Arguments that the plan adds to ``vllm serve``."""
    return (
        list(plan.command[len(plan.original_command) :])
        if plan.command[: len(plan.original_command)] == plan.original_command
        else []
    )


def _head(plan: LaunchPlan) -> list[str]:
    names = ", ".join(plan.extensions) or "no extension"
    return [f"# made by vllm-hust-ext for: {names}", *(f"# {n.level}: {n.text}" for n in plan.notes)]


def shell(plan: LaunchPlan) -> Artifact:
    """``export`` lines for a POSIX shell; added arguments as a comment and in VLLM_HUST_EXT_ARGUMENTS-free form."""
    lines = [line.replace("\n", " ") for line in _head(plan)]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(plan.changes.items())]
    extra = _extra_arguments(plan)
    if extra:
        lines.append(f"# add to your command: {shlex.join(extra)}")
    return Artifact("vllm-launch.sh", "text/x-shellscript", "\n".join(lines) + "\n")


def dotenv(plan: LaunchPlan) -> Artifact:
    """``NAME=value`` lines. The format has no quoting that all readers share: line breaks are refused."""
    lines = [line.replace("\n", " ") for line in _head(plan)]
    for name, value in sorted(plan.changes.items()):
        if "\n" in value or "\r" in value:
            raise Refused(
                f"{name} holds a line break, which a dotenv file cannot say",
                where="extension render",
                hint="use --format shell",
            )
        lines.append(f"{name}={value}")
    extra = _extra_arguments(plan)
    if extra:
        lines.append(f"# add to your command: {shlex.join(extra)}")
    return Artifact("vllm-launch.env", "text/plain", "\n".join(lines) + "\n")


def systemd(plan: LaunchPlan) -> Artifact:
    """A drop-in with ``Environment=`` lines, quoted as systemd reads them (``%`` doubled)."""
    lines = [*(line.replace("\n", " ") for line in _head(plan)), "[Service]"]
    for name, value in sorted(plan.changes.items()):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
        lines.append(f'Environment="{name}={escaped}"')
    extra = _extra_arguments(plan)
    if extra:
        lines.append(f"# add to ExecStart=: {shlex.join(extra)}")
    return Artifact("vllm-hust-ext.conf", "text/plain", "\n".join(lines) + "\n")


FORMATS: dict[str, Callable[[LaunchPlan], Artifact]] = {"shell": shell, "dotenv": dotenv, "systemd": systemd}
