"""The arguments of a launch: options that extensions ask for, merged into the user's command key by key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_hust_ext import vllm_options
from vllm_hust_ext.launch_model import ArgumentItem, Conflict, Member, Note, Request, leave_out
from vllm_hust_ext.manifest.model import Manifest

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


def bound_by_option(manifest: Manifest) -> bool:
    """Whether an option of the host, not a plugin, brings the extension in."""
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


def compose_arguments(
    request: Request, conflicts: list[Conflict], notes: list[Note]
) -> tuple[list[str], list[ArgumentItem]]:
    """The command with what extensions ask for, and an item for each key; conflicts and notes go to the given lists."""
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
                        leave_out(owners[0], owner),
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
                        leave_out(owners[0], owner),
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
            Note(
                "warning",
                f"vLLM itself takes only the last of several {spelling}"
                if spelling == user.sources[0]
                else f"vLLM itself ignores {option} as given by {spelling} in favour of {user.sources[0]}",
            )
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
                    (f"take {key} out of your command", *leave_out(*owners)),
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
                (f"take {option} out of your command", *leave_out(*owners)),
            )
        )
        return command
    items.append(ArgumentItem(option, None, value, "same" if user.given else "added", owners))
    if user.given:
        return command
    return vllm_options.replace_option(command, first, option, user, None if value is True else str(value))
