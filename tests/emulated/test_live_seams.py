"""The installed host: the live check and the manager's reading of the source files say the same, and the host is
whole after every carrier was switched on and taken back.

`make hosts` does the same on every release.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.hosts import static_check
from tools.hosts.findings import release_problems, rows
from tools.hosts.live import Runner
from tools.setup_environment import Environment

from .switched_on import SWITCHED_ON

pytestmark = [pytest.mark.emulated, pytest.mark.slow]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("live")
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parents[1]
    environment = Environment(Path(sys.prefix), folder / "log")
    return {
        "static": static_check.check([installed], static_check.sidecars()),
        "live": Runner(environment, folder).live(SWITCHED_ON),
    }


def test_seams_agree_and_nothing_is_left(parts):
    carriers = static_check.carriers(static_check.sidecars())
    assert release_problems(parts, carriers) == []
    assert all(row.agree and row.clean for row in rows(parts, carriers))


def test_carriers_were_really_switched_on(parts):
    states = [entry["state"] for entry in parts["live"]["carriers"].values()]
    assert set(states) <= {"installed", "refused"}
    assert states.count("installed") >= 3
    assert parts["live"]["together"]["changed"] > 10


@pytest.mark.parametrize("where", ["static", "live"])
def test_a_seam_that_differs_on_one_side_is_noticed(parts, where):
    changed = copy.deepcopy(parts)
    carrier = "cascade-attention"
    seams = changed["static"][carrier] if where == "static" else changed["live"]["carriers"][carrier]["seams"]
    seams[0]["status"] = "differs"
    (row,) = rows(changed, [carrier])
    assert row.agree is False
