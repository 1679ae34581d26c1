"""The parts of a launch plan, as plain data: what it is made of and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_hust_ext import vllm_options
from vllm_hust_ext.discovery import Bundle, Inventory
from vllm_hust_ext.manifest.model import Manifest

MANAGER = "vllm-hust-ext"
USER = "you"


@dataclass(frozen=True)
class Member:
    """An extension of the launch with its stored configuration."""

    bundle: Bundle
    configuration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest


@dataclass(frozen=True)
class EnvironmentItem:
    """One variable of the launch.

    ``action``: ``set`` (new), ``replaced`` (by --override or because the manager owns it), ``extended`` (a list),
    ``same`` (was so already), ``kept`` (the user's value was left; ``wanted`` is what the owners asked for).
    """

    name: str
    value: str
    before: str | None
    action: str
    owners: tuple[str, ...]
    wanted: str | None = None
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "before": self.before,
            "action": self.action,
            "owners": list(self.owners),
            "wanted": self.wanted,
            "why": self.why or None,
        }


@dataclass(frozen=True)
class ArgumentItem:
    """One option, or one key of a JSON option. ``action``: ``added`` or ``same`` (the user's command already says
    so).
    """

    option: str
    key: str | None
    value: Any
    action: str
    owners: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "option": self.option,
            "key": self.key,
            "value": self.value,
            "action": self.action,
            "owners": list(self.owners),
        }


@dataclass(frozen=True)
class Note:
    level: str
    """``note`` or ``warning``."""
    text: str

    def as_json(self) -> dict[str, Any]:
        return {"level": self.level, "text": self.text}


@dataclass(frozen=True)
class Conflict:
    """A real contradiction: nothing is launched. It names the owners and the ways out."""

    subject: str
    text: str
    ways_out: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"subject": self.subject, "text": self.text, "ways_out": list(self.ways_out)}


@dataclass(frozen=True)
class LaunchPlan:
    """What a launch is: the command, the environment it gets on top of the user's, and why."""

    extensions: tuple[str, ...]
    command: tuple[str, ...]
    original_command: tuple[str, ...]
    environment: tuple[EnvironmentItem, ...]
    arguments: tuple[ArgumentItem, ...]
    notes: tuple[Note, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def changes(self) -> dict[str, str]:
        """Variables that the launch sets, as name -> value."""
        return {i.name: i.value for i in self.environment if i.action in ("set", "replaced", "extended")}

    @property
    def warnings(self) -> list[str]:
        return [n.text for n in self.notes if n.level == "warning"]

    def as_json(self) -> dict[str, Any]:
        return {
            "extensions": list(self.extensions),
            "command": list(self.command),
            "original_command": list(self.original_command),
            "environment": [i.as_json() for i in self.environment],
            "arguments": [i.as_json() for i in self.arguments],
            "notes": [n.as_json() for n in self.notes],
            "conflicts": [c.as_json() for c in self.conflicts],
        }


@dataclass(frozen=True)
class Request:
    """All that a plan is made of."""

    members: Sequence[Member]
    inventory: Inventory
    variables: Mapping[str, str]
    command: Sequence[str]
    host_keys: Mapping[str, str] = field(default_factory=dict)
    read_yaml: vllm_options.YamlReader = field(default=lambda path: {})
    override: bool = False
    allowed_variables: frozenset[str] = frozenset()
    manager_variables: Mapping[str, str] = field(default_factory=dict)
    """Report folder and launch id, set for the engines."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Installed extensions that are not in this launch -> the word for why (disabled, masked, ...)."""
    mark_enabled: bool = True


def leave_out(*ids: str) -> tuple[str, ...]:
    """The ways out of a conflict that every extension has."""
    return tuple(f"--without {i}" for i in ids)
