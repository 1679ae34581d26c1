"""The environment of a launch: what extensions ask for, what the user keeps, ``VLLM_PLUGINS``, and Ray's copy list."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vllm_hust_ext import allowlist
from vllm_hust_ext.allowlist import Needed
from vllm_hust_ext.discovery import carriers_of
from vllm_hust_ext.launch_arguments import bound_by_option
from vllm_hust_ext.launch_model import MANAGER, Conflict, EnvironmentItem, Member, Note, Request, leave_out

ENABLED_VARIABLE = "VLLMHUST_EXT_ENABLED_BUNDLES"
REPORT_DIR_VARIABLE = "VLLM_HUST_EXT_REPORT_DIR"
LAUNCH_ID_VARIABLE = "VLLM_HUST_EXT_LAUNCH_ID"
METRICS_VARIABLE = "VLLM_HUST_EXT_METRICS"
RAY_VARIABLE = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
RAY_PREFIXES = ("VLLM_", "FLASH_ATTENTION_", "LMCACHE_", "NCCL_", "UCX_", "HF_", "HUGGING_FACE_")
"""Prefixes of variables that vLLM hands to its Ray actors by itself."""

_RESERVED = frozenset({ENABLED_VARIABLE, REPORT_DIR_VARIABLE, LAUNCH_ID_VARIABLE, "VLLM_HUST_EXT_CONFIG", RAY_VARIABLE})
_LOADER = frozenset(
    {
        "PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONEXECUTABLE", "PYTHONPLATLIBDIR",
        "PYTHONBREAKPOINT", "PYTHONINSPECT", "PYTHONWARNINGS", "BASH_ENV", "ENV", "SHELLOPTS", "IFS", "GCONV_PATH",
        "NODE_OPTIONS", "PERL5OPT", "PERL5LIB", "GLIBC_TUNABLES", "HOME",
    }
)  # fmt: skip
_LOADER_PREFIXES = ("LD_", "DYLD_")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OFF_WORDS = frozenset({"", "0", "false", "no", "off", "n", "f"})


def is_loader_variable(name: str) -> bool:
    """Whether the variable decides which code is loaded: a manifest may not set it by itself."""
    return name in _LOADER or name.startswith(_LOADER_PREFIXES)


def means_on(value: str | None) -> bool:
    """Whether a gate's exported value may switch something on."""
    return value is not None and value.strip().lower() not in _OFF_WORDS


def environment_of(member: Member) -> tuple[dict[str, str], list[str]]:
    """The variables that an extension asks for, with the user's stored values; and what is wrong with those."""
    wanted = dict(member.manifest.activation.environment)
    stored = member.configuration.get("environment", {})
    faults: list[str] = []
    if not isinstance(stored, Mapping):
        return wanted, ["'environment' in its stored configuration is not an object; ignored"]
    for name, value in stored.items():
        if name not in wanted:
            faults.append(f"{name} in its stored configuration is not a variable of its manifest; ignored")
        elif not isinstance(value, str):
            faults.append(f"{name} in its stored configuration is not a string; ignored")
        else:
            wanted[name] = value
    return wanted, faults


