"""The seams sidecar: generated from declarations, held equal to the files beside the manifests."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from vllm_ascend_split_batch.carrier import Calls, Carrier, Flag, Seam, sidecar

ROOT = Path(__file__).parents[3]
FORMATS = ROOT / "docs" / "formats"
RELEASE = {"distribution": "vllm-ascend", "version": "0.27.1rc1", "with": {"vllm": "0.27.1"}}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("write_sidecars", ROOT / "tools" / "write_sidecars.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def validate():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((FORMATS / "seams.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema).validate


def golden_carrier():
    attention = "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder.build"
    return Carrier(
        "every-check",
        gates=(Flag("VLLM_HUST_TEST"),),
        binding="b",
        seams=(
            Seam(attention, ("common_prefix_len", "common_attn_metadata", "fast_build"),
                 why="the step's plan is attached here"),
            Seam("some_host.door:open_all", ("first", "*others", "loudly", "**options"),
                 why="variadic parameters are written with their stars"),
            Seam("vllm.envs:environment_variables", why="our variables are registered here"),
            Seam("some_host.door:Door.already_done_by_the_host", absent=True, why="the host would do our work itself"),
            Seam("some_host.door:Door.open", calls=Calls("greet", 2), why="both greetings are replaced"),
        ),
    )


def test_the_golden_document_is_what_we_write(validate):
    golden = json.loads((FORMATS / "golden" / "seams-all-checks.json").read_text())
    ours = golden_carrier().sidecar("org.example.every-check", [RELEASE])
    validate(ours)
    assert ours == golden
    assert [list(entry) for entry in ours["carriers"][0]["seams"]] == [
        list(entry) for entry in golden["carriers"][0]["seams"]
    ]


@pytest.mark.parametrize("path", sorted((FORMATS / "golden").glob("seams-*.json")), ids=lambda path: path.stem)
def test_golden_documents(path, validate):
    validate(json.loads(path.read_text()))


@pytest.mark.parametrize("change", [
    lambda d: d["carriers"][0]["seams"][0].pop("parameters"),
    lambda d: d["carriers"][0]["seams"][2].update(parameters=["x"]),
    lambda d: d["carriers"][0]["seams"][0].update(check="looks_like"),
    lambda d: d["carriers"][0]["seams"][0].update(target="no colon"),
    lambda d: d["carriers"][0]["seams"][4].update(count=-1),
    lambda d: d["verified_on"][0].pop("with"),
    lambda d: d.update(schema="vllm-hust-ext.seams/2"),
])
def test_the_schema_refuses_other_documents(validate, change):
    import jsonschema

    document = golden_carrier().sidecar("org.example.every-check", [RELEASE])
    change(document)
    with pytest.raises(jsonschema.ValidationError):
        validate(document)


def test_carriers_of_a_bundle_are_in_order_of_their_names():
    made = [Carrier(name, gates=(Flag("X"),), seams=(), binding="b") for name in ("b", "a")]
    assert [c["name"] for c in sidecar.document(made, "x", [])["carriers"]] == ["a", "b"]


def test_the_sidecars_in_the_tree_are_up_to_date(tool, validate, capsys):
    assert tool.main(["--check"]) == 0, capsys.readouterr().out
    folders = tool.bundles()
    declared = {carrier.extension_id for carrier in tool.carriers()} - {None}
    assert declared
    for extension_id in declared:
        validate(json.loads((folders[extension_id] / sidecar.FILE_NAME).read_text()))


def test_the_tool_notices_and_repairs_a_difference(tool, tmp_path, monkeypatch, capsys):
    """In a copy of the manifests."""
    import shutil

    copy = tmp_path / "manifests"
    shutil.copytree(tool.PACKAGE / "manifests", copy)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "bundles", lambda folder=copy, original=tool.bundles: original(folder))
    path = copy / "split_batch_full_graph" / sidecar.FILE_NAME
    before = path.read_text()
    path.write_text(before.replace("common_prefix_len", "another_name", 1))
    assert tool.main(["--check"]) == 1
    assert "differs from what the carriers declare" in capsys.readouterr().out
    assert tool.main([]) == 0
    assert path.read_text() == before
    assert tool.main(["--verified", "vllm-ascend==9.9 vllm==9.8"]) == 0
    document = json.loads(path.read_text())
    assert document["verified_on"][-1] == {"distribution": "vllm-ascend", "version": "9.9", "with": {"vllm": "9.8"}}
    assert len(document["verified_on"]) == len(json.loads(before)["verified_on"]) + 1
    path.unlink()
    assert tool.main(["--check"]) == 1


def test_the_tool_says_what_is_wrong(tool, monkeypatch, capsys):
    assert tool.main(["--verified", "vllm-ascend"]) == 2
    assert 'is not of the form "vllm-ascend==VERSION vllm==VERSION"' in capsys.readouterr().err
    monkeypatch.setattr(tool, "bundles", dict)
    assert tool.main(["--check"]) == 2
    assert "no manifest with extension_id" in capsys.readouterr().err


def test_every_variable_of_a_front_door_is_published(tool):
    from vllm_ascend_split_batch.carrier import near_misses

    declared = {gate.name for carrier in tool.carriers() for gate in carrier.gates}
    assert declared <= set(near_misses.PUBLISHED)
    assert not declared & set(near_misses.RETIRED)
