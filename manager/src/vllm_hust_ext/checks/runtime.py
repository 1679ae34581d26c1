"""Report folders and what live engines say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vllm_hust_ext import launch_folders
from vllm_hust_ext.findings import Finding, Severity
from vllm_hust_ext.launch_environment import REPORT_DIR_VARIABLE
from vllm_hust_ext.runtime import look
from vllm_hust_ext.session import Session


def reports(session: Session) -> Iterator[Finding]:
    """Can report folders be made, can reports be read, did any live engine give an extension up?"""
    folder = launch_folders.launches_folder()
    if not folder.is_absolute():
        yield Finding(
            "reports",
            Severity.WARNING,
            launch_folders.UNKNOWN_FOLDER,
            f"set {launch_folders.STATE_VARIABLE} to a folder of your choice",
        )
    nearest = next((p for p in (folder, *folder.parents) if os.path.exists(p)), Path("/"))
    if folder.is_absolute() and not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding(
            "reports",
            Severity.WARNING,
            f"{folder} cannot be written, so 'extension status' will not see launches",
            f"correct the permissions of {nearest}, or set {launch_folders.STATE_VARIABLE}",
        )
    named = os.environ.get(REPORT_DIR_VARIABLE)
    if named and not os.path.isdir(named):
        yield Finding(
            "reports",
            Severity.WARNING,
            (f"{REPORT_DIR_VARIABLE}={named} is not a folder: engines write no reports"),
            f"mkdir -m 700 {named}",
        )
    runtime = look()
    for observed in runtime.observed:
        for unreadable in observed.unreadable:
            yield Finding("reports", Severity.NOTE, f"{unreadable.path} {unreadable.reason}")
    for sentence in runtime.unhealthy():
        yield Finding(
            "reports", Severity.WARNING, sentence, ("see 'vllm-hust-ext extension status' and the engine's log")
        )
    live = len(runtime.live)
    yield Finding("reports", Severity.OK, f"{live} live launch{'' if live == 1 else 'es'} under {folder}")
