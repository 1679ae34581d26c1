"""docs/evidence/cascade-decision: the shipped profile and the claims follow from the published cells."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "evidence" / "cascade-decision"
DATA = ROOT / "src" / "vllm_ascend_split_batch" / "cascade" / "profile_data"


@pytest.fixture(scope="module")
def collect():
    path, names = list(sys.path), ("collect", "analysis")
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("collect")
    finally:
        sys.path[:] = path
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def computed(collect):
    published = collect.analysis.read()
    return published, collect.analysis.end_to_end(published)


def test_the_shipped_profile_is_the_fit(collect, computed):
    _, results = computed
    assert json.loads(json.dumps(collect.profiles(results))) == json.loads((DATA / "ascend910b2.json").read_text())


def test_the_results_are_those_of_the_program(collect, computed):
    published, results = computed
    expected = json.loads(json.dumps(collect.results_document(published, results)))
    assert expected == json.loads((FOLDER / "results.json").read_text())


def test_the_tables_are_those_of_the_program(collect, computed):
    published, results = computed
    readme = (FOLDER / "README.md").read_text()
    document = collect.results_document(published, results)
    for name, table in collect.tables(published, results, document).items():
        assert f"<!-- {name} -->\n{table}\n<!-- end -->" in readme


def test_the_claims(computed):
    """Regret at most 2 % in every split; the one contradictory cell is the only one that is ever wrong."""
    _, results = computed
    assert len(results["splits"]) == 6
    for split in results["splits"]:
        assert split["total_regret"] <= 0.02
        assert all("p420 B=64" in wrong for wrong in split["wrong_outside"]["stock_against_itself"])
    assert results["all"]["wrong_outside"]["stock_against_itself"] == ["older p420 B=64 (-3.5%)"]
    assert not results["others"]["c3"][0]["use"]


def test_published_changes_agree_with_the_published_seconds(computed):
    published, _ = computed
    end = published["end_to_end"]
    for cell, percent in zip(end["cells"], end["change_percent"]["current"]["values"], strict=True):
        assert 100 * (cell["on_s"] / cell["off_s"] - 1) == pytest.approx(percent, abs=0.06)


def test_the_manifest_is_of_these_files():
    lines = (FOLDER / "MANIFEST.sha256").read_text().splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    files = {path.name for path in FOLDER.iterdir() if path.is_file() and path.name != "MANIFEST.sha256"}
    assert set(listed) == files
    for name, digest in listed.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name
