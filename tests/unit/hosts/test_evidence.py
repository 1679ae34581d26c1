"""The committed records are whole, and the tables say what they say."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.emulated.switched_on import SWITCHED_ON
from tools.hosts import releases, static_check, table
from tools.hosts.__main__ import COMPATIBILITY, EVIDENCE, TABLE

CARRIERS = list(dict.fromkeys([*static_check.carriers(static_check.sidecars()), *SWITCHED_ON]))


def documents() -> list[dict[str, Any]]:
    return [json.loads((EVIDENCE / f"{release.name}.json").read_text()) for release in releases.known()]


def test_the_files_are_those_of_the_manifest() -> None:
    listed = dict(line.split("  ")[::-1] for line in (EVIDENCE / "MANIFEST.sha256").read_text().splitlines())
    found = {path.name for path in EVIDENCE.iterdir() if path.is_file()} - {"MANIFEST.sha256"}
    assert set(listed) == found
    for name, digest in listed.items():
        assert hashlib.sha256((EVIDENCE / name).read_bytes()).hexdigest() == digest, name


def test_the_tables_say_what_the_records_say() -> None:
    stale = "run `make hosts ARGS=--static`, which renders them again"
    assert (EVIDENCE / TABLE).read_text() == table.render(documents(), CARRIERS), stale
    page = COMPATIBILITY.read_text()
    overview = table.overview(documents(), CARRIERS)
    extensions = table.extensions(list(zip(static_check.manifests(), static_check.sidecars(), strict=True)))
    assert table.replace_between(page, "carriers and releases", overview) == page, stale
    assert table.replace_between(page, "extensions", extensions) == page, stale
