"""One private folder per launch, in which engines report about themselves.

``<state>/launches/<launch id>/launch.json`` says what was launched and as which process (exec keeps the pid); the
processes of the engine write their own files beside it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vllm_hust_ext.process_identity import Life, ProcessIdentity, own_identity
from vllm_hust_ext.regular_files import read_regular
from vllm_hust_ext.user_folders import user_folder

STATE_VARIABLE = "VLLM_HUST_EXT_STATE_DIR"
LAUNCH_FILE = "launch.json"
SCHEMA = "vllm-hust-ext.launch/1"
KEEP_DAYS = 7
KEEP_DAYS_ELSEWHERE = 30
KEEP_FINISHED = 50
MAX_LAUNCH_BYTES = 4 << 20
UNKNOWN_FOLDER = "the user's state folder is not known (is HOME unset?), so 'extension status' will not see launches"


@dataclass(frozen=True)
class Launch:
    """One launch as it was recorded."""

    launch_id: str
    folder: Path
    process: ProcessIdentity | None
    started_at: str
    prefix: str
    command: tuple[str, ...]
    extensions: tuple[str, ...]

    @property
    def life(self) -> Life:
        return self.process.life() if self.process is not None else Life.GONE


def state_folder(variables: Mapping[str, str] | None = None) -> Path:
    """The manager's state folder: ``VLLM_HUST_EXT_STATE_DIR``, else the user's."""
    named = (os.environ if variables is None else variables).get(STATE_VARIABLE)
    if named:
        return Path(os.path.abspath(os.path.expanduser(named)))
    return user_folder("state")


def launches_folder() -> Path:
    """Where launch folders are kept. It is a relative path where the user's state folder is not known."""
    return state_folder() / "launches"


def new_launch_id() -> str:
    """Sortable by time, unique by chance."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def create(launch_id: str, prefix: Path, command: Sequence[str], extensions: Sequence[str]) -> Path:
    """Make the folder of a launch (0700) and record the launch as this process.

    Raises:
        OSError: it cannot be made.
    """
    root = launches_folder()
    root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    root.mkdir(exist_ok=True, mode=0o700)
    folder = root / launch_id
    folder.mkdir(mode=0o700)
    document = {
        "schema": SCHEMA,
        "launch_id": launch_id,
        "process": own_identity().as_json(),
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "prefix": str(prefix),
        "command": list(command),
        "extensions": list(extensions),
    }
    try:
        descriptor = os.open(folder / LAUNCH_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
            json.dump(document, stream)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def read(folder: Path) -> Launch | None:
    """The launch recorded in ``folder``; None where there is no sound record."""
    try:
        document: Any = json.loads(read_regular(folder / LAUNCH_FILE, MAX_LAUNCH_BYTES))
        return Launch(
            str(document["launch_id"]),
            folder,
            ProcessIdentity.from_json(document["process"]),
            str(document["started_at"]),
            str(document["prefix"]),
            tuple(str(part) for part in document["command"]),
            tuple(str(i) for i in document["extensions"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def all_launches() -> list[Launch]:
    """Every recorded launch, newest first."""
    try:
        folders = sorted((p for p in launches_folder().iterdir() if p.is_dir()), reverse=True)
    except OSError:
        return []
    return [launch for folder in folders if (launch := read(folder)) is not None]


def age_out(now: float | None = None) -> list[Path]:
    """Remove folders of finished launches: those older than a week, and all but the newest fifty. Live ones stay."""
    removed: list[Path] = []
    moment = time.time() if now is None else now
    try:
        folders = sorted((p for p in launches_folder().iterdir() if p.is_dir() and not p.is_symlink()), reverse=True)
    except OSError:
        return removed
    finished = 0
    for folder in folders:
        launch = read(folder)
        life = launch.life if launch is not None else Life.GONE
        if life is Life.LIVE:
            continue
        try:
            age_days = (moment - max(p.stat().st_mtime for p in [folder, *folder.iterdir()])) / 86400
        except OSError:
            continue
        if life is Life.ELSEWHERE:  # whether it runs cannot be seen from here; a month of silence is taken as its end
            expired = age_days > KEEP_DAYS_ELSEWHERE
        else:
            finished += 1
            expired = age_days > KEEP_DAYS or finished > KEEP_FINISHED
        if expired:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed
