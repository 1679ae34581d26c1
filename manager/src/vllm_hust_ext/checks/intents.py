"""Stored intents: damaged or exposed files, extensions that are gone, enabled ones that cannot run."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from vllm_hust_ext.errors import BrokenState
from vllm_hust_ext.findings import Finding, Severity
from vllm_hust_ext.intents import State, user_file
from vllm_hust_ext.session import Session


def intents(session: Session) -> Iterator[Finding]:
    """The intents file and what it says."""
    path = session.origin.path
    yield from _permissions(path)
    try:
        stored = session.intents
    except BrokenState as error:
        yield Finding("intents", Severity.ERROR, f"{error.where}: {error.message}", error.hint)
        return
    yield Finding("intents", Severity.OK, f"{len(stored.entries)} stored in {session.origin.describe()}")
    if stored.schema in (1, 2):
        yield Finding(
            "intents",
            Severity.NOTE,
            (f"{path} has schema {stored.schema} of an earlier manager; it is migrated at the next change"),
        )
    for extension_id, intent in sorted(stored.entries.items()):
        yield from _one(session, extension_id, intent.state)
    for kept in sorted(path.parent.glob(f"{path.name}.corrupt-*")) if os.path.isdir(path.parent) else ():
        yield Finding(
            "intents", Severity.NOTE, (f"{kept} is a damaged intents file that was kept"), "look at it, then delete it"
        )
    if session.origin.kind == "environment":
        yield from _earlier(session, user_file())


def _one(session: Session, extension_id: str, state: State) -> Iterator[Finding]:
    bundle = session.inventory.bundles.get(extension_id)
    if bundle is None:
        if extension_id not in session.inventory.broken:
            yield Finding(
                "intents",
                Severity.WARNING if state is State.ENABLED else Severity.NOTE,
                f"{extension_id} is {state.value}, but not installed in {session.environment.prefix}",
                f"install it again, or: vllm-hust-ext extension forget {extension_id}",
            )
        return
    if state is not State.ENABLED:
        return
    if bundle.manifest.activation_blocker:
        yield Finding(
            "intents",
            Severity.WARNING,
            f"{extension_id} is enabled, but {bundle.manifest.activation_blocker}",
            f"vllm-hust-ext extension disable {extension_id}",
        )
    verdict = session.verdict(bundle)
    if not verdict.fits:
        yield Finding(
            "intents",
            Severity.WARNING,
            f"{extension_id} is enabled, but {verdict.status.words}: {verdict.against[0].message}",
            f"vllm-hust-ext extension why {extension_id}",
        )


def _permissions(path: Path) -> Iterator[Finding]:
    try:
        status = os.stat(path)
    except OSError:
        return
    if status.st_uid not in (os.getuid(), 0):
        yield Finding(
            "intents",
            Severity.WARNING,
            (f"{path} belongs to user id {status.st_uid}, not to you"),
            f"chown it: chown $(id -u) {path}",
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield Finding(
            "intents",
            Severity.WARNING,
            (f"{path} can be written by others: they decide what you launch"),
            f"chmod 600 {path}",
        )


def _earlier(session: Session, path: Path) -> Iterator[Finding]:
    """Earlier managers kept one file per user for all environments."""
    if os.path.isfile(path) and not os.path.exists(session.origin.path):
        yield Finding(
            "intents",
            Severity.NOTE,
            f"{path} holds intents of this user outside virtual environments; this environment has its"
            " own and does not read them",
            f"to take them over: mkdir -p -m 700 {session.origin.path.parent} && cp -p {path} {session.origin.path}",
        )
