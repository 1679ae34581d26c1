"""``VLLM_PLUGINS``: what a launch makes of it.

vLLM loads every installed plugin where the variable is unset. Set, it is an exact list (split at commas, blanks
count) for all plugin groups, the platform's too. So unset stays unset, a user's list is only ever extended, and an
empty one is respected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_hust_ext.discovery import Plugin

VARIABLE = "VLLM_PLUGINS"
ENDPOINT_GROUP = "vllm.endpoint_plugins"


@dataclass(frozen=True)
class Needed:
    """A plugin that an extension of this launch is carried by."""

    name: str
    group: str
    owner: str


@dataclass(frozen=True)
class AllowlistAnswer:
    """``value`` is what the launch sets, None for "leave it as it is"."""

    value: str | None
    added: tuple[Needed, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    """(level, sentence); level is ``note`` or ``warning``."""


def extend(
    current: str | None, needed: Sequence[Needed], installed: Sequence[Plugin], host_keys: Mapping[str, str]
) -> AllowlistAnswer:
    """What ``VLLM_PLUGINS`` must be.

    Args:
        current: the user's value, None where unset.
        needed: plugins of the extensions in this launch.
        installed: every plugin of the environment.
        host_keys: canonical distribution name -> name, of the installed hosts.
    """
    names = list(dict.fromkeys(n.name for n in needed))
    if current is None:
        notes: list[tuple[str, str]] = []
        lazy = sorted({n.name for n in needed if n.group == ENDPOINT_GROUP})
        if lazy:
            everything = ",".join(sorted({p.name for p in installed}))
            notes.append(
                (
                    "warning",
                    (
                        f"vLLM loads endpoint plugin {', '.join(lazy)} only where {VARIABLE} names it; it is"
                        " unset and left so, because"
                        f" a list would switch every other plugin off. To have it, export {VARIABLE}={everything}"
                    ),
                )
            )
        return AllowlistAnswer(None, (), tuple(notes))
    if current == "":
        notes = [
            (
                "warning" if names else "note",
                f"{VARIABLE} is exported empty, so vLLM loads no plugin at all; left as you have it",
            )
        ]
        if names:
            notes.append(("warning", f"not loaded because of that: {', '.join(names)}"))
        return AllowlistAnswer(None, (), tuple(notes + _excluded([], installed, host_keys)))
    listed = current.split(",")
    notes = []
    padded = [entry for entry in listed if entry != entry.strip()]
    if padded:
        notes.append(
            (
                "warning",
                (
                    f"{VARIABLE} has blanks around {', '.join(repr(p.strip()) for p in padded)}; vLLM"
                    " compares names exactly and ignores these"
                ),
            )
        )
    known = {p.name for p in installed}
    unknown = [entry for entry in listed if entry and entry == entry.strip() and entry not in known]
    if unknown:
        notes.append(
            (
                "warning",
                (
                    f"{VARIABLE} names {', '.join(unknown)}, which no installed distribution provides; vLLM"
                    " ignores that silently"
                ),
            )
        )
    added = tuple(next(n for n in needed if n.name == name) for name in names if name not in listed)
    final = [*listed, *(n.name for n in added)]
    notes += _excluded(final, installed, host_keys)
    return AllowlistAnswer(",".join(final) if added else None, added, tuple(notes))


def _excluded(final: Sequence[str], installed: Sequence[Plugin], host_keys: Mapping[str, str]) -> list[tuple[str, str]]:
    notes: list[tuple[str, str]] = []
    left_out = [p for p in installed if p.name not in final and p.group != ENDPOINT_GROUP]
    platform = sorted({p.name for p in left_out if p.group == "vllm.platform_plugins"})
    if platform:
        notes.append(
            (
                "warning",
                (
                    f"{VARIABLE} leaves out platform plugin {', '.join(platform)}: without it vLLM does not"
                    " see that device; add it to the list"
                ),
            )
        )
    for key, name in sorted(host_keys.items()):
        own = sorted({p.name for p in left_out if p.distribution.key == key and p.group != "vllm.platform_plugins"})
        if own:
            notes.append(("warning", f"{VARIABLE} leaves out {name}'s own plugins: {', '.join(own)}"))
    others = sorted(
        {p.name for p in left_out if p.distribution.key not in host_keys and p.group != "vllm.platform_plugins"}
    )
    if others:
        notes.append(("note", f"{VARIABLE} leaves out other installed plugins: {', '.join(others)}"))
    return notes
