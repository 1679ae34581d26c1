"""From a file or text to a :class:`Manifest`, or to all faults of the document at once."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_hust_ext.manifest.model import Manifest

FILE_NAMES = (
    "vllm-hust-extension-v0.3.json",
    "vllm-hust-extension-v0.2.json",
    "vllm-hust-extension-v1.json",
    "extension-bundle-v1.json",
)
"""File names of the revisions that are read, newest first."""

_PYDANTIC_SWITCH = "PYDANTIC_DISABLE_PLUGINS"

MAX_BYTES = 1 << 20
"""A manifest is a page of text; a file beyond 1 MiB is a mistake and is not read."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and where: ``components[0].contracts``, or ``(file)`` for the file as a whole."""

    location: str
    message: str

    def __str__(self) -> str:
        return f"{self.location}: {self.message}"


class InvalidManifest(Exception):
    """A document that is not a valid manifest, with all its faults."""

    def __init__(self, faults: Sequence[Fault], where: str | None = None) -> None:
        self.faults = tuple(faults)
        self.where = where
        super().__init__("; ".join(str(f) for f in self.faults))


def _file_fault(message: str, path: Path) -> InvalidManifest:
    return InvalidManifest([Fault("(file)", message)], str(path))


def read_file(path: Path, *, follow_symlink: bool = False) -> bytes:
    """The bytes of a regular file of at most ``MAX_BYTES``. A symlink, FIFO or device is refused without opening it."""
    try:
        status = os.stat(path, follow_symlinks=follow_symlink)
        if stat.S_ISLNK(status.st_mode):
            raise _file_fault("is a symbolic link; a manifest is a regular file", path)
        if not stat.S_ISREG(status.st_mode):
            raise _file_fault("is not a regular file", path)
        if status.st_size > MAX_BYTES:
            raise _file_fault(f"has {status.st_size} bytes; at most {MAX_BYTES} are read", path)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow_symlink else getattr(os, "O_NOFOLLOW", 0))
        descriptor = os.open(path, flags)
        with open(descriptor, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except ValueError as error:  # a NUL in the path
        raise _file_fault(f"cannot be read: {error}", path) from None
    except OSError as error:
        raise _file_fault(f"cannot be read: {error.strerror or error}", path) from None
    if len(data) > MAX_BYTES:
        raise _file_fault(f"has more than {MAX_BYTES} bytes; at most {MAX_BYTES} are read", path)
    return data


def parse_json_object(data: bytes, *, what: str = "a manifest") -> dict[str, Any]:
    """Strict JSON: UTF-8, an object at the top, no duplicate keys, no NaN or Infinity, nothing beyond UTF-8."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidManifest([Fault("(file)", f"is not UTF-8: byte {error.start} does not belong there")]) from None
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in items:
            if key in result:
                duplicates.append(key)
            result[key] = value
        return result

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        document = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InvalidManifest(
            [Fault(f"line {error.lineno} column {error.colno}", f"is not JSON: {error.msg}")]
        ) from None
    except RecursionError:
        raise InvalidManifest([Fault("(file)", "is nested too deeply")]) from None
    except UnicodeEncodeError:
        raise InvalidManifest([Fault("(file)", "holds half of a surrogate pair, which is not text")]) from None
    except ValueError as error:
        raise InvalidManifest([Fault("(file)", f"is not JSON: {error}")]) from None
    faults = [Fault(f"key {key!r}", "appears more than once in one object") for key in dict.fromkeys(duplicates)]
    if not isinstance(document, dict):
        faults.append(Fault("(file)", f"{what} is a JSON object, not {_json_type(document)}"))
    if faults:
        raise InvalidManifest(faults)
    assert isinstance(document, dict)
    return document


def _json_type(value: Any) -> str:
    names = {
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return names.get(type(value), "an object")


def _location(parts: Sequence[Any], document: Any, kind: str) -> str:
    """``components[0].contracts``. Steps that pydantic adds for the member of a union are left out."""
    text = ""
    here = document
    for index, part in enumerate(parts):
        if isinstance(part, int):
            text += f"[{part}]"
            here = here[part] if isinstance(here, list) and part < len(here) else None
        else:
            known = isinstance(here, dict) and part in here
            names_absent_key = index == len(parts) - 1 and kind in ("missing", "extra_forbidden")
            if isinstance(here, dict) and not known and not names_absent_key:
                continue
            if not isinstance(here, dict) and here is not None:
                continue
            text += f".{part}" if text else str(part)
            here = here.get(part) if isinstance(here, dict) else None
    return text or "(document)"


def _sentence(error: Any) -> str:
    kind, message, context = error["type"], error["msg"], error.get("ctx") or {}
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "is not a key of this revision"
    if kind == "value_error":
        return str(context.get("error", message))
    if kind in ("union_tag_invalid", "union_tag_not_found", "literal_error"):
        expected = context.get("expected") or context.get("expected_tags") or ""
        if kind == "union_tag_not_found":
            return "needs a 'type'"
        found = repr(context.get("tag")) if "tag" in context else repr(error.get("input"))
        return f"{found} is not one of {expected}"
    if kind == "string_pattern_mismatch":
        return f"{error.get('input')!r} does not match {context.get('pattern')}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"must be an object, not {_json_type(error.get('input'))}"
    if kind in ("list_type", "string_type", "bool_type"):
        wanted = {"list_type": "an array", "string_type": "a string", "bool_type": "true or false"}[kind]
        return f"must be {wanted}, not {_json_type(error.get('input'))}"
    text = str(message)
    return text[:1].lower() + text[1:]


def parse_manifest(data: bytes, where: str | None = None) -> Manifest:
    """Read a document of any revision.

    Raises:
        InvalidManifest: with every fault that the document has.
    """
    try:
        document = parse_json_object(data)
        return _validate(document)
    except InvalidManifest as error:
        error.where = error.where or where
        raise


def _validate(document: dict[str, Any]) -> Manifest:
    with without_pydantic_plugins():
        return _validate_without_plugins(document)


@contextmanager
def without_pydantic_plugins() -> Iterator[None]:
    """Keep pydantic from asking every installed distribution for plugins of its own when it builds a model.

    Those are file reads that grow with the environment, for nothing here, and rotten metadata of some distribution
    would make them fail. The switch is put back: a launched command does not inherit it.
    """
    before = os.environ.get(_PYDANTIC_SWITCH)
    os.environ[_PYDANTIC_SWITCH] = "__all__"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_PYDANTIC_SWITCH, None)
        else:
            os.environ[_PYDANTIC_SWITCH] = before


def _validate_without_plugins(document: dict[str, Any]) -> Manifest:
    from pydantic import ValidationError

    from vllm_hust_ext.manifest.documents import REVISIONS

    revision = document.get("schema_version")
    if not isinstance(revision, str) or revision not in REVISIONS:
        said = (
            "is required"
            if "schema_version" not in document
            else f"{revision!r} is not a revision that this manager reads"
        )
        raise InvalidManifest([Fault("schema_version", f"{said}; known: {', '.join(REVISIONS)}")])
    try:
        return REVISIONS[revision].model_validate(document).to_manifest()
    except ValidationError as error:
        faults = []
        for item in error.errors(include_url=False):
            parts = item["loc"]
            faults.append(Fault(_location(parts, document, item["type"]), _sentence(item)))
        raise InvalidManifest(list(dict.fromkeys(faults))) from None
    except RecursionError:
        raise InvalidManifest([Fault("(document)", "is nested too deeply")]) from None


def load_manifest(path: Path) -> Manifest:
    """Read a manifest file.

    Raises:
        InvalidManifest: for the file (not regular, too large, not UTF-8) or with every fault of the document.
    """
    return parse_manifest(read_file(path), str(path))