class LaunchEnvironment:
    """Composes the variables of one launch; conflicts and notes go to the lists that it is given."""

    def __init__(self, request: Request, conflicts: list[Conflict], notes: list[Note]) -> None:
        self.request = request
        self.conflicts = conflicts
        self.notes = notes
        self.items: list[EnvironmentItem] = []
        self.manifest_plugins: list[Needed] = []

    def extensions(self) -> None:
        asked: dict[str, dict[str, list[str]]] = {}
        for member in self.request.members:
            owner = member.bundle.extension_id
            wanted, faults = environment_of(member)
            self.notes += [Note("warning", f"{owner}: {fault}") for fault in faults]
            for name, value in wanted.items():
                if self._admissible(name, value, owner):
                    asked.setdefault(name, {}).setdefault(value, []).append(owner)
        for name, values in asked.items():
            if len(values) > 1:
                self._disagreement(name, values)
                continue
            ((value, owners),) = values.items()
            self._one(name, value, tuple(owners))

    def _disagreement(self, name: str, values: Mapping[str, list[str]]) -> None:
        """Extensions ask for different values: the user's own decides, else nothing can be launched."""
        said = " and ".join(f"{value!r} by {', '.join(owners)}" for value, owners in values.items())
        everyone = tuple(owner for owners in values.values() for owner in owners)
        if name in self.request.variables and not self.request.override:
            self._keep(name, said, everyone)
            return
        self.conflicts.append(
            Conflict(
                name,
                f"{name} is asked for as {said}",
                (*leave_out(*everyone), f"export {name} yourself: your value wins"),
            )
        )

    def _admissible(self, name: str, value: str, owner: str) -> bool:
        if name == allowlist.VARIABLE:
            # A list in a manifest names plugins that it needs; it never replaces the user's.
            self.manifest_plugins += [Needed(n.strip(), "", owner) for n in value.split(",") if n.strip()]
            return False
        if not _ENV_NAME.match(name) or "\0" in value:
            self.conflicts.append(
                Conflict(name, f"{owner} asks for variable {name!r}, which no environment can hold", leave_out(owner))
            )
            return False
        if name in _RESERVED:
            self.notes.append(
                Note(
                    "warning",
                    f"{owner} asks for {name}={value!r}; that variable is the manager's own, so it is left out",
                )
            )
            return False
        if is_loader_variable(name) and name not in self.request.allowed_variables:
            self.conflicts.append(
                Conflict(
                    name,
                    f"{owner} asks for {name}={value!r}, which decides what code is loaded; a manifest"
                    " may not set it by itself",
                    (f"--allow-variable {name}, if you trust it", *leave_out(owner)),
                )
            )
            return False
        return True

    def _one(self, name: str, value: str, owners: tuple[str, ...]) -> None:
        before = self.request.variables.get(name)
        if before is None:
            self.items.append(EnvironmentItem(name, value, None, "set", owners))
        elif before == value:
            self.items.append(EnvironmentItem(name, value, before, "same", owners, why="you exported the same value"))
        elif self.request.override:
            self.items.append(EnvironmentItem(name, value, before, "replaced", owners, why="--override"))
        else:
            self._keep(name, value, owners)

    def _keep(self, name: str, wanted: str, owners: tuple[str, ...]) -> None:
        before = self.request.variables[name]
        self.items.append(
            EnvironmentItem(
                name,
                before,
                before,
                "kept",
                owners,
                wanted,
                "you exported it; --override lets the extension's value win",
            )
        )

    def manager(self) -> None:
        if self.request.mark_enabled:
            ids = ",".join(m.bundle.extension_id for m in self.request.members)
            self._own(ENABLED_VARIABLE, ids)
        for name, value in self.request.manager_variables.items():
            self._own(name, value)

    def _own(self, name: str, value: str) -> None:
        before = self.request.variables.get(name)
        if name == REPORT_DIR_VARIABLE and before:
            self.items.append(EnvironmentItem(name, before, before, "kept", (MANAGER,), value, "you exported it"))
        elif before == value:
            self.items.append(EnvironmentItem(name, value, before, "same", (MANAGER,)))
        elif before is None:
            self.items.append(EnvironmentItem(name, value, None, "set", (MANAGER,)))
        else:
            self.items.append(
                EnvironmentItem(name, value, before, "replaced", (MANAGER,), why="it names what this launch really has")
            )

    def plugins(self) -> None:
        needed = list(self.manifest_plugins)
        for member in self.request.members:
            carriers = carriers_of(member.bundle, self.request.inventory)
            needed += [Needed(p.name, p.group, member.bundle.extension_id) for p in carriers.plugins]
            if carriers.source == "none" and member.manifest.implementation and not bound_by_option(member.manifest):
                self.notes.append(
                    Note(
                        "warning",
                        f"{member.bundle.extension_id}: none of {member.bundle.distribution.name}'s"
                        " entry points is named as its carrier, so it"
                        f" cannot be kept in a {allowlist.VARIABLE} list"
                        + (
                            "; your list may leave it out"
                            if self.request.variables.get(allowlist.VARIABLE) is not None
                            else ""
                        ),
                    )
                )
        if self.request.manager_variables.get(METRICS_VARIABLE):
            needed.append(Needed("vllm_hust_ext_metrics", "vllm.general_plugins", MANAGER))
        current = self.request.variables.get(allowlist.VARIABLE)
        answer = allowlist.extend(current, needed, self.request.inventory.plugins, self.request.host_keys)
        self.notes += [Note(level, text) for level, text in answer.notes]
        if answer.value is not None:
            owners = tuple(dict.fromkeys(n.owner for n in answer.added))
            added = ", ".join(n.name for n in answer.added)
            self.items.append(
                EnvironmentItem(
                    allowlist.VARIABLE, answer.value, current, "extended", owners, why=f"your list, and {added}"
                )
            )

    def ray(self) -> None:
        """Variables that vLLM would not hand to its Ray actors by their prefix are named to it."""
        relevant = [i for i in self.items if i.name != allowlist.VARIABLE]
        names = sorted({i.name for i in relevant if not i.name.startswith(RAY_PREFIXES)})
        if not names:
            return
        before = self.request.variables.get(RAY_VARIABLE)
        present = [n.strip() for n in (before or "").split(",") if n.strip()]
        missing = [n for n in names if n not in present]
        if not missing:
            return
        owners = tuple(dict.fromkeys(o for i in relevant if i.name in missing for o in i.owners))
        self.items.append(
            EnvironmentItem(
                RAY_VARIABLE,
                ",".join([*present, *missing]),
                before,
                "set" if before is None else "extended",
                owners,
                why="Ray workers get these only if they are named",
            )
        )
