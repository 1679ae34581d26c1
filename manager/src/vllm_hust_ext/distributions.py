"""Installed distributions, read from their metadata folders. Nothing is imported.

The order and the precedence are those of ``importlib.metadata``: path entries in order, ``*.dist-info`` before
``*.egg-info`` in one folder, the first distribution of a name is the one whose entry points count. Reading the few
files that are needed directly is what keeps ``extension list`` fast in an environment of hundreds of distributions.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class EntryPoint:
    group: str
    name: str
    value: str


def canonical_name(name: str) -> str:
    """The name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_entry_points(text: str) -> tuple[EntryPoint, ...]:
    """Read the text of an ``entry_points.txt``; lines that are not ``name = value`` in a section are left out."""
    found: list[EntryPoint] = []
    group = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group and "=" in line:
            name, value = line.split("=", 1)
            found.append(EntryPoint(group, name.strip(), re.sub(r"\s*\[.*\]\s*$", "", value.strip())))
    return tuple(found)


class Distribution:
    """One ``*.dist-info`` or ``*.egg-info`` on a search path.

    Attributes:
        metadata_path: the folder (or, for old egg-info, the single file).
        location: the search path entry that holds it.
        key: canonical name, from the folder's name.
        shadowed_by: the distribution of the same name that comes earlier on the path, or None.
    """

    def __init__(self, metadata_path: Path, location: Path, key: str, version_in_name: str | None) -> None:
        self.metadata_path = metadata_path
        self.location = location
        self.key = key
        self._version_in_name = version_in_name
        self.shadowed_by: Distribution | None = None

    def __repr__(self) -> str:
        return f"Distribution({str(self.metadata_path)!r})"

    def read(self, name: str) -> str | None:
        """The text of a file of the metadata folder, or None where it is absent or unreadable."""
        try:
            return (self.metadata_path / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    @cached_property
    def metadata_text(self) -> str:
        """Core metadata: ``METADATA`` or ``PKG-INFO``; an egg-info that is a file is that text itself."""
        if os.path.isfile(self.metadata_path):
            try:
                return self.metadata_path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                return ""
        return self.read("METADATA") or self.read("PKG-INFO") or ""

    def fields(self, name: str) -> list[str]:
        """All values of one core metadata field."""
        head = re.split(r"\r?\n\r?\n", self.metadata_text, maxsplit=1)[0]
        return [value.strip() for value in re.findall(rf"(?mi)^{re.escape(name)}:[ \t]*(.*)$", head)]

    @cached_property
    def name(self) -> str:
        return next(iter(self.fields("Name")), self.key)

    @cached_property
    def version(self) -> str | None:
        """The version in the core metadata, else the one in the folder's name, else None."""
        return next((v for v in self.fields("Version") if v), None) or self._version_in_name

    @cached_property
    def entry_points(self) -> tuple[EntryPoint, ...]:
        return parse_entry_points(self.read("entry_points.txt") or "")

    @cached_property
    def record(self) -> frozenset[str] | None:
        """Paths in ``RECORD`` (or an egg-info's ``SOURCES.txt`` equivalent), None where no file list exists."""
        text = self.read("RECORD")
        if text is None:
            return None
        try:
            return frozenset(row[0] for row in csv.reader(text.splitlines()) if row)
        except csv.Error:
            return None

    @cached_property
    def editable_root(self) -> Path | None:
        """The project folder of an editable install, from ``direct_url.json``; None for other installs."""
        text = self.read("direct_url.json")
        if text is None:
            return None
        try:
            document: Any = json.loads(text)
            url = document["url"]
            editable = document.get("dir_info", {}).get("editable") is True
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return None
        if not editable or not isinstance(url, str):
            return None
        match = re.match(r"file://(localhost)?(/.*)$", url)
        if not match:
            return None
        from urllib.parse import unquote

        return Path(unquote(match.group(2)))

    @cached_property
    def package_roots(self) -> tuple[Path, ...]:
        """Folders under which this distribution's top-level packages may lie, most likely first."""
        roots: list[Path] = []
        if self.editable_root is None:
            roots.append(self.location)
        else:
            roots += self._pth_folders()
            roots += [self.editable_root / "src", self.editable_root, self.editable_root / "python", self.location]
        seen: dict[Path, None] = dict.fromkeys(roots)
        return tuple(seen)

    def _own_top_files(self, suffix: str) -> list[Path]:
        """Files beside the metadata folder that belong to this distribution, by RECORD or by its name."""
        if self.record is not None:
            return [
                self.location / entry for entry in sorted(self.record) if entry.endswith(suffix) and "/" not in entry
            ]
        stem = self.key.replace("-", "_")
        try:
            return sorted(p for p in self.location.iterdir() if p.name.endswith(suffix) and stem in p.name.lower())
        except OSError:
            return []

    def _pth_folders(self) -> list[Path]:
        folders: list[Path] = []
        for pth in self._own_top_files(".pth"):
            try:
                lines = pth.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            for line in lines:
                if line and not line.startswith(("#", "import ", "import\t")):
                    folders.append(self.location / line.strip())
        return folders

    @cached_property
    def mapped_packages(self) -> dict[str, Path]:
        """Top-level package -> folder, as a setuptools editable finder maps it. Read by AST, never imported."""
        import ast

        for finder in self._own_top_files("_finder.py"):
            try:
                tree = ast.parse(finder.read_text(encoding="utf-8"))
            except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            for node in tree.body:
                targets: Sequence[ast.expr] = ()
                if isinstance(node, ast.AnnAssign):
                    targets = (node.target,)
                elif isinstance(node, ast.Assign):
                    targets = node.targets
                value = getattr(node, "value", None)
                if any(isinstance(t, ast.Name) and t.id == "MAPPING" for t in targets) and value is not None:
                    try:
                        mapping = ast.literal_eval(value)
                        return {str(k): Path(v) for k, v in mapping.items()}
                    except (ValueError, AttributeError, TypeError, SyntaxError, RecursionError, MemoryError):
                        return {}
        return {}

    def package_folder_candidates(self, dotted: str) -> list[Path]:
        """Where the package ``dotted`` of this distribution may lie."""
        parts = dotted.split(".")
        found: list[Path] = []
        if self.editable_root is not None:
            for depth in range(len(parts), 0, -1):
                mapped = self.mapped_packages.get(".".join(parts[:depth]))
                if mapped is not None:
                    found.append(mapped.joinpath(*parts[depth:]))
        found += [root.joinpath(*parts) for root in self.package_roots]
        return found


def _identify(entry: str) -> tuple[str, str | None] | None:
    """Canonical name and version from the name of a metadata folder; None for anything else."""
    stem, _, suffix = entry.rpartition(".")
    if suffix not in ("dist-info", "egg-info") or not stem or entry.startswith("~"):
        return None
    name, _, rest = stem.partition("-")
    version = rest.split("-py")[0] if suffix == "egg-info" else rest
    return canonical_name(name), version or None


def scan(search_path: Iterable[str | os.PathLike[str]]) -> list[Distribution]:
    """All distributions on ``search_path``, in the order in which ``importlib.metadata`` meets them.

    A later distribution of the same name is kept, with ``shadowed_by`` set: its entry points do not count.
    """
    found: list[Distribution] = []
    first: dict[str, Distribution] = {}
    visited: set[str] = set()
    for raw in search_path:
        folder = os.path.realpath(raw or ".")
        if folder in visited:
            continue
        visited.add(folder)
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        here: list[tuple[bool, Distribution]] = []
        for entry in entries:
            if not entry.endswith(("-info",)):
                continue
            identified = _identify(entry)
            if identified is not None:
                path = Path(folder)
                here.append((entry.endswith(".egg-info"), Distribution(path / entry, path, *identified)))
        for _, distribution in sorted(here, key=lambda item: item[0]):
            distribution.shadowed_by = first.get(distribution.key)
            first.setdefault(distribution.key, distribution)
            found.append(distribution)
    return found
