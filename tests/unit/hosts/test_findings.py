"""From records to rows and problems."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest

from tests.mutants import mutant  # noqa: F401
from tools.hosts import findings, live, table

NAME = "greeting"
TARGETS = ("some_host.room:Door.open", "some_host.room:Door.close", "some_host.room:Door.lock")


def seam(target: str, status: str) -> dict[str, str]:
    return {"target": target, "check": "exists", "status": status, "detail": "d"}


def parts() -> dict[str, Any]:
    """A release on which all is well."""
    return {
        "static": {NAME: [seam(TARGETS[0], "matched"), seam(TARGETS[1], "matched"), seam(TARGETS[2], "unknown")]},
        "live": {
            "carriers": {
                NAME: {
                    "state": "installed", "state_reason": "1 patches in place", "changed": ["some_host.room.Door.open"],
                    "seams": [seam(target, "matched") for target in TARGETS], "left": [],
                }
            },
            "not_imported": {}, "not_switched_on": [], "together": {"left": []},
        },
        "proofs": {
            "outcomes": {"passed": 2},
            "records": [
                {
                    "test": "t::one", "carriers": [NAME], "outcome": "passed", "message": "",
                    "defects": [{"name": "slow", "present": True, "because": "b"}],
                    "reports": [{"name": NAME, "engaged": 7, "failures": {}}, {"name": NAME, "engaged": 3}],
                },
                {"test": "t::stock", "carriers": [findings.STOCK], "outcome": "passed", "message": "", "defects": [],
                 "reports": []},
            ],
        },
        "host_model": {"outcomes": {"passed": 5}, "not_passed": [], "compared": {"padding: steps": 5000}},
    }  # fmt: skip


def problems(changed: dict[str, Any], module: Any = findings) -> list[str]:
    found: list[str] = module.release_problems(changed, [NAME])
    return found


def at(path: str, value: Any) -> dict[str, Any]:
    """All is well but for the entry at `path`."""
    document = parts()
    *way, last = path.split("/")
    place: Any = document
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[int(last) if isinstance(place, list) else last] = value
    return document


def test_a_release_on_which_all_is_well() -> None:
    assert problems(parts()) == []
    (row,) = findings.rows(parts(), [NAME])
    assert (row.static, row.live, row.agree) == ((2, 3, 1), (3, 3, 0), True)
    assert (row.engaged, row.proof, row.clean, row.defects) == (7, (1, 1), True, {"slow": True})


LIVE = f"live/carriers/{NAME}"
WRONG = [
    (f"static/{NAME}/0/status", "missing", "missing in the sources (d), matched on the live host"),
    (f"{LIVE}/seams/1/status", "differs", "matched in the sources (d), differs on the live host"),
    (f"{LIVE}/seams", [], "run python tools/write_sidecars.py"),
    (f"{LIVE}/left", ["vllm.x added"], "left in the host after uninstall: vllm.x added"),
    (f"{LIVE}/changed", [], "installed, but nothing of the host was changed"),
    ("live/carriers", {}, "does not say how it is switched on"),
    ("live/together/left", ["vllm.y replaced"], "left after all carriers together: vllm.y replaced"),
    ("live/not_imported", {"vllm.gone": "ImportError: no"}, "vllm.gone cannot be imported: ImportError: no"),
    ("static", {}, "no bundle's seams sidecar names it"),
    ("proofs/records/0/outcome", "skipped", "t::one skipped"),
    ("proofs/records/0/outcome", "failed", "t::one failed"),
    ("proofs/records/0/carriers", ["other"], "no proof test names it"),
    ("proofs/records/0/reports/0/failures", {"KeyError at x.py:3": 1}, "the host's own path ran: KeyError at x.py:3"),
    (
        "proofs/records/0/defects",
        [{"name": "slow", "present": present, "because": "b"} for present in (True, False)],
        "contradict each other about the defect slow",
    ),
    ("proofs/records/1/outcome", "failed", "t::stock failed"),
    ("host_model/not_passed", ["FAILED tests/host_model/x"], "host model: FAILED tests/host_model/x"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG)
def test_whatever_is_wrong_is_a_problem(path: str, value: Any, said: str) -> None:
    found = problems(at(path, value))
    assert any(said in line for line in found), found


def test_what_was_not_run_is_no_problem() -> None:
    for part in parts():
        without = {name: result for name, result in parts().items() if name != part}
        assert problems(without) == []
    assert problems({}) == []


def test_a_comparison_with_what_the_release_lacks_is_no_problem_and_any_other_skip_is_one() -> None:
    lines = [
        "SKIPPED [15] tests/x.py:80: not applicable: vllm-ascend 0.23 has no BatchJobAwareRequestQueue",
        "SKIPPED [2] tests/y.py:8: not applicable: vllm-ascend 0.23 has no BatchJobAwareRequestQueue",
        "SKIPPED [1] tests/x.py:80: not applicable: vllm-ascend 0.23 has no DyntraLBScheduler",
        "SKIPPED [3] tests/x.py:7: vllm-ascend is not installed",
    ]
    ran = {"outcomes": {"passed": 5, "skipped": 21}, "not_passed": lines, "compared": {"padding: steps": 5000}}
    result = live.apart(ran)
    assert result["outcomes"] == {"passed": 5, "skipped": 3, "not applicable": 18}
    assert result["not_applicable"] == {"BatchJobAwareRequestQueue": 17, "DyntraLBScheduler": 1}
    document = parts()
    document["host_model"] = result
    assert problems(document) == [f"host model: {lines[3]}"]
    text = table.render([record("1.0", document)], [NAME])
    said = "5 passed, 3 skipped, 18 not applicable tests; no BatchJobAwareRequestQueue; no DyntraLBScheduler"
    assert f"padding: steps 5000 ({said})" in text


def test_where_all_comparisons_apply_nothing_is_set_apart() -> None:
    ran = {"outcomes": {"passed": 5}, "not_passed": ["FAILED tests/x", "SKIPPED [1] a.py:1: not applicable: nothing"]}
    assert live.apart(ran) == ran | {"not_applicable": {}}


def test_a_blind_comparison_is_noticed(mutant: Any) -> None:  # noqa: F811
    blind = mutant(findings, '(one["status"] == "matched") != (other["status"] == "matched")', "False")
    assert problems(at(f"{LIVE}/seams/1/status", "differs"), blind) == []


def record(release: str, document: dict[str, Any]) -> dict[str, Any]:
    entries = {name: {"result": result, "on": "2027-01-01", "sources": "0" * 16} for name, result in document.items()}
    return {"release": release, "host": {"vllm": "1.0"}, "parts": entries}


def test_the_table_says_what_the_records_say() -> None:
    refused = at(f"{LIVE}/state", "refused")
    refused["live"]["carriers"][NAME] |= {"state_reason": "it is mended upstream", "changed": []}
    refused["proofs"]["records"][0] |= {"defects": [{"name": "slow", "present": False, "because": "b"}], "reports": []}
    text = table.render(
        [
            record("1.0", parts()),
            record("2.0", refused),
            record("3.0", at(f"{LIVE}/left", ["x"])),
            record("4.0", {"static": parts()["static"]}),
            record("5.0", {"static": at(f"static/{NAME}/0/status", "missing")["static"]}),
        ],
        [NAME],
    )
    lines = text.splitlines()
    overview = next(line for line in lines if line.startswith(f"| {NAME} |"))
    cells = [cell.strip() for cell in overview.strip("|").split("|")]
    expected = ["proved, engaged 7", "not needed", "**problem**", "seams match, not run", "seams differ, not run"]
    assert cells == [NAME, *expected]
    assert "| 1.0 | 1.0 | slow: yes | 2 of 3 (1 not judged) | 3 of 3 | yes | installed | 7 | 1 of 1 | yes |" in lines
    assert "* 2.0: refused: it is mended upstream" in lines
    assert any("padding: steps 5000 (5 passed tests)" in line for line in lines)


def test_a_release_that_the_host_model_does_not_cover_says_so() -> None:
    uncovered = parts()
    uncovered["host_model"] = {"outcomes": {}, "not_passed": [], "compared": {}, "not_modelled": "no such line"}
    assert problems(uncovered) == []
    assert "| not modelled |" in table.render([record("1.0", uncovered)], [NAME])


def test_installed_without_a_proof_run_is_not_called_proved() -> None:
    unproved = {name: part for name, part in parts().items() if name != "proofs"}
    text = table.render([record("1.0", unproved)], [NAME])
    assert "installs, proof not run" in text
    assert "proved" not in text


def test_installed_but_never_reached_shows() -> None:
    idle = copy.deepcopy(parts())
    idle["proofs"]["records"][0]["reports"] = [{"name": NAME, "engaged": 0, "failures": {}}]
    assert "installed, **not engaged**" in table.render([record("1.0", idle)], [NAME])


def test_the_mutant_fixture_is_real(mutant: Any) -> None:  # noqa: F811
    lax = mutant(findings, 'if record["outcome"] != "passed"\n    ]', 'if record["outcome"] == "failed"\n    ]')
    assert isinstance(lax, ModuleType)
    assert problems(at("proofs/records/0/outcome", "skipped"), lax) == []


def test_generated_parts_of_a_page_are_replaced_and_the_rest_stays() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    once = table.replace_between(page, "a", ["new", "lines"])
    assert once == "before\n<!-- a -->\n\nnew\nlines\n\n<!-- end of a -->\nafter\n"
    assert table.replace_between(once, "a", ["new", "lines"]) == once
    with pytest.raises(ValueError, match="no <!-- b -->"):
        table.replace_between(page, "b", [])


def test_extensions_are_listed_with_range_and_verified_releases() -> None:
    manifest = {
        "extension_id": "org.x",
        "host": {"name": "vllm-ascend", "version_range": ">=1"},
        "implementation": [{"status": "active"}],
    }
    sidecar = {"carriers": [{"name": NAME}], "verified_on": [{"distribution": "vllm-ascend", "version": "1.2"}]}
    assert table.extensions([(manifest, sidecar)])[-1] == f"| org.x ({NAME}) | active | vllm-ascend >=1 | 1.2 |"
