"""``extension enable``, ``disable``, ``mask``, ``forget`` and ``configure``: what the user wants."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from vllm_hust_ext.cli.common import id_argument, json_option, python_option
from vllm_hust_ext.cli.output import Output, note, warn
from vllm_hust_ext.compatibility import stored_faults
from vllm_hust_ext.discovery import Bundle
from vllm_hust_ext.errors import ExitCode, Negative, Refused, UsageFault
from vllm_hust_ext.intents import Intents, State
from vllm_hust_ext.session import Session

_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")


def _done(
    out: Output,
    session: Session,
    verb: str,
    extension_id: str,
    before: State | None,
    after: State | None,
    warnings: list[str],
    notes: Sequence[str] = (),
) -> int:
    for text in notes:
        note(text)
    for text in warnings:
        warn(text)
    if out.json_mode:
        out.document(
            "extension-intent",
            {
                "verb": verb,
                "extension_id": extension_id,
                "before": before.value if before else None,
                "after": after.value if after else None,
                "intents": {"path": str(session.origin.path), "kind": session.origin.kind},
                "notes": [*notes, *warnings],
            },
        )
    else:
        past = {
            "enable": "enabled",
            "disable": "disabled",
            "mask": "masked",
            "forget": "forgot",
            "configure": "configured",
        }[verb]
        out.line(f"{past} {extension_id}")
        out.line(f"stored in {session.origin.describe()}", "dim")
    return ExitCode.OK


def _dependants(session: Session, extension_id: str, intents: Intents) -> list[str]:
    """Enabled extensions that need ``extension_id``. Broken or missing ones are not asked: they must not stand in the
    way.
    """
    return [
        other
        for other in intents.in_state(State.ENABLED)
        if other != extension_id
        and other in session.inventory.bundles
        and any(r.extension_id == extension_id for r in session.inventory.bundles[other].manifest.requires_extensions)
    ]


def _refuse_dependants(session: Session, extension_id: str, intents: Intents, verb: str) -> None:
    dependants = _dependants(session, extension_id, intents)
    if dependants:
        raise Refused(
            f"{', '.join(dependants)} is enabled and needs {extension_id}",
            name="needed-by-others",
            where=f"extension {verb}",
            hint=f"disable {dependants[0]} first: vllm-hust-ext extension disable {dependants[0]}",
        )


@click.command()
@id_argument
@json_option
@python_option
def enable(extension_id: str, json_mode: bool, python: str | None) -> int:
    """Switch an extension on for launches by 'vllm-hust-ext run'."""
    session, out = Session(python), Output(json_mode)
    bundle = session.bundle(extension_id)
    before: list[State | None] = []

    def edit(intents: Intents) -> Intents:
        before.append(intents.state(extension_id))
        _may_enable(session, bundle, intents)
        return intents.with_(extension_id, State.ENABLED)

    session.store.change(edit)
    verdict = session.verdict(bundle)
    notes = [
        f"{module} stays inactive: its author ships it as {status}, so the code can be imported, but nothing in this"
        " release switches it on in a running host"
        for module, status in bundle.manifest.inert_modules
    ]
    warnings = []
    if not verdict.fits:
        warnings.append(
            f"enabled, but {verdict.status.words} here, so 'run' will refuse it: {verdict.against[0].message}"
            f" (see 'vllm-hust-ext extension why {extension_id}')"
        )
    return _done(out, session, "enable", extension_id, before[0], State.ENABLED, warnings, notes)


def _may_enable(session: Session, bundle: Bundle, intents: Intents) -> None:
    from vllm_hust_ext.selection import cycle_through, missing_dependencies

    extension_id = bundle.extension_id
    if intents.state(extension_id) is State.MASKED:
        raise Refused(
            f"{extension_id} is masked, and a mask always wins",
            name="masked",
            where=session.origin.describe(),
            hint=f"take the mask away first: vllm-hust-ext extension disable {extension_id}",
        )
    blocker = bundle.manifest.activation_blocker
    if blocker is not None:
        raise Refused(
            f"{extension_id} cannot be enabled: {blocker}",
            name="not-activatable",
            where=str(bundle.manifest_path),
            hint=f"look for another release of {bundle.distribution.name}",
        )
    enabled = set(intents.in_state(State.ENABLED)) | {extension_id}
    lacking = missing_dependencies(bundle, dict.fromkeys(enabled), session)
    circle = cycle_through(extension_id, session)
    if circle:
        lacking.append(f"its requirements go in a circle: {' -> '.join(circle)}")
    if lacking:
        raise Refused(
            f"{extension_id} cannot be enabled",
            name="requirements-missing",
            where="extension enable",
            reasons=lacking,
            hint="enable or install what it needs first",
        )
    for other in sorted(enabled - {extension_id}):
        other_bundle = session.inventory.bundles.get(other)
        if other_bundle is None:
            continue
        for mine in bundle.manifest.resource_claims:
            for theirs in other_bundle.manifest.resource_claims:
                if (mine.scope, mine.resource) == (theirs.scope, theirs.resource) and "exclusive" in (
                    mine.mode,
                    theirs.mode,
                ):
                    raise Refused(
                        f"{extension_id} claims {mine.resource} in {mine.scope} ({mine.mode}), and so"
                        f" does the enabled {other} ({theirs.mode})",
                        name="resource-conflict",
                        where="extension enable",
                        hint=f"disable the other first: vllm-hust-ext extension disable {other}",
                    )


@click.command()
@id_argument
@json_option
@python_option
def disable(extension_id: str, json_mode: bool, python: str | None) -> int:
    """Switch an extension off; its configuration is kept. Also takes a mask away."""
    session, out = Session(python), Output(json_mode)
    before: list[State | None] = []

    def edit(intents: Intents) -> Intents:
        before.append(intents.state(extension_id))
        if before[0] is None and extension_id not in session.inventory.known_ids():
            raise session.not_installed(extension_id)
        _refuse_dependants(session, extension_id, intents, "disable")
        return intents.with_(extension_id, State.DISABLED)

    session.store.change(edit)
    return _done(out, session, "disable", extension_id, before[0], State.DISABLED, [])


@click.command()
@id_argument
@json_option
@python_option
def mask(extension_id: str, json_mode: bool, python: str | None) -> int:
    """Forbid an extension: neither 'enable' nor '--with' can switch it on until 'disable' takes the mask away."""
    session, out = Session(python), Output(json_mode)
    before: list[State | None] = []

    def edit(intents: Intents) -> Intents:
        before.append(intents.state(extension_id))
        if not _ID.fullmatch(extension_id) and extension_id not in session.inventory.known_ids():
            raise UsageFault(
                f"{extension_id!r} is no extension id, so a mask for it would hold nothing",
                where="extension mask",
                hint="an id is made of lower-case letters, digits, dots and dashes; see 'vllm-hust-ext extension list'",
            )
        _refuse_dependants(session, extension_id, intents, "mask")
        return intents.with_(extension_id, State.MASKED)

    session.store.change(edit)
    notes = (
        []
        if extension_id in session.inventory.known_ids()
        else [f"{extension_id} is not installed; the mask holds if it ever is"]
    )
    return _done(out, session, "mask", extension_id, before[0], State.MASKED, notes)


@click.command()
@id_argument
@click.option("--force", is_flag=True, help="Also if it is installed and enabled.")
@json_option
@python_option
def forget(extension_id: str, force: bool, json_mode: bool, python: str | None) -> int:
    """Drop what is stored for an extension, its configuration too. Packages and services are not touched."""
    session, out = Session(python), Output(json_mode)
    before: list[State | None] = []

    def edit(intents: Intents) -> Intents:
        before.append(intents.state(extension_id))
        if before[0] is None:
            raise Negative(
                f"nothing is stored for {extension_id}",
                name="nothing-stored",
                where=session.origin.describe(),
                hint="nothing to do",
            )
        installed = extension_id in session.inventory.bundles
        if before[0] is State.ENABLED and installed and not force:
            raise Refused(
                f"{extension_id} is enabled",
                name="still-enabled",
                where="extension forget",
                hint=f"disable it first (vllm-hust-ext extension disable {extension_id}), or say --force",
            )
        _refuse_dependants(session, extension_id, intents, "forget")
        return intents.without(extension_id)

    session.store.change(edit)
    return _done(out, session, "forget", extension_id, before[0], None, [])


@click.command()
@id_argument
@click.option("--file", "file", metavar="FILE", required=True, help="A JSON object; '-' reads standard input.")
@json_option
@python_option
def configure(extension_id: str, file: str, json_mode: bool, python: str | None) -> int:
    """Store a configuration for an extension, in place of the former one."""
    session, out = Session(python), Output(json_mode)
    value = _read_configuration(file)
    before: list[State | None] = []

    def edit(intents: Intents) -> Intents:
        before.append(intents.state(extension_id))
        if before[0] is None and extension_id not in session.inventory.known_ids():
            raise session.not_installed(extension_id)
        return intents.with_(extension_id, configuration=value)

    after = session.store.change(edit)
    return _done(
        out,
        session,
        "configure",
        extension_id,
        before[0],
        after.state(extension_id),
        _unused(session, extension_id, value),
    )


def _read_configuration(file: str) -> dict[str, Any]:
    from vllm_hust_ext.manifest.loading import InvalidManifest, parse_json_object, read_file

    try:
        if file == "-" and sys.stdin is None:
            raise UsageFault(
                "standard input is closed", name="configuration-invalid", where=file, hint="give a file, or pipe one in"
            )
        data: bytes = sys.stdin.buffer.read() if file == "-" else read_file(Path(file), follow_symlink=True)
        value = parse_json_object(data, what="a configuration")
        json.dumps(value, allow_nan=False)
        return value
    except InvalidManifest as error:
        raise UsageFault(
            "; ".join(str(f) for f in error.faults),
            name="configuration-invalid",
            where=file,
            hint="give a file with one JSON object",
        ) from None
    except ValueError as error:
        raise UsageFault(
            str(error), name="configuration-invalid", where=file, hint="give a file with one JSON object"
        ) from None


def _unused(session: Session, extension_id: str, value: dict[str, Any]) -> list[str]:
    """Keys that the manager does not read itself are kept, and said: nothing hands them to the extension."""
    bundle = session.inventory.bundles.get(extension_id)
    known = {
        "environment",
        "launch_options",
        "host_version",
        "host_api_version",
        "protocol_versions",
        "runtime_qualification",
    }
    if bundle is not None:
        known |= {s.endpoint_config for s in bundle.manifest.requires_services}
    notes = stored_faults(value)
    others = sorted(set(value) - known)
    if not others:
        return notes
    return [
        *notes,
        f"stored, but read by nobody here: {', '.join(others)} (the manager reads {', '.join(sorted(known))})",
    ]
