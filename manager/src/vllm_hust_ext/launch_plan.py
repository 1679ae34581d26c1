"""Extensions x their intents x the user's own environment and command -> a launch plan. Pure: it reads and starts
nothing.

Every item of the plan says who contributed it; everything that was left as the user had it says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_hust_ext import allowlist, vllm_options
from vllm_hust_ext.allowlist import Needed
from vllm_hust_ext.discovery import Bundle, Inventory, carriers_of
from vllm_hust_ext.manifest.model import Manifest

ENABLED_VARIABLE = "VLLMHUST_EXT_ENABLED_BUNDLES"
REPORT_DIR_VARIABLE = "VLLM_HUST_EXT_REPORT_DIR"
LAUNCH_ID_VARIABLE = "VLLM_HUST_EXT_LAUNCH_ID"
METRICS_VARIABLE = "VLLM_HUST_EXT_METRICS"
RAY_VARIABLE = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
RAY_PREFIXES = ("VLLM_", "FLASH_ATTENTION_", "LMCACHE_", "NCCL_", "UCX_", "HF_", "HUGGING_FACE_")
"""Prefixes of variables that vLLM hands to its Ray actors by itself."""

MANAGER = "vllm-hust-ext"
USER = "you"

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

CONTRACT_OPTIONS = {
    "vllm.preemption-policy.v1": "--preemption-policy",
    "vllm.batch-admission-policy.v1": "--batch-admission-policy",
    "vllm.worker-class.v1": "--worker-cls",
}
"""Contracts of a component that are bound by an option of the host: the option takes ``module.Object``."""

JSON_LAUNCH_OPTIONS = {
    "batch_admission_policy_config": "--batch-admission-policy-config",
    "speculative_config": "--speculative-config",
    "kv_transfer_config": "--kv-transfer-config",
}
FLAG_LAUNCH_OPTIONS = {"scheduler_reserve_output_budget": "--scheduler-reserve-output-budget"}
"""Keys of ``launch_options`` in a stored configuration, and the options that they become."""


def is_loader_variable(name: str) -> bool:
    """Whether the variable decides which code is loaded: a manifest may not set it by itself."""
    return name in _LOADER or name.startswith(_LOADER_PREFIXES)


def means_on(value: str | None) -> bool:
    """Whether a gate's exported value may switch something on."""
    return value is not None and value.strip().lower() not in _OFF_WORDS


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


def make_plan(request: Request) -> LaunchPlan:
    """Compose a launch. Conflicts are part of the plan, so that a dry run can show it whole."""
    conflicts: list[Conflict] = []
    notes: list[Note] = []
    environment = _Environment(request, conflicts, notes)
    environment.extensions()
    environment.manager()
    environment.plugins()
    environment.ray()
    command, arguments = _arguments(request, conflicts, notes)
    conflicts += _claims(request.members)
    conflicts += _plugin_names(request)
    notes += _exported_gates(request)
    return LaunchPlan(
        tuple(m.bundle.extension_id for m in request.members),
        tuple(command),
        tuple(request.command),
        tuple(sorted(environment.items, key=lambda i: i.name)),
        tuple(arguments),
        tuple(dict.fromkeys(notes)),
        tuple(conflicts),
    )


def _leave_out(*ids: str) -> tuple[str, ...]:
    return tuple(f"--without {i}" for i in ids)


# -- environment ------------------------------------------------------------------------------------------------------


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


