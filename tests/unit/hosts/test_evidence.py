"""The committed records: whole, rendered as they say, and enough for every release a bundle calls verified."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.emulated.switched_on import SWITCHED_ON
from tools.hosts import releases, static_check, table
from tools.hosts.__main__ import COMPATIBILITY, EVIDENCE, TABLE
from tools.hosts.findings import rows

CARRIERS = list(dict.fromkeys([*static_check.carriers(static_check.sidecars()), *SWITCHED_ON]))


def documents() -> list[dict[str, Any]]:
    return [json.loads((EVIDENCE / f"{release.name}.json").read_text()) for release in releases.known()]


def results(document: dict[str, Any]) -> dict[str, Any]:
    return {part: entry["result"] for part, entry in document["parts"].items()}


def test_every_release_has_every_part() -> None:
    assert {document["release"]: list(document["parts"]) for document in documents()} == {
        release.name: ["static", "live", "proofs", "host_model"] for release in releases.known()
    }


def test_the_tables_say_what_the_records_say() -> None:
    stale = "run `make hosts ARGS=--static`, which renders them again"
    assert (EVIDENCE / TABLE).read_text() == table.render(documents(), CARRIERS), stale
    page = COMPATIBILITY.read_text()
    overview = table.overview(documents(), CARRIERS)
    extensions = table.extensions(list(zip(static_check.manifests(), static_check.sidecars(), strict=True)))
    assert table.replace_between(page, "carriers and releases", overview) == page, stale
    assert table.replace_between(page, "extensions", extensions) == page, stale


VERIFIED = [
    (str(carrier["name"]), str(item["version"]))
    for sidecar in static_check.sidecars()
    for item in sidecar["verified_on"]
    for carrier in sidecar["carriers"]
]


@pytest.mark.parametrize(("carrier", "release"), VERIFIED)
def test_a_verified_release_was_proved(carrier: str, release: str) -> None:
    parts = results(json.loads((EVIDENCE / f"{release}.json").read_text()))
    (row,) = rows(parts, [carrier])
    assert row.problems == []
    assert row.proof is not None
    assert row.proof[0] == row.proof[1] > 0
    assert row.engaged or (row.defects and not any(row.defects.values()))
