"""``VLLM_PLUGINS``: unset stays unset, a list is extended and never narrowed, an empty one is respected."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_hust_ext import allowlist
from vllm_hust_ext.allowlist import Needed, extend
from vllm_hust_ext.discovery import Plugin
from vllm_hust_ext.distributions import Distribution

from tests.mutants import mutant  # noqa: F401

from .scratch import Scratch, manifest

HOSTS = {"vllm-ascend": "vllm-ascend", "vllm": "vllm"}


def plugin(name: str, distribution: str, group: str = "vllm.general_plugins") -> Plugin:
    return Plugin(group, name, f"{distribution}:load", Distribution(Path("x"), Path("."), distribution, "1"))


INSTALLED = [
    plugin("ascend", "vllm-ascend", "vllm.platform_plugins"),
    plugin("ascend_model", "vllm-ascend"),
    plugin("lora_filesystem_resolver", "vllm"),
    plugin("mine", "one"),
    plugin("other", "two"),
]
MINE = [Needed("mine", "vllm.general_plugins", "org.one")]


def test_unset_stays_unset() -> None:
    assert extend(None, MINE, INSTALLED, HOSTS) == allowlist.AllowlistAnswer(None)


def test_a_list_is_extended_and_what_it_leaves_out_is_said() -> None:
    answer = extend("ascend", MINE, INSTALLED, HOSTS)
    assert answer.value == "ascend,mine"
    assert answer.added == tuple(MINE)
    said = " ".join(text for _, text in answer.notes)
    assert "vllm-ascend's own plugins: ascend_model" in said
    assert "vllm's own plugins: lora_filesystem_resolver" in said
    assert "other installed plugins: other" in said
    assert "platform plugin" not in said


def test_a_list_without_the_platform_is_warned_of() -> None:
    answer = extend("mine", MINE, INSTALLED, HOSTS)
    assert answer.value is None
    assert ("warning", "platform plugin ascend") in [
        (level, "platform plugin ascend") for level, t in answer.notes if "platform plugin ascend" in t
    ]


def test_an_empty_value_is_respected_and_said() -> None:
    answer = extend("", MINE, INSTALLED, HOSTS)
    assert answer.value is None
    said = " ".join(text for _, text in answer.notes)
    assert "exported empty" in said
    assert "not loaded because of that: mine" in said


def test_blanks_and_unknown_names_are_pointed_out() -> None:
    answer = extend("ascend, mine,nowhere", MINE, INSTALLED, HOSTS)
    assert answer.value == "ascend, mine,nowhere,mine"  # vLLM does not strip: " mine" is no plugin
    said = " ".join(text for _, text in answer.notes)
    assert "blanks around 'mine'" in said
    assert "names nowhere" in said


def test_endpoint_plugins_need_a_name_and_get_the_whole_list_as_advice() -> None:
    lazy = [Needed("routes", "vllm.endpoint_plugins", "org.one")]
    answer = extend(None, lazy, [*INSTALLED, plugin("routes", "one", "vllm.endpoint_plugins")], HOSTS)
    assert answer.value is None
    assert "VLLM_PLUGINS=ascend,ascend_model,lora_filesystem_resolver,mine,other,routes" in answer.notes[0][1]
    assert extend("ascend", lazy, INSTALLED, HOSTS).value == "ascend,routes"


NAMES = st.sampled_from(["ascend", "ascend_model", "mine", "other", " mine", "", "x y", "lora_filesystem_resolver"])


def _never_narrowed(module: Any, current: str | None, needed: list[Needed]) -> bool:
    """The law: vLLM loads at least what it loaded before, and what is needed unless the value is empty."""
    answer = module.extend(current, needed, INSTALLED, HOSTS)
    final = current if answer.value is None else answer.value
    if current is None:
        return final is None
    if current == "":
        return final == ""
    after = final.split(",")
    return (
        set(current.split(",")) <= set(after)
        and {n.name for n in needed} <= set(after)
        and after[: current.count(",") + 1] == current.split(",")
    )


@settings(max_examples=400)
@given(
    st.none() | st.lists(NAMES, max_size=5).map(",".join),
    st.lists(st.sampled_from(["mine", "other", "ascend"]), max_size=3),
)
def test_a_list_is_never_narrowed(current: str | None, needed: list[str]) -> None:
    assert _never_narrowed(allowlist, current, [Needed(n, "vllm.general_plugins", "o") for n in needed])


def test_a_mutant_that_replaces_the_list_is_noticed(mutant: Any) -> None:  # noqa: F811
    changed = mutant(allowlist, "final = [*listed, *(n.name for n in added)]", "final = [n.name for n in added]")
    assert not _never_narrowed(changed, "ascend", MINE)


@pytest.mark.host
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
def test_as_vllm_reads_it() -> None:
    """The installed vLLM splits as this module believes: at commas, without stripping."""
    ask = "import vllm.envs as e, json; print(json.dumps(e.VLLM_PLUGINS))"
    for value, wanted in [("a, b", ["a", " b"]), ("", [""])]:  # both keep platform plugins out of this process
        done = subprocess.run(
            [sys.executable, "-c", ask],
            capture_output=True,
            text=True,
            env={**os.environ, "VLLM_PLUGINS": value},
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == wanted


def test_at_the_command_line(scratch: Scratch) -> None:
    """A bundle that declares no entry point is kept in a user's list through its module and object."""
    scratch.site.host()
    scratch.site.extension(manifest(), plugins={"mine": "one.plugin:load", "second": "one.plugin:other"})
    scratch.extension("enable", "org.example.one")
    show = ("--", "python", "-c", "import os; print(os.environ.get('VLLM_PLUGINS'))")
    assert scratch.run("run", *show).out == "None\n"
    extended = scratch.run("run", *show, env={"VLLM_PLUGINS": "ascend,ascend_model"})
    assert extended.out == "ascend,ascend_model,mine\n"
    assert "lora_filesystem_resolver" in extended.err
    empty = scratch.run("run", *show, env={"VLLM_PLUGINS": ""})
    assert empty.out == "\n"
    assert "exported empty" in empty.err
    plan = scratch.run("run", "--dry-run", "--json", *show, env={"VLLM_PLUGINS": "ascend"}).json
    (item,) = [i for i in plan["plan"]["environment"] if i["name"] == "VLLM_PLUGINS"]
    assert (item["action"], item["before"], item["value"], item["owners"]) == (
        "extended",
        "ascend",
        "ascend,mine",
        ["org.example.one"],
    )
