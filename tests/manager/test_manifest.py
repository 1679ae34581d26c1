"""Manifest documents: exactly as strict as they are documented, all faults at once, each with its place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm_hust_ext.manifest import InvalidManifest, load_manifest, parse_manifest
from vllm_hust_ext.manifest.loading import MAX_BYTES

from .scratch import Scratch, manifest

ROOT = Path(__file__).parents[2]


def faults(document: Any) -> dict[str, str]:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(InvalidManifest) as caught:
        parse_manifest(data)
    return {f.location: f.message for f in caught.value.faults}


COMPONENT: dict[str, Any] = {
    "component_id": "core",
    "contracts": ["vllm.general_plugins"],
    "execution_planes": ["worker"],
    "isolation": "trusted_in_process",
    "implementation_ref": "one.plugin:load",
}
SERVICE = {"service_id": "s", "protocol": "http", "version_range": None, "endpoint_config": "url"}


def test_the_smallest_document_is_valid() -> None:
    made = parse_manifest(json.dumps(manifest(activation=None)).encode())
    assert made.extension_id == "org.example.one"
    assert made.activation.environment == {}
    assert made.components == ()
    assert made.experimental


@pytest.mark.parametrize("empty", [[], None])
def test_components_absent_null_and_empty_are_the_same(empty: Any) -> None:
    document = manifest()
    document["components"] = empty
    assert parse_manifest(json.dumps(document).encode()).components == ()


@pytest.mark.parametrize(
    ("changes", "location"),
    [
        ({"extension_id": "Org.Example"}, "extension_id"),
        ({"extension_id": ".org"}, "extension_id"),
        ({"extension_version": "one"}, "extension_version"),
        ({"kind": "magic"}, "kind"),
        ({"kind": 3}, "kind"),
        ({"host": {"provider": "vllm", "name": "", "version_range": ">=0"}}, "host.name"),
        ({"host": {"provider": "vllm", "name": "vllm", "version_range": " "}}, "host.version_range"),
        ({"host": {"provider": "vllm", "name": "vllm", "version_range": "0.27"}}, "host.version_range"),
        ({"host": {"provider": "vllm", "name": "vllm", "version_range": ">=0", "api_range": "one"}}, "host.api_range"),
        ({"host": {"provider": "vllm", "name": "vllm", "version_range": ">=0", "arch": "x"}}, "host.arch"),
        ({"host": {"provider": "vllm", "name": "vllm"}}, "host.version_range"),
        ({"runtime": {"type": "rust", "process_scope": "a", "isolation": "b"}}, "runtime.type"),
        ({"runtime": {"type": "python", "process_scope": "a"}}, "runtime.isolation"),
        ({"lifecycle_owner": "nobody"}, "lifecycle_owner"),
        ({"protocols": [{"name": "p"}]}, "protocols[0].version_range"),
        ({"protocols": [{"name": "p", "version_range": "x"}]}, "protocols[0].version_range"),
        ({"protocols": {}}, "protocols"),
        ({"implementation": []}, "implementation"),
        ({"implementation": [{"type": "crd"}]}, "implementation[0]"),
        ({"implementation": [{"type": "wizardry", "a": 1}]}, "implementation[0]"),
        (
            {"implementation": [{"type": "python_module", "module": "a", "object": "b.c", "status": "active"}]},
            "implementation[0].object",
        ),
        (
            {"implementation": [{"type": "python_module", "module": "a", "object": "b", "status": "live"}]},
            "implementation[0].status",
        ),
        (
            {"implementation": [{"type": "python_module", "module": "a", "object": "b", "status": "active", "x": 1}]},
            "implementation[0].x",
        ),
        (
            {"implementation": [{"type": "python_module", "module": "a-b", "object": "b", "status": "active"}]},
            "implementation[0].module",
        ),
        ({"requires_services": [{**SERVICE, "optional": "no"}]}, "requires_services[0].optional"),
        ({"requires_services": [{**SERVICE, "port": 1}]}, "requires_services[0].port"),
        ({"components": [{**COMPONENT, "contracts": []}]}, "components[0].contracts"),
        ({"components": [{**COMPONENT, "contracts": ["vllm.a", "vllm.a"]}]}, "components[0].contracts"),
        ({"components": [{**COMPONENT, "contracts": ["other.a"]}]}, "components[0].contracts[0]"),
        ({"components": [{**COMPONENT, "execution_planes": ["moon"]}]}, "components[0].execution_planes[0]"),
        ({"components": [{**COMPONENT, "isolation": "none"}]}, "components[0].isolation"),
        ({"components": [{**COMPONENT, "implementation_ref": "one.plugin"}]}, "components[0].implementation_ref"),
        ({"components": [{**COMPONENT, "permissions": ["root"]}]}, "components[0].permissions[0]"),
        ({"components": [COMPONENT, COMPONENT]}, "components"),
        ({"activation": {"environment": {"A": 1}}}, "activation.environment.A"),
        ({"activation": {"entry_points": [{"group": "g"}]}}, "activation.entry_points[0].name"),
        ({"activation": {"hooks": []}}, "activation.hooks"),
        ({"requires_extensions": []}, "requires_extensions"),
        ({"resource_claims": []}, "resource_claims"),
        ({"surprise": 1}, "surprise"),
        ({"kind": None}, "kind"),
    ],
)
def test_one_fault_is_found_at_its_place(changes: dict[str, Any], location: str) -> None:
    assert list(faults(manifest(**changes))) == [location]


def test_all_faults_come_together() -> None:
    document = manifest(
        extension_version="x", kind="y", surprise=1, host={"provider": "vllm", "name": "v"}, protocols=None
    )
    assert set(faults(document)) == {"extension_version", "kind", "surprise", "host.version_range", "protocols"}


def test_0_3_adds_claims_and_requirements() -> None:
    more: dict[str, Any] = {
        "requires_extensions": [{"extension_id": "org.b", "version_range": ">=1"}],
        "resource_claims": [{"resource": "kv.cache", "scope": "process", "mode": "exclusive"}],
    }
    for revision in ("0.3", "0.3-experimental"):
        made = parse_manifest(json.dumps(manifest(schema_version=revision, **more)).encode())
        assert made.requires_extensions[0].extension_id == "org.b"
        assert made.resource_claims[0].mode == "exclusive"
    assert list(faults(manifest(schema_version="0.3.1", **more))) == ["schema_version"]
    twice = manifest(schema_version="0.3", requires_extensions=more["requires_extensions"] * 2)
    assert list(faults(twice)) == ["requires_extensions"]
    again = manifest(schema_version="0.3", resource_claims=more["resource_claims"] * 2)
    assert list(faults(again)) == ["resource_claims"]
    mode = manifest(schema_version="0.3", resource_claims=[{"resource": "a", "scope": "b", "mode": "some"}])
    assert list(faults(mode)) == ["resource_claims[0].mode"]


V1: dict[str, Any] = {
    "schema_version": "1.0",
    "bundle_id": "org.old",
    "bundle_version": "0.1",
    "host_api_range": ">=1,<2",
    "components": [COMPONENT],
}


def test_1_0_is_read_and_never_blocked() -> None:
    made = parse_manifest(json.dumps(V1).encode())
    assert (made.extension_id, made.host.name, made.host.version_range, made.host.api_range) == (
        "org.old",
        "vllm",
        ">=0",
        ">=1,<2",
    )
    assert made.activation_blocker is None
    assert not made.experimental
    assert list(faults({**V1, "host": {}})) == ["host"]
    assert list(faults({**V1, "host_api_range": ">=2"})) == ["host_api_range"]
    assert list(faults({**V1, "components": []})) == ["components"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is a JSON object, not an array"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1, "a": 2}', "more than once"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a":' * 20000 + b"1" + b"}" * 20000, "nested too deeply"),
        (b'{"a": ' + b"9" * 10000 + b"}", "is not JSON"),
    ],
)
def test_what_is_not_strict_json_is_refused(data: bytes, words: str) -> None:
    assert words in "; ".join(f"{k} {v}" for k, v in faults(data).items())


def test_the_file_itself(tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    good.write_text(json.dumps(manifest()))
    assert load_manifest(good).extension_id == "org.example.one"
    link = tmp_path / "link.json"
    link.symlink_to(good)
    fifo = tmp_path / "fifo.json"
    os.mkfifo(fifo)
    huge = tmp_path / "huge.json"
    huge.write_bytes(b" " * (MAX_BYTES + 1))
    for path, words in [
        (link, "symbolic link"),
        (fifo, "not a regular file"),
        (tmp_path, "not a regular file"),
        (huge, "bytes"),
        (tmp_path / "absent.json", "cannot be read"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path / "nul\0.json", "cannot be read"),
    ]:
        with pytest.raises(InvalidManifest) as caught:
            load_manifest(path)
        assert words in str(caught.value), path


# -- 2,000 broken manifests -------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WHOLE = manifest(
    schema_version="0.3",
    components=[COMPONENT],
    requires_services=[SERVICE],
    protocols=[{"name": "p", "version_range": None}],
    requires_extensions=[{"extension_id": "org.b", "version_range": ">=1"}],
    resource_claims=[{"resource": "r", "scope": "s", "mode": "shared"}],
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += _paths(inner, (*path, key))
    return found


@st.composite
def broken_documents(draw: st.DrawFn) -> bytes:
    """A valid document with one to three places replaced, removed or added to, then perhaps cut or with bytes
    changed.
    """
    document = json.loads(json.dumps(WHOLE))
    for _ in range(draw(st.integers(1, 3))):
        paths = _paths(document)
        if not paths:
            break
        *parents, last = draw(st.sampled_from(paths))
        here = document
        for part in parents:
            here = here[part]
        action = draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "replace":
            here[last] = draw(JSON)
        elif action == "remove":
            del here[last]
        elif isinstance(here, dict):
            here[draw(st.text(max_size=8))] = draw(JSON)
        else:
            here.append(draw(JSON))
    data = json.dumps(document).encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 4)) :]
    return data


@pytest.mark.slow
@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
@given(broken_documents())
def test_2000_broken_documents_are_valid_or_have_placed_faults(data: bytes) -> None:
    caught: InvalidManifest | None = None
    try:
        assert parse_manifest(data).extension_id
    except InvalidManifest as error:
        caught = error
    if caught is not None:
        assert caught.faults
        for fault in caught.faults:
            assert fault.location
            assert fault.message
            str(fault).encode("utf-8", "backslashreplace")


def test_broken_documents_at_the_command_line(scratch: Scratch, tmp_path: Path) -> None:
    """A dozen of the ugliest, installed and as files: exit code 1, a place, no traceback (the runner looks for one)."""
    ugly = [b"", b"\0", b"null", b"{}", b"\xff", b'"x"', b'{"schema_version": []}', (b'{"schema_version":'
                                                                                     b' "0.2-experimental"}'),
            json.dumps(manifest(host=[])).encode(), json.dumps(manifest(implementation=[1])).encode(),
            json.dumps(manifest(extension_id="\u202e\x1b[31m")).encode(), b"[" * 100_000]  # fmt: skip
    for number, data in enumerate(ugly):
        path = tmp_path / f"{number}.json"
        path.write_bytes(data)
        done = scratch.extension("validate", str(path), "--json")
        assert done.code == 1
        assert done.json["faults"]
        assert "\x1b" not in scratch.extension("validate", str(path)).out
        scratch.site.extension(data, distribution=f"bad{number}", entry_name=f"org.bad{number}", plugins={})
    done = scratch.extension("list", "--json")
    assert done.code == 0
    assert sum(not e["valid"] for e in done.json["extensions"]) == len(ugly)


def test_validate_names_every_fault_of_a_file_that_is_not_installed(scratch: Scratch, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(manifest(kind="x", extension_version="y")))
    done = scratch.extension("validate", str(path))
    assert done.code == 1
    assert "kind: 'x' is not one of" in done.out
    assert "extension_version: 'y' is not a PEP 440 version" in done.out
    path.write_text(json.dumps(manifest()))
    assert scratch.extension("validate", str(path)).code == 0


# -- JSON Schema ------------------------------------------------------------------------------------------------------

SCHEMAS = {"manifest-0.2": "0.2-experimental", "manifest-0.3": "0.3", "manifest-1.0": "1.0"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_in_the_repository_is_the_one_that_the_command_prints(name: str, scratch: Scratch) -> None:
    kept = ROOT / "docs" / "formats" / f"{name}.schema.json"
    assert scratch.run("schema", name).out == kept.read_text()


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_and_reader_agree(name: str) -> None:
    """What the schema refuses the reader refuses; what the reader takes the schema takes."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs" / "formats" / f"{name}.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    good = V1 if name == "manifest-1.0" else {**WHOLE, "schema_version": SCHEMAS[name]}
    if name == "manifest-0.2":
        good = {k: v for k, v in good.items() if k not in ("requires_extensions", "resource_claims")}
    assert not list(validator.iter_errors(good))
    parse_manifest(json.dumps(good).encode())
    for path in _paths(good):
        changed = json.loads(json.dumps(good))
        here = changed
        for part in path[:-1]:
            here = here[part]
        here[path[-1]] = {"not": "this"}
        if list(validator.iter_errors(changed)):
            with pytest.raises(InvalidManifest):
                parse_manifest(json.dumps(changed).encode())
