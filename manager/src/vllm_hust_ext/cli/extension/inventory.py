"""``extension list``, ``inspect`` and ``validate``: what is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from vllm_hust_ext.cli.common import id_argument, json_option, python_option
from vllm_hust_ext.cli.output import Cell, Output, warn
from vllm_hust_ext.compatibility import Outcome, Status, Verdict
from vllm_hust_ext.discovery import BrokenBundle, Bundle
from vllm_hust_ext.errors import BrokenState, ExitCode
from vllm_hust_ext.session import Session
from vllm_hust_ext.views import broken_view, bundle_view, environment_view, plugin_view, state_word

TONES = {
    Status.VERIFIED: "good",
    Status.SEAMS_MATCH: "good",
    Status.COMPATIBLE: "good",
    Status.UNKNOWN: "warn",
    Status.INCOMPATIBLE: "bad",
}
STATE_TONES = {"enabled": "good", "masked": "bad", "not known": "warn"}
MARKS = {
    Outcome.OK: ("yes", "good"),
    Outcome.NOTE: ("note", ""),
    Outcome.UNKNOWN: ("?", "warn"),
    Outcome.FAILS: ("NO", "bad"),
}


def short_reason(verdict: Verdict) -> str:
    """The verdict in one phrase, with the first reason against it."""
    against = verdict.against
    if not against:
        return verdict.status.value
    more = f" (and {len(against) - 1} more)" if len(against) > 1 else ""
    return f"{verdict.status.value}: {against[0].message}{more}"


@click.command("list")
@json_option
@python_option
def list_(json_mode: bool, python: str | None) -> int:
    """List extensions, broken registrations and plugins without a manifest."""
    session, out = Session(python), Output(json_mode)
    inventory = session.inventory
    damaged: BrokenState | None = None
    orphans: list[str] = []
    try:
        orphans = sorted(i for i in session.intents.entries if i not in inventory.bundles and i not in inventory.broken)
    except BrokenState as error:
        damaged = error
    unmanaged = [p for p in inventory.plugins if (p.distribution.key, p.name) not in inventory.owners]
    if json_mode:
        _list_json(session, out, unmanaged, orphans, damaged)
    else:
        _list_text(session, out, unmanaged, orphans)
    if damaged is not None:
        warn(f"{damaged.where}: {damaged.message}; what is enabled is not known")
        return ExitCode.BROKEN
    return ExitCode.OK


def _list_json(
    session: Session, out: Output, unmanaged: list[Any], orphans: list[str], damaged: BrokenState | None
) -> None:
    inventory = session.inventory
    extensions = [bundle_view(session, b) for _, b in sorted(inventory.bundles.items())]
    extensions += [broken_view(b, state_word(session, i)) for i, b in sorted(inventory.broken.items())]
    out.document(
        "extension-list",
        {
            "environment": environment_view(session),
            "extensions": extensions,
            "orphan_intents": [{"extension_id": i, "state": session.state(i).value} for i in orphans],
            "plugins_without_manifest": [plugin_view(p, ()) for p in unmanaged],
            "mistaken_registrations": [
                {"distribution": d.name, "group": e.group, "name": e.name, "value": e.value}
                for d, e in inventory.mistaken
            ],
            "providers_left_out": [vars(b) for b in session.providers.broken],
            "intents_error": damaged.as_json() if damaged is not None else None,
        },
    )


def _list_text(session: Session, out: Output, unmanaged: list[Any], orphans: list[str]) -> None:
    inventory = session.inventory
    rows: list[list[Cell | str]] = []
    for extension_id, bundle in sorted(inventory.bundles.items()):
        state = state_word(session, extension_id)
        verdict = session.verdict(bundle)
        blocked = "import_only" if bundle.manifest.activation_blocker else None
        phrase = short_reason(verdict) + (f"; {blocked}: cannot be enabled" if blocked else "")
        rows.append(
            [
                extension_id,
                bundle.manifest.extension_version,
                Cell(state, STATE_TONES.get(state, "dim")),
                Cell(phrase, TONES[verdict.status]),
            ]
        )
    for extension_id, broken in sorted(inventory.broken.items()):
        state = state_word(session, extension_id)
        rows.append([extension_id, broken.distribution.version or "?", Cell(state, STATE_TONES.get(state, "dim")),
                     Cell(f"invalid: {broken.reasons[0]}", "bad")])  # fmt: skip
    for extension_id in orphans:
        rows.append([extension_id, "-", session.state(extension_id).value, Cell("not installed any more", "warn")])
    if rows:
        out.table(["EXTENSION", "VERSION", "STATE", "FITS"], rows)
    else:
        out.line(f"no extension is installed in {session.environment.prefix}")
    if unmanaged:
        out.line()
        grouped: dict[str, list[str]] = {}
        for plugin in unmanaged:
            grouped.setdefault(f"{plugin.distribution.name} {plugin.distribution.version or ''}".strip(), []).append(
                plugin.name
            )
        out.table(
            ["PLUGINS WITHOUT MANIFEST", "LOADED BY vLLM ALL THE SAME"],
            [[name, ", ".join(sorted(set(v)))] for name, v in sorted(grouped.items())],
        )
    out.line()
    hosts = ", ".join(h.describe() for h in session.hosts.found.values()) or "none (vllm and vllm-ascend are missing)"
    emulated = f"; emulated NPU ({session.hosts.emulated_npu})" if session.hosts.emulated_npu else ""
    out.line(f"hosts: {hosts}{emulated}")
    out.line(f"intents: {session.origin.describe()}")
    for broken_provider in session.providers.broken:
        warn(f"provider {broken_provider.name} of {broken_provider.distribution} is left out: {broken_provider.reason}")


@click.command()
@id_argument
@json_option
@python_option
def inspect(extension_id: str, json_mode: bool, python: str | None) -> int:
    """Show one extension, its verdict and every reason. Exit code 1 where it does not fit."""
    session, out = Session(python), Output(json_mode)
    bundle = session.bundle(extension_id)
    verdict = session.verdict(bundle)
    if json_mode:
        out.document("extension-inspect", bundle_view(session, bundle) | {"environment": environment_view(session)})
    else:
        _inspect_text(session, out, bundle, verdict)
    return ExitCode.OK if verdict.fits else ExitCode.NO


def _inspect_text(session: Session, out: Output, bundle: Bundle, verdict: Verdict) -> None:
    view = bundle_view(session, bundle)
    manifest = bundle.manifest
    out.heading(f"{bundle.extension_id} {manifest.extension_version}")
    rows = [
        ("verdict", verdict.status.words),
        ("state", f"{view['state']} (in {session.origin.describe()})"),
        ("can be enabled", "yes" if manifest.activation_blocker is None else f"no: {manifest.activation_blocker}"),
        ("installed by", f"{bundle.distribution.name} {bundle.distribution.version}"),
        (
            "kind",
            (
                f"{manifest.kind}, {manifest.runtime.type}, {manifest.runtime.isolation}, in"
                f" {manifest.runtime.process_scope}"
            ),
        ),
        (
            "host",
            f"{manifest.host.name} {manifest.host.version_range}"
            + (f", API {manifest.host.api_range}" if manifest.host.api_range else ""),
        ),
        ("manifest", f"{bundle.manifest_path} ({manifest.schema_version})"),
    ]
    plugins = view["carriers"]["plugins"]
    rows.append(
        (
            "carried by",
            (", ".join(p["name"] for p in plugins) + f" ({view['carriers']['source']})")
            if plugins
            else "no plugin of its own",
        )
    )
    for name, value in manifest.activation.environment.items():
        rows.append(("sets", f"{name}={value}"))
    for key, value in manifest.additional_config.items():
        rows.append(("passes", f"--additional-config {key}={value}"))
    for requirement in view["requires_extensions"]:
        rows.append(("needs", f"{requirement['extension_id']} {requirement['version_range']}"))
    for claim in manifest.resource_claims:
        rows.append(("claims", f"{claim.resource} in {claim.scope} ({claim.mode})"))
    permissions = sorted({p for c in manifest.components for p in c.permissions})
    if permissions:
        rows.append(("declares", ", ".join(permissions) + " (a statement of its author; not enforced)"))
    out.pairs(rows)
    for note in bundle.notes:
        out.line(f"note: {note}")
    out.line()
    reasons(out, verdict)


def reasons(out: Output, verdict: Verdict) -> None:
    """Every reason of a verdict, and what would fix it."""
    for reason in verdict.reasons:
        mark, tone = MARKS[reason.outcome]
        out.line(f"{mark:<5}{reason.message}", tone, indent=2)
        if reason.fix and reason.outcome in (Outcome.FAILS, Outcome.UNKNOWN):
            out.line(f"fix: {reason.fix}", "dim", indent=7)


@click.command()
@click.argument("target", metavar="FILE|ID")
@json_option
@python_option
def validate(target: str, json_mode: bool, python: str | None) -> int:
    """Validate a manifest: an installed extension's, or any file's. All faults are shown with their places."""
    from vllm_hust_ext.manifest import InvalidManifest, load_manifest

    out = Output(json_mode)
    session = Session(python)
    path = Path(target)
    looks_like_file = os.sep in target or target.endswith(".json")
    if not looks_like_file:
        bundle, broken = session.inventory.bundles.get(target), session.inventory.broken.get(target)
        if bundle is None and broken is None and not os.path.exists(path):
            raise session.not_installed(target)
        if broken is not None:
            return _validate_broken(out, target, broken)
        path = bundle.manifest_path if bundle else path
    try:
        manifest = load_manifest(path)
    except InvalidManifest as error:
        return _validated(out, target, path, [{"location": f.location, "message": f.message} for f in error.faults])
    return _validated(out, target, path, [], manifest.schema_version, manifest.extension_id)


def _validate_broken(out: Output, target: str, broken: BrokenBundle) -> int:
    """The faults of its manifest; where that is sound, those of its registration."""
    from vllm_hust_ext.manifest import InvalidManifest, load_manifest

    faults = [{"location": "(registration)", "message": reason} for reason in broken.reasons]
    if broken.manifest_path is not None:
        try:
            load_manifest(broken.manifest_path)
        except InvalidManifest as error:
            faults = [{"location": f.location, "message": f.message} for f in error.faults]
    return _validated(out, target, broken.manifest_path, faults)


def _validated(
    out: Output,
    target: str,
    path: Path | None,
    faults: list[dict[str, str]],
    revision: str | None = None,
    extension_id: str | None = None,
) -> int:
    if out.json_mode:
        out.document(
            "extension-validate",
            {
                "target": target,
                "path": str(path) if path else None,
                "valid": not faults,
                "schema_version": revision,
                "extension_id": extension_id,
                "faults": faults,
            },
        )
    elif faults:
        out.line(f"{path or target}: not a valid manifest; {len(faults)} fault{'s' if len(faults) > 1 else ''}:", "bad")
        for fault in faults:
            out.line(f"{fault['location']}: {fault['message']}", indent=2)
    else:
        out.line(f"{path}: valid, revision {revision}, {extension_id}", "good")
    return ExitCode.NO if faults else ExitCode.OK