class _Environment:
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
                (*_leave_out(*everyone), f"export {name} yourself: your value wins"),
            )
        )

    def _admissible(self, name: str, value: str, owner: str) -> bool:
        if name == allowlist.VARIABLE:
            # A list in a manifest names plugins that it needs; it never replaces the user's.
            self.manifest_plugins += [Needed(n.strip(), "", owner) for n in value.split(",") if n.strip()]
            return False
        if not _ENV_NAME.match(name) or "\0" in value:
            self.conflicts.append(
                Conflict(name, f"{owner} asks for variable {name!r}, which no environment can hold", _leave_out(owner))
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
                    (f"--allow-variable {name}, if you trust it", *_leave_out(owner)),
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
            if carriers.source == "none" and member.manifest.implementation and not _bound_by_option(member.manifest):
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


# -- arguments --------------------------------------------------------------------------------------------------------


def _bound_by_option(manifest: Manifest) -> bool:
    return any(contract in CONTRACT_OPTIONS for c in manifest.components for contract in c.contracts)


@dataclass
class _Wanted:
    """Leaves of one JSON option: path -> (value, owners)."""

    leaves: dict[tuple[str, ...], tuple[Any, list[str]]] = field(default_factory=dict)


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif path:
        yield path, value


def _contributions(member: Member) -> tuple[dict[str, Mapping[str, Any]], dict[str, str | bool], list[str]]:
    """JSON options, scalar options and what is wrong, of one extension."""
    json_options: dict[str, Mapping[str, Any]] = {}
    scalars: dict[str, str | bool] = {}
    faults: list[str] = []
    config = member.manifest.additional_config
    if config:
        json_options["--additional-config"] = config
    for component in member.manifest.components:
        for contract in component.contracts:
            option = CONTRACT_OPTIONS.get(contract)
            if option is not None:
                reference = component.implementation_ref.replace(":", ".")
                if scalars.setdefault(option, reference) != reference:
                    faults.append(f"two of its components claim {option}; the first is taken")
    stored = member.configuration.get("launch_options", {})
    if not isinstance(stored, Mapping):
        return json_options, scalars, ["'launch_options' in its stored configuration is not an object; ignored"]
    for key, value in stored.items():
        if key in JSON_LAUNCH_OPTIONS and isinstance(value, Mapping):
            json_options[JSON_LAUNCH_OPTIONS[key]] = value
        elif key in FLAG_LAUNCH_OPTIONS and isinstance(value, bool):
            if value:
                scalars[FLAG_LAUNCH_OPTIONS[key]] = True
        else:
            faults.append(f"launch_options.{key} in its stored configuration is not understood; ignored")
    return json_options, scalars, faults


def _arguments(request: Request, conflicts: list[Conflict], notes: list[Note]) -> tuple[list[str], list[ArgumentItem]]:
    command = list(request.command)
    json_options: dict[str, _Wanted] = {}
    scalars: dict[str, tuple[str | bool, list[str]]] = {}
    for member in request.members:
        owner = member.bundle.extension_id
        own_json, own_scalars, faults = _contributions(member)
        notes += [Note("warning", f"{owner}: {fault}") for fault in faults]
        for option, value in own_json.items():
            _collect(json_options.setdefault(option, _Wanted()), option, value, owner, conflicts)
        for option, scalar in own_scalars.items():
            known, owners = scalars.setdefault(option, (scalar, []))
            owners.append(owner)
            if known != scalar:
                conflicts.append(
                    Conflict(
                        option,
                        f"{option} is asked for as {known} by {owners[0]} and as {scalar} by {owner}",
                        _leave_out(owners[0], owner),
                    )
                )
    if not json_options and not scalars:
        return command, []
    vllm = vllm_options.recognise(command)
    if command and (vllm is None or not vllm.engine):
        options = ", ".join(sorted({*json_options, *scalars}))
        what = f"{vllm.words} starts no engine" if vllm else f"{command[0]} is not a vLLM command"
        notes.append(
            Note(
                "warning",
                f"{what}, so its arguments are left alone; not passed: {options} (see 'vllm-hust-ext extension plan')",
            )
        )
        return command, []
    first = vllm.first if vllm else 0
    items: list[ArgumentItem] = []
    for option, wanted in sorted(json_options.items()):
        command = _merge_json(request, command, first, option, wanted, items, conflicts, notes)
    for option, (scalar, owners) in sorted(scalars.items()):
        command = _merge_scalar(request, command, first, option, scalar, tuple(owners), items, conflicts)
    return command, items


def _collect(wanted: _Wanted, option: str, value: Mapping[str, Any], owner: str, conflicts: list[Conflict]) -> None:
    for path, leaf in _leaves(value):
        for other, (known, owners) in list(wanted.leaves.items()):
            overlaps = other == path or other[: len(path)] == path or path[: len(other)] == other
            if overlaps and (other != path or not _same(known, leaf)):
                shared = path if len(path) <= len(other) else other
                name = f"{option} {'.'.join(shared)}"
                conflicts.append(
                    Conflict(
                        name,
                        f"{name} is asked for as {_text(known)} by {owners[0]} and as {_text(leaf)} by {owner}",
                        _leave_out(owners[0], owner),
                    )
                )
                break
        else:
            wanted.leaves.setdefault(path, (leaf, []))[1].append(owner)


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON: 1 and true are not the same."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _merge_json(
    request: Request,
    command: list[str],
    first: int,
    option: str,
    wanted: _Wanted,
    items: list[ArgumentItem],
    conflicts: list[Conflict],
    notes: list[Note],
) -> list[str]:
    try:
        user = vllm_options.find_json(command, first, option, request.read_yaml)
    except vllm_options.OptionFault as fault:
        conflicts.append(Conflict(option, f"your command: {fault}", ("correct the command",)))
        return command
    for spelling in user.dropped:
        notes.append(
            Note("warning", f"vLLM itself ignores {option} as given by {spelling} in favour of {user.sources[0]}")
        )
    merged: dict[str, Any] = json.loads(json.dumps(user.value)) if user.given else {}
    changed = False
    for path, (value, owners) in sorted(wanted.leaves.items()):
        here, blocked = merged, False
        for part in path[:-1]:
            step = here.setdefault(part, {})
            if not isinstance(step, dict):
                blocked = True
                break
            here = step
        key = ".".join(path)
        if blocked or (path[-1] in here and not _same(here[path[-1]], value)):
            yours = _text(here.get(path[-1])) if not blocked else "something else above it"
            conflicts.append(
                Conflict(
                    f"{option} {key}",
                    f"{option} {key} is {yours} in your command ({user.sources[0] if user.given else 'command'}) and"
                    f" {_text(value)} by {', '.join(owners)}",
                    (f"take {key} out of your command", *_leave_out(*owners)),
                )
            )
            continue
        already = path[-1] in here
        changed = changed or not already
        here[path[-1]] = value
        items.append(ArgumentItem(option, key, value, "same" if already else "added", tuple(owners)))
    if not changed:
        return command
    text = json.dumps(merged, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return vllm_options.replace_option(command, first, option, user, text)


def _merge_scalar(
    request: Request,
    command: list[str],
    first: int,
    option: str,
    value: str | bool,
    owners: tuple[str, ...],
    items: list[ArgumentItem],
    conflicts: list[Conflict],
) -> list[str]:
    try:
        user = vllm_options.find_scalar(command, first, option, request.read_yaml)
    except vllm_options.OptionFault as fault:
        conflicts.append(Conflict(option, f"your command: {fault}", ("correct the command",)))
        return command
    if user.given and user.value != value:
        conflicts.append(
            Conflict(
                option,
                f"{option} is {user.value} in your command ({user.sources[0]}) and {value} by {', '.join(owners)}",
                (f"take {option} out of your command", *_leave_out(*owners)),
            )
        )
        return command
    items.append(ArgumentItem(option, None, value, "same" if user.given else "added", owners))
    if user.given:
        return command
    return vllm_options.replace_option(command, first, option, user, None if value is True else str(value))


# -- conflicts between extensions -------------------------------------------------------------------------------------


def _claims(members: Sequence[Member]) -> list[Conflict]:
    found: list[Conflict] = []
    taken: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for member in members:
        for claim in member.manifest.resource_claims:
            owner = member.bundle.extension_id
            for other, mode in taken.get((claim.scope, claim.resource), []):
                if other != owner and "exclusive" in (mode, claim.mode):
                    found.append(
                        Conflict(
                            claim.resource,
                            f"{other} claims {claim.resource} in {claim.scope} ({mode}), and so does"
                            f" {owner} ({claim.mode})",
                            _leave_out(other, owner),
                        )
                    )
            taken.setdefault((claim.scope, claim.resource), []).append((owner, claim.mode))
    return list(dict.fromkeys(found))


def _plugin_names(request: Request) -> list[Conflict]:
    """Two distributions with a plugin of one name: vLLM keeps only one of them."""
    found: list[Conflict] = []
    for member in request.members:
        for plugin in carriers_of(member.bundle, request.inventory).plugins:
            for other in request.inventory.plugins:
                if (other.group, other.name) == (
                    plugin.group,
                    plugin.name,
                ) and other.distribution.key != plugin.distribution.key:
                    owners = request.inventory.owners.get((other.distribution.key, other.name), ())
                    who = f"{', '.join(owners)} ({other.distribution.name})" if owners else other.distribution.name
                    first, second = sorted([f"{member.bundle.extension_id} ({plugin.distribution.name})", who])
                    found.append(
                        Conflict(
                            plugin.name,
                            f"{first} and {second} both bring the vLLM plugin {plugin.name!r}, and vLLM"
                            " keeps only one of them",
                            (f"pip uninstall {other.distribution.name}", *_leave_out(member.bundle.extension_id)),
                        )
                    )
    unique: dict[str, Conflict] = {}
    for conflict in found:
        unique.setdefault(conflict.text, conflict)
    return list(unique.values())


def _exported_gates(request: Request) -> list[Note]:
    """Extensions outside this launch whose own variables the user exported: they would run all the same."""
    launched = {name for m in request.members for name in m.manifest.activation.environment}
    notes = []
    for extension_id, word in sorted(request.excluded.items()):
        bundle = request.inventory.bundles.get(extension_id)
        if bundle is None:
            continue
        for name in bundle.manifest.activation.environment:
            value = request.variables.get(name)
            if name not in launched and means_on(value):
                notes.append(
                    Note(
                        "warning",
                        f"{extension_id} is {word}, but you exported {name}={value}, which may switch it"
                        " on; unset it to keep it off",
                    )
                )
    return notes
