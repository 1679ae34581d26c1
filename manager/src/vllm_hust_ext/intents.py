"""What the user wants of each extension: enabled, disabled or masked, and its configuration.

One JSON file per environment. ``VLLM_HUST_EXT_CONFIG`` names it; else a virtual (or conda) environment has its own,
``etc/vllm-hust-ext/config.json`` under its folder; else it is the user's. Writes take a lock, go to a temporary file
that is synced and renamed over the old one (0600 in a 0700 folder), so that a kill at any instant leaves the old or
the new file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from vllm_hust_ext.environment import Environment
from vllm_hust_ext.errors import BrokenState
from vllm_hust_ext.user_folders import user_folder

CONFIG_VARIABLE = "VLLM_HUST_EXT_CONFIG"
SCHEMA_VERSION = 3
FILE_NAME = "config.json"
FOLDER_NAME = "vllm-hust-ext"
MAX_BYTES = 8 << 20
LOCK_TIMEOUT_S = 60.0
_TEMPORARY_PREFIX = ".config-"
_OTHER_FILE = f"a regular file belongs there: move what is there away, or set {CONFIG_VARIABLE} to another file"


class State(str, Enum):
    ENABLED = "enabled"
    DISABLED = "disabled"
    MASKED = "masked"


@dataclass(frozen=True)
class Intent:
    """What is stored for one extension."""

    state: State
    configuration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """Where intents are kept and why there."""

    path: Path
    kind: str
    """``variable`` (VLLM_HUST_EXT_CONFIG), ``environment`` (a virtual environment's own) or ``user``."""

    def describe(self) -> str:
        why = {
            "variable": f"named by {CONFIG_VARIABLE}",
            "environment": "of this environment",
            "user": "of this user",
        }[self.kind]
        return f"{self.path} ({why})"


@dataclass(frozen=True)
class Intents:
    """All stored intents of one file."""

    entries: Mapping[str, Intent] = field(default_factory=dict)
    schema: int | None = None
    """Schema of the file they were read from, None where there is no file yet."""

    def state(self, extension_id: str) -> State | None:
        entry = self.entries.get(extension_id)
        return entry.state if entry is not None else None

    def configuration(self, extension_id: str) -> Mapping[str, Any]:
        entry = self.entries.get(extension_id)
        return entry.configuration if entry is not None else {}

    def with_(
        self, extension_id: str, state: State | None = None, configuration: Mapping[str, Any] | None = None
    ) -> Intents:
        old = self.entries.get(extension_id)
        new = Intent(
            state or (old.state if old else State.DISABLED),
            configuration if configuration is not None else (old.configuration if old else {}),
        )
        return Intents({**self.entries, extension_id: new}, self.schema)

    def without(self, extension_id: str) -> Intents:
        return Intents({k: v for k, v in self.entries.items() if k != extension_id}, self.schema)

    def in_state(self, state: State) -> list[str]:
        return sorted(k for k, v in self.entries.items() if v.state is state)


def origin_of(environment: Environment, variables: Mapping[str, str] | None = None) -> Origin:
    """Which file holds the intents of ``environment``."""
    named = (os.environ if variables is None else variables).get(CONFIG_VARIABLE)
    if named:
        return Origin(Path(os.path.abspath(os.path.expanduser(named))), "variable")
    if environment.is_virtual:
        return Origin(environment.prefix / "etc" / FOLDER_NAME / FILE_NAME, "environment")
    return Origin(user_file(), "user")


def user_file() -> Path:
    """The user's own file, which earlier managers used for all environments."""
    return user_folder("config") / FILE_NAME


class Corrupt(BrokenState):
    """The intents file is there and cannot be understood."""

    default_name = "intents-corrupt"


class IntentStore:
    """Reads and changes the intents file of one environment."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    @property
    def path(self) -> Path:
        return self.origin.path

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self) -> Intents:
        """The stored intents; none where no file exists yet.

        Raises:
            Corrupt: the file cannot be understood. Nothing is changed.
            BrokenState: it cannot be read at all.
        """
        data = self._bytes()
        if data is None:
            return Intents()
        try:
            return parse(data)
        except ValueError as error:
            raise self._corrupt(str(error)) from None

    def _corrupt(self, fault: str, kept: Path | None = None) -> Corrupt:
        return Corrupt(
            f"the intents file cannot be understood: {fault}",
            where=str(self.path),
            hint=(f"a copy is kept as {kept}; " if kept else "")
            + (
                "correct the file, or run 'vllm-hust-ext doctor --repair', which moves it aside and keeps"
                " what can be read"
            ),
        )

    def _bytes(self) -> bytes | None:
        self._refuse_unknown_folder()
        try:
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unreadable(error) from None
        try:
            with open(descriptor, "rb") as stream:
                import stat

                if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    raise BrokenState(
                        "the intents file is not a regular file",
                        where=str(self.path),
                        hint=_OTHER_FILE,
                    )
                data = stream.read(MAX_BYTES + 1)
        except OSError as error:
            raise self._unreadable(error) from None
        if len(data) > MAX_BYTES:
            raise self._corrupt(f"it has more than {MAX_BYTES} bytes")
        return data

    def _refuse_unknown_folder(self) -> None:
        if not self.path.is_absolute():
            raise BrokenState(
                "the user's configuration folder is not known (is HOME unset?)",
                where=str(self.path),
                hint=f"set {CONFIG_VARIABLE} to a file of your choice",
            )

    def _unreadable(self, error: OSError) -> BrokenState:
        return BrokenState(
            f"the intents file cannot be read: {error.strerror or error}",
            name="intents-unreadable",
            where=str(self.path),
            hint=f"correct its permissions, or set {CONFIG_VARIABLE} to another file"
            if isinstance(error, PermissionError)
            else _OTHER_FILE,
        )

    # -- writing ------------------------------------------------------------------------------------------------------

    def change(self, edit: Callable[[Intents], Intents]) -> Intents:
        """Apply ``edit`` to the stored intents under the lock. ``edit`` may raise: then nothing is written."""
        with self._locked():
            data = self._bytes()
            try:
                before = Intents() if data is None else parse(data)
            except ValueError as error:
                raise self._corrupt(str(error), self._keep_copy(data or b"", "corrupt")) from None
            after = edit(before)
            if after.entries != before.entries or before.schema not in (None, SCHEMA_VERSION):
                if before.schema not in (None, SCHEMA_VERSION):
                    self._keep_copy(data or b"", f"schema-{before.schema}")
                self._write(serialise(after))
            return after

    def repair(self) -> tuple[Path, Intents] | None:
        """Move a corrupt file aside and keep what can be read of it; None where the file is sound or absent."""
        with self._locked():
            data = self._bytes()
            if data is None:
                return None
            try:
                parse(data)
                return None
            except ValueError:
                kept = self._keep_copy(data, "corrupt")
                rescued = salvage(data)
                self._write(serialise(rescued))
                return kept, rescued

    def _keep_copy(self, data: bytes, word: str) -> Path:
        """Keep ``data`` beside the file under a name made of its content: the same damage is kept once."""
        target = self._target()
        kept = target.with_name(f"{target.name}.{word}-{hashlib.sha256(data).hexdigest()[:8]}")
        if not os.path.exists(kept):
            self._write(data, kept)
        return kept

    def _target(self) -> Path:
        """The file that is really replaced: a symbolic link stays a link."""
        return Path(os.path.realpath(self.path))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import filelock

        self._refuse_unknown_folder()
        target = self._target()
        lock_file = f"{target}.lock"
        try:
            self._make_folder(target.parent)
            # filelock takes "no such file" for a passing state and waits; where no file can be made at all, say so.
            os.close(os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise self._not_writable(error) from None
        # The lock's own permission bits: it holds nothing, but a stranger must not be able to take it.
        lock = filelock.FileLock(lock_file, timeout=LOCK_TIMEOUT_S, mode=0o600)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise BrokenState(
                f"another process has held the lock for {LOCK_TIMEOUT_S:.0f} s",
                name="intents-locked",
                where=lock_file,
                hint="look for a hanging vllm-hust-ext process; the lock goes with it",
            ) from None
        except (OSError, NotImplementedError) as error:
            raise self._not_writable(error) from None
        try:
            yield
        finally:
            lock.release()

    def _make_folder(self, folder: Path) -> None:
        if os.path.isdir(folder):
            if self.origin.kind != "variable" and folder.name == FOLDER_NAME and folder.stat().st_mode & 0o077:
                folder.chmod(0o700)  # our own folder; one that the user named may be anything
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            return

    def _not_writable(self, error: BaseException) -> BrokenState:
        said = getattr(error, "strerror", None) or str(error)
        return BrokenState(
            f"the intents file cannot be written: {said}",
            name="intents-not-writable",
            where=str(self.path),
            hint=f"look at its folder (permissions, free space), or set {CONFIG_VARIABLE} to a file that you may write",
        )

    def _write(self, data: bytes, target: Path | None = None) -> None:
        target = target or self._target()
        folder = target.parent
        try:
            for stale in folder.glob(f"{_TEMPORARY_PREFIX}*"):  # left by a killed writer; the lock is ours
                stale.unlink(missing_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY_PREFIX, dir=folder)  # mkstemp makes it 0600
            try:
                with open(descriptor, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, target)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            _sync_folder(folder)
        except OSError as error:
            raise self._not_writable(error) from None


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; some file systems do not offer that for folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def serialise(intents: Intents) -> bytes:
    """The file's bytes: schema 3, keys sorted, a newline at the end."""
    extensions = {
        k: {"configuration": dict(v.configuration), "state": v.state.value} for k, v in intents.entries.items()
    }
    document = {"schema_version": SCHEMA_VERSION, "extensions": extensions}
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8")


def parse(data: bytes) -> Intents:
    """Read schema 1, 2 or 3.

    Raises:
        ValueError: one sentence that says what is wrong and where.
    """
    from vllm_hust_ext.manifest.loading import InvalidManifest, parse_json_object

    try:
        document = parse_json_object(data, what="an intents file")
    except InvalidManifest as error:
        raise ValueError("; ".join(str(f) for f in error.faults)) from None
    schema = document.get("schema_version", 1 if "enabled" in document else None)
    if schema == 1 and not isinstance(schema, bool):
        return _parse_1(document)
    if schema == 2:
        return _parse_2(document)
    if schema == 3:
        return _parse_3(document)
    raise ValueError(f"schema_version is {schema!r}; known: 1, 2, {SCHEMA_VERSION}")


def _parse_1(document: Mapping[str, Any]) -> Intents:
    enabled = document.get("enabled", [])
    if not isinstance(enabled, list) or not all(isinstance(i, str) for i in enabled):
        raise ValueError("enabled: must be an array of extension ids")
    return Intents({i: Intent(State.ENABLED) for i in enabled}, 1)


def _entries(document: Mapping[str, Any]) -> Mapping[str, Any]:
    extensions = document.get("extensions", {})
    if not isinstance(extensions, dict):
        raise ValueError("extensions: must be an object")
    return extensions


def _configuration(place: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    configuration = entry.get("configuration", {})
    if not isinstance(configuration, dict):
        raise ValueError(f"{place}.configuration: must be an object")
    return configuration


def _parse_2(document: Mapping[str, Any]) -> Intents:
    found: dict[str, Intent] = {}
    for extension_id, entry in _entries(document).items():
        place = f"extensions.{extension_id}"
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: must be an object")
        unknown = sorted(set(entry) - {"enabled", "configuration"})
        if unknown:
            raise ValueError(f"{place}: unknown keys {', '.join(unknown)}")
        enabled = entry.get("enabled", False)
        if not isinstance(enabled, bool):
            raise ValueError(f"{place}.enabled: must be true or false")
        found[extension_id] = Intent(State.ENABLED if enabled else State.DISABLED, _configuration(place, entry))
    return Intents(found, 2)


def _parse_3(document: Mapping[str, Any]) -> Intents:
    unknown = sorted(set(document) - {"schema_version", "extensions"})
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}")
    found: dict[str, Intent] = {}
    for extension_id, entry in _entries(document).items():
        found[extension_id] = _entry_3(f"extensions.{extension_id}", entry)
    return Intents(found, SCHEMA_VERSION)


def _entry_3(place: str, entry: Any) -> Intent:
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: must be an object")
    unknown = sorted(set(entry) - {"state", "configuration"})
    if unknown:
        raise ValueError(f"{place}: unknown keys {', '.join(unknown)}")
    try:
        state = State(entry.get("state"))
    except ValueError:
        raise ValueError(f"{place}.state: {entry.get('state')!r} is not one of enabled, disabled, masked") from None
    return Intent(state, _configuration(place, entry))


def salvage(data: bytes) -> Intents:
    """The entries of a damaged document that are sound on their own; none where it is not even JSON."""
    try:
        document = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return Intents()
    entries = document.get("extensions") if isinstance(document, dict) else None
    found: dict[str, Intent] = {}
    for extension_id, entry in (entries or {}).items() if isinstance(entries, dict) else ():
        for one in ({"schema_version": 3}, {"schema_version": 2}):
            try:
                body = json.dumps(one | {"extensions": {extension_id: entry}}).encode()
                found[extension_id] = parse(body).entries[extension_id]
                break
            except ValueError:
                continue
    return Intents(found, SCHEMA_VERSION)
