"""The everyday path: list, inspect, enable, env, run, disable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .scratch import Scratch, manifest


def test_list_names_extension_state_verdict_and_host(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    done = scratch.extension("list")
    assert done.code == 0
    line = next(line for line in done.out.splitlines() if line.startswith("org.example.one"))
    assert line.split()[:4] == ["org.example.one", "1.0", "disabled", "compatible"]
    assert "hosts: vllm 0.27.1, vllm-ascend 0.27.1rc1" in done.out
    assert str(scratch.config) in done.out


def test_list_json_is_one_document_with_stable_keys(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    document = scratch.extension("list", "--json").json
    assert document["schema"] == "vllm-hust-ext.extension-list/1"
    (one,) = document["extensions"]
    assert one["bundle_id"] == "org.example.one"
    assert one["verdict"]["status"] == "compatible"
    assert one["activation"]["environment"] == {"EXAMPLE_ONE": "1"}
    assert one["enabled"] is False
    assert document["environment"]["intents"]["path"] == str(scratch.config)


def test_plugins_without_manifest_are_listed(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.install("bare", entry_points={"vllm.general_plugins": {"bare-plugin": "bare:load"}})
    document = scratch.extension("list", "--json").json
    names = {p["name"]: p["distribution"] for p in document["plugins_without_manifest"]}
    assert names["bare-plugin"] == "bare"
    assert names["ascend"] == "vllm-ascend"
    assert "bare-plugin" in scratch.extension("list").out


def test_inspect_with_missing_host_says_so_and_is_no(scratch: Scratch) -> None:
    scratch.site.extension()
    done = scratch.extension("inspect", "org.example.one")
    assert done.code == 1
    assert "the host is missing" in done.out
    document = scratch.extension("inspect", "org.example.one", "--json")
    assert document.code == 1
    assert document.json["verdict"]["status"] == "unknown"


def test_inspect_compatible_is_yes(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    done = scratch.extension("inspect", "org.example.one")
    assert done.code == 0
    assert "0.27.1rc1 (a pre-release) is in >=0.27,<0.28" in " ".join(done.out.split())


def test_unknown_id_is_no_with_a_suggestion(scratch: Scratch) -> None:
    scratch.site.extension()
    done = scratch.extension("inspect", "org.example.onw")
    assert done.code == 1
    assert "did you mean org.example.one" in done.err


def test_enable_env_run_disable(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    assert scratch.extension("enable", "org.example.one").code == 0
    assert scratch.stored()["extensions"]["org.example.one"]["state"] == "enabled"
    assert "EXAMPLE_ONE=1" in scratch.extension("env").out.splitlines()
    show = "import os, json; print(json.dumps(dict(os.environ)))"
    done = scratch.run("run", "--", "python", "-c", show)
    assert done.code == 0, done.err
    seen = json.loads(done.out)
    assert seen["EXAMPLE_ONE"] == "1"
    assert seen["VLLMHUST_EXT_ENABLED_BUNDLES"] == "org.example.one"
    assert "VLLM_PLUGINS" not in seen
    assert scratch.extension("disable", "org.example.one").code == 0
    seen = json.loads(scratch.run("run", "--", "python", "-c", show).out)
    assert "EXAMPLE_ONE" not in seen
    assert seen["VLLMHUST_EXT_ENABLED_BUNDLES"] == ""


def test_import_only_is_refused_at_enable_with_the_reason(scratch: Scratch) -> None:
    scratch.site.host()
    inert = [{"type": "python_module", "module": "one.plugin", "object": "load", "status": "import_only"}]
    scratch.site.extension(manifest(implementation=inert))
    done = scratch.extension("enable", "org.example.one")
    assert done.code == 3
    assert "import_only" in done.err
    assert not scratch.config.exists()
    assert scratch.extension("check", "org.example.one").code == 1
    # with one active carrier beside it, it is ready
    active = [*inert, {"type": "python_entry_point", "name": "x"}]
    scratch.site.extension(manifest(implementation=active))
    done = scratch.extension("enable", "org.example.one")
    assert done.code == 0
    assert "one.plugin:load stays inactive: its author ships it as import_only" in done.out + done.err


def test_the_mixed_bundle_turns_cascade_on_and_says_that_the_planner_stays_inactive(scratch: Scratch) -> None:
    root = Path(__file__).parents[2]
    file = root / "src/vllm_ascend_split_batch/manifests/split_batch_full_graph/vllm-hust-extension-v0.2.json"
    document = json.loads(file.read_text())
    scratch.site.host("0.27.1rc1", "0.27.1")
    scratch.site.extension(
        document, version=document["extension_version"], plugins={"cascade-attention": "one.plugin:load"}
    )
    done = scratch.extension("enable", document["extension_id"])
    assert done.code == 0, done.err
    assert "note: vllm_ascend_split_batch.planner:plan_dual_pad stays inactive" in done.out + done.err
    assert "warning" not in done.out + done.err
    assert "VLLM_ASCEND_ENABLE_CASCADE_DECODE=1" in scratch.extension("env").out.splitlines()


OURS = sorted(
    (Path(__file__).parents[2] / "src/vllm_ascend_split_batch/manifests").glob("*/vllm-hust-extension-v0.2.json")
)


@pytest.mark.parametrize("file", OURS, ids=[file.parent.name for file in OURS])
def test_each_bundle_of_ours_is_off_until_it_is_enabled(scratch: Scratch, file: Path) -> None:
    """All are active, the mixed one's planner apart: that nothing but a user turns one on is the manager's part."""
    document = json.loads(file.read_text())
    activation = document["activation"]
    variables = {f"{name}={value}" for name, value in activation["environment"].items()}
    scratch.site.host("0.27.1rc1", "0.27.1")
    scratch.site.extension(
        document,
        version=document["extension_version"],
        plugins={point["name"]: "one.plugin:load" for point in activation["entry_points"]},
    )
    assert variables
    assert not variables & set(scratch.extension("env").out.splitlines())
    done = scratch.extension("enable", document["extension_id"])
    assert done.code == 0, done.err
    assert variables <= set(scratch.extension("env").out.splitlines())
    assert ("stays inactive" in done.out + done.err) == (file.parent.name == "split_batch_full_graph")


def test_enabling_what_does_not_fit_is_said_and_run_refuses_it(scratch: Scratch) -> None:
    scratch.site.host("0.26.0rc1", "0.26.0")
    scratch.site.extension()
    done = scratch.extension("enable", "org.example.one")
    assert done.code == 0
    assert "'run' will refuse it" in done.err
    refused = scratch.run("run", "--", "python", "-c", "print('started')")
    assert refused.code == 3
    assert "started" not in refused.out
    assert "0.26.0rc1" in refused.err
    assert "--allow org.example.one" in refused.err
    allowed = scratch.run("run", "--allow", "org.example.one", "--", "python", "-c", "print('started')")
    assert (allowed.code, allowed.out) == (0, "started\n")
    skipped = scratch.run(
        "run", "--skip-incompatible", "--", "python", "-c", "import os; print('EXAMPLE_ONE' in os.environ)"
    )
    assert (skipped.code, skipped.out) == (0, "False\n")
    assert "org.example.one is skipped" in skipped.err


def test_one_launch_flags(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    ask = ("--", "python", "-c", "import os; print(os.environ.get('EXAMPLE_ONE'))")
    assert scratch.run("run", *ask).out == "None\n"
    assert scratch.run("run", "--with", "org.example.one", *ask).out == "1\n"
    scratch.extension("enable", "org.example.one")
    assert scratch.run("run", *ask).out == "1\n"
    assert scratch.run("run", "--without", "org.example.one", *ask).out == "None\n"
    assert scratch.run("run", "--no-extensions", *ask).out == "None\n"
    bare = scratch.run(
        "run", "--no-extensions", "--", "python", "-c", "import os; print([k for k in os.environ if 'REPORT' in k])"
    )
    assert bare.out == "[]\n"
    assert scratch.run("run", "--with", "a", "--without", "a", *ask).code == 2
    assert scratch.run("run", "--no-extensions", "--with", "org.example.one", *ask).code == 2


def test_a_mask_always_wins(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    assert scratch.extension("mask", "org.example.one").code == 0
    assert scratch.extension("enable", "org.example.one").code == 3
    assert scratch.run("run", "--with", "org.example.one", "--", "python", "-c", "pass").code == 3
    assert scratch.extension("disable", "org.example.one").code == 0
    assert scratch.extension("enable", "org.example.one").code == 0


def test_nothing_of_an_extension_or_host_is_imported(scratch: Scratch) -> None:
    """The packages of the scratch site raise at import; every verb that reads them still answers."""
    scratch.site.host()
    scratch.site.extension()
    for verb in (["list"], ["inspect", "org.example.one"], ["check", "org.example.one"], ["why", "org.example.one"],
                 ["validate", "org.example.one"], ["status", "org.example.one"], ["plan", "org.example.one"],
                 ["render", "org.example.one"], ["env"], ["enable", "org.example.one"]):  # fmt: skip
        done = scratch.extension(*verb)
        assert "imported" not in done.out + done.err
        assert done.code in (0, 1), (verb, done.err)
    assert "imported" not in scratch.run("doctor").err
