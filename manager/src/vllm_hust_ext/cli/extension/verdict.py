"""``extension check`` and ``why``: does it fit, and why (not)."""

from __future__ import annotations

import click

from vllm_hust_ext.cli.common import id_argument, json_option, python_option
from vllm_hust_ext.cli.extension.inventory import TONES, reasons
from vllm_hust_ext.cli.output import Output
from vllm_hust_ext.compatibility import Outcome, Verdict
from vllm_hust_ext.discovery import Bundle
from vllm_hust_ext.errors import ExitCode
from vllm_hust_ext.session import Session
from vllm_hust_ext.views import environment_view, state_word


@click.command()
@id_argument
@json_option
@python_option
def check(extension_id: str, json_mode: bool, python: str | None) -> int:
    """Does it fit and can it be switched on? Exit code 0 yes, 1 no."""
    session, out = Session(python), Output(json_mode)
    bundle = session.bundle(extension_id)
    verdict = session.verdict(bundle)
    blocker = bundle.manifest.activation_blocker
    good = verdict.fits and blocker is None
    if json_mode:
        out.document(
            "extension-check",
            {
                "extension_id": extension_id,
                "ok": good,
                "activation_blocker": blocker,
                "verdict": verdict.as_json(),
                "environment": environment_view(session),
            },
        )
    else:
        out.line(f"{extension_id}: {verdict.status.words}", TONES[verdict.status])
        if blocker:
            out.line(f"it cannot be enabled: {blocker}", "bad")
        reasons(out, verdict)
    return ExitCode.OK if good else ExitCode.NO


@click.command()
@id_argument
@json_option
@python_option
def why(extension_id: str, json_mode: bool, python: str | None) -> int:
    """Explain a verdict in sentences: what is installed, what is needed, and what to do."""
    session, out = Session(python), Output(json_mode)
    bundle = session.bundle(extension_id)
    verdict = session.verdict(bundle)
    sentences = explain(session, bundle, verdict)
    good = verdict.fits and bundle.manifest.activation_blocker is None
    if json_mode:
        out.document(
            "extension-why",
            {"extension_id": extension_id, "ok": good, "sentences": sentences, "verdict": verdict.as_json()},
        )
    else:
        for sentence in sentences:
            out.line(sentence)
    return ExitCode.OK if good else ExitCode.NO


def explain(session: Session, bundle: Bundle, verdict: Verdict) -> list[str]:
    """The verdict as sentences a person can act on."""
    manifest = bundle.manifest
    hosts = ", ".join(h.describe() for h in session.hosts.found.values()) or "no host"
    sentences = [
        (
            f"{bundle.extension_id} {manifest.extension_version} (from {bundle.distribution.name}"
            f" {bundle.distribution.version}) is made for"
            f" {manifest.host.name} {manifest.host.version_range}."
        ),
        f"In {session.environment.prefix} there is {hosts}"
        + (f", on an emulated NPU ({session.hosts.emulated_npu})." if session.hosts.emulated_npu else "."),
        f"The verdict is: {verdict.status.words}.",
    ]
    leads = {
        Outcome.FAILS: "It does not fit",
        Outcome.UNKNOWN: "It cannot be told",
        Outcome.OK: "For it speaks",
        Outcome.NOTE: "Note",
    }
    for outcome in (Outcome.FAILS, Outcome.UNKNOWN, Outcome.OK, Outcome.NOTE):
        for reason in verdict.that(outcome):
            sentences.append(f"{leads[outcome]}: {_sentence(reason.message)}")
            if reason.fix and outcome in (Outcome.FAILS, Outcome.UNKNOWN):
                sentences.append(f"What to do: {_sentence(reason.fix)}")
    if manifest.activation_blocker:
        sentences.append(f"It cannot be enabled: {_sentence(manifest.activation_blocker)}")
    state = state_word(session, bundle.extension_id)
    sentences.append(f"It is {state} in {session.origin.describe()}.")
    if state == "enabled" and not verdict.fits:
        sentences.append(
            f"'vllm-hust-ext run' refuses it; --allow {bundle.extension_id} launches it all the same,"
            f" --without {bundle.extension_id} or"
            " --skip-incompatible starts without it."
        )
    return sentences


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else text + "."
