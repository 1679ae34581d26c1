"""Verdicts: every reason, each with what would fix it."""

from __future__ import annotations

from typing import Any

import pytest

from .scratch import Scratch, manifest


def verdict(scratch: Scratch, **env: str) -> dict[str, Any]:
    done = scratch.extension("inspect", "org.example.one", "--json", env=env)
    found: dict[str, Any] = done.json["verdict"]
    assert done.code == (0 if found["fits"] else 1)
    assert all(r["fix"] for r in found["reasons"] if r["outcome"] in ("fails", "unknown"))
    return found


def reason(found: dict[str, Any], check: str) -> dict[str, Any]:
    (one,) = [r for r in found["reasons"] if r["check"] == check]
    return dict(one)


def configure(scratch: Scratch, text: str) -> None:
    assert scratch.run("extension", "configure", "org.example.one", "--file", "-", stdin=text).code == 0


@pytest.mark.parametrize(
    ("version", "core", "status"),
    [
        ("0.27.1rc1", "0.27.1", "compatible"),
        ("0.27.1", "0.27.1+empty", "compatible"),
        ("0.27.1.post1", "0.27.1", "compatible"),
        ("0.27.1+local.1", "0.27.1", "compatible"),
        ("0.27.2.dev3+gabc", "0.27.2", "compatible"),
        ("0.28.0", "0.28.0", "incompatible"),
        ("0.28.0rc1", "0.28.0", "incompatible"),
        ("0.26.9", "0.26.9", "incompatible"),
        ("0.27.1rc1", "0.26.0", "incompatible"),
        ("0.27.1rc1", None, "unknown"),
        ("0.27.1rc1", "0.1.dev1+g12", "compatible"),
        ("0.0.0", "0.27.1", "incompatible"),
        ("0.1.dev7+gdef", "0.27.1", "incompatible"),
        ("main", "0.27.1", "unknown"),
    ],
)
def test_host_versions(scratch: Scratch, version: str, core: str | None, status: str) -> None:
    scratch.site.host(version, core)
    scratch.site.extension()
    assert verdict(scratch)["status"] == status


def test_untagged_and_unreadable_versions_can_be_stated(scratch: Scratch) -> None:
    scratch.site.host("0.1.dev7+gdef")
    scratch.site.extension()
    said = reason(verdict(scratch), "host-version")
    assert "source build without tags" in said["message"]
    assert "host_version" in said["fix"]
    configure(scratch, '{"host_version": "0.27.1"}')
    assert verdict(scratch)["status"] == "compatible"
    configure(scratch, '{"host_version": "0.99"}')
    assert verdict(scratch)["status"] == "incompatible"


def test_core_and_plugin_release_must_be_a_pair(scratch: Scratch) -> None:
    scratch.site.host("0.27.1rc1", "0.26.0")
    scratch.site.extension()
    said = reason(verdict(scratch), "vllm-core")
    assert said["outcome"] == "fails"
    assert "vllm-ascend 0.27.1rc1 is made for vLLM 0.27.1, but vllm 0.26.0 is installed" in said["message"]
    assert "install vllm==0.27.1" in said["fix"]


def test_all_reasons_come_together(scratch: Scratch) -> None:
    scratch.site.host("0.26.0rc1", "0.25.0")
    document = manifest(
        host={"provider": "vllm", "name": "vllm-ascend", "version_range": ">=0.27", "api_range": ">=2"},
        protocols=[{"name": "vllm.x", "version_range": ">=1"}, {"name": "vllm.y", "version_range": None}],
        requires_services=[
            {"service_id": "store", "protocol": "http", "version_range": None, "endpoint_config": "store_url"}
        ],
        activation={"additional_config": {"_manager_runtime_qualification": {"model": "m"}}},
    )
    scratch.site.extension(document)
    found = {r["check"]: r["outcome"] for r in verdict(scratch)["reasons"]}
    assert found == {
        "provider": "ok",
        "host-version": "fails",
        "host-api": "fails",
        "protocol vllm.x": "unknown",
        "protocol vllm.y": "note",
        "service store": "unknown",
        "vllm-core": "fails",
        "runtime-qualification": "unknown",
        "seams": "note",
    }
    sentences = " ".join(scratch.extension("why", "org.example.one").out.split())
    for words in ("0.26.0rc1", "API 1.0", "vllm.x >=1", "store_url", "0.25.0", "qualification"):
        assert words in sentences


def test_null_protocols_are_no_blocker_and_ranges_need_a_known_version(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension(manifest(protocols=[{"name": "vllm.general_plugins", "version_range": None}]))
    assert verdict(scratch)["fits"]
    scratch.site.extension(manifest(protocols=[{"name": "vllm.x", "version_range": ">=1,<2"}]))
    assert verdict(scratch)["status"] == "unknown"
    configure(scratch, '{"protocol_versions": {"vllm.x": "1.4"}}')
    assert verdict(scratch)["fits"]
    configure(scratch, '{"protocol_versions": {"vllm.x": "2.0"}}')
    assert verdict(scratch)["status"] == "incompatible"


def test_host_api(scratch: Scratch) -> None:
    scratch.site.host()
    host = {"provider": "vllm", "name": "vllm-ascend", "version_range": ">=0.27,<0.28"}
    scratch.site.extension(manifest(host={**host, "api_range": ">=1,<2"}))
    assert verdict(scratch)["fits"]
    scratch.site.extension(manifest(host={**host, "api_range": ">=2"}))
    assert verdict(scratch)["status"] == "incompatible"
    configure(scratch, '{"host_api_version": "2.1"}')
    assert verdict(scratch)["fits"]


def test_a_host_with_a_capability_registry_is_not_guessed(scratch: Scratch) -> None:
    scratch.site.host(sources={"vllm/plugins/extension_capabilities.py": ""})
    host = {"provider": "vllm", "name": "vllm-ascend", "version_range": ">=0.27", "api_range": ">=1,<2"}
    scratch.site.extension(manifest(host=host))
    assert reason(verdict(scratch), "host-api")["outcome"] == "unknown"


def test_runtime_qualification_is_honoured(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension(
        manifest(
            activation={"additional_config": {"_manager_runtime_qualification": {"model": "m", "deep": {"a": [1]}}}}
        )
    )
    assert verdict(scratch)["status"] == "unknown"
    configure(scratch, '{"runtime_qualification": {"status": "failed", "model": "m", "deep": {"a": [1]}}}')
    assert verdict(scratch)["status"] == "incompatible"
    configure(scratch, '{"runtime_qualification": {"status": "passed", "model": "m", "deep": {"a": [2]}}}')
    assert "differs in deep" in reason(verdict(scratch), "runtime-qualification")["message"]
    configure(scratch, '{"runtime_qualification": {"status": "passed", "model": "m", "deep": {"a": [1]}, "more": 1}}')
    assert verdict(scratch)["fits"]


def test_services(scratch: Scratch) -> None:
    scratch.site.host()
    service = {"service_id": "store", "protocol": "http", "version_range": None, "endpoint_config": "store_url"}
    scratch.site.extension(manifest(requires_services=[service]))
    assert verdict(scratch)["status"] == "unknown"
    configure(scratch, '{"store_url": "http://x"}')
    assert verdict(scratch)["fits"]
    configure(scratch, "{}")
    scratch.site.extension(manifest(requires_services=[{**service, "optional": True}]))
    assert verdict(scratch)["fits"]


def test_a_provider_that_the_manager_does_not_know(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension(manifest(host={"provider": "mooncake", "name": "Mooncake", "version_range": ">=1"}))
    assert reason(verdict(scratch), "provider")["outcome"] == "unknown"


def test_a_fork_named_by_the_manifest_is_not_its_original(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension(manifest(host={"provider": "vllm", "name": "vllm-ascend-hust", "version_range": ">=0"}))
    found = verdict(scratch)
    assert found["status"] == "unknown"
    assert "installed: vllm 0.27.1; vllm-ascend 0.27.1rc1" in reason(found, "host-version")["message"]


# -- extensions that need, or exclude, others (0.3) -------------------------------------------------------------------


def three(scratch: Scratch, name: str, **more: Any) -> None:
    carrier = [{"type": "python_module", "module": f"{name}.plugin", "object": "load", "status": "active"}]
    document = manifest(f"org.{name}", schema_version="0.3", implementation=carrier, activation=None, **more)
    scratch.site.extension(document, distribution=name, file_name="vllm-hust-extension-v0.3.json")


def test_required_extensions(scratch: Scratch) -> None:
    scratch.site.host()
    three(scratch, "a", requires_extensions=[{"extension_id": "org.b", "version_range": ">=1,<2"}])
    missing = scratch.extension("enable", "org.a")
    assert missing.code == 3
    assert "org.b >=1,<2, which is not installed" in missing.err
    three(scratch, "b")
    assert "org.b, which is not enabled" in scratch.extension("enable", "org.a").err
    assert scratch.extension("enable", "org.b").code == 0
    assert scratch.extension("enable", "org.a").code == 0
    assert scratch.extension("disable", "org.b").code == 3
    assert scratch.extension("mask", "org.b").code == 3
    assert scratch.run("run", "--without", "org.b", "--", "python", "-c", "pass").code == 3
    assert scratch.run("run", "--without", "org.b", "--skip-incompatible", "--", "python", "-c", "pass").code == 0
    three(scratch, "b", extension_version="3.0")
    assert "3.0 is not in >=1,<2" in scratch.run("run", "--", "python", "-c", "pass").err
    view = scratch.extension("inspect", "org.a", "--json").json["requires_extensions"]
    assert view == [
        {
            "extension_id": "org.b",
            "version_range": ">=1,<2",
            "installed": True,
            "installed_version": "3.0",
            "enabled": True,
        }
    ]


def test_circles_of_requirements(scratch: Scratch) -> None:
    scratch.site.host()
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        three(scratch, name, requires_extensions=[{"extension_id": f"org.{other}", "version_range": ">=0"}])
    done = scratch.extension("enable", "org.a")
    assert done.code == 3
    assert "org.a -> org.b -> org.c -> org.a" in done.err


def test_exclusive_claims_are_refused_at_enable(scratch: Scratch) -> None:
    scratch.site.host()
    for name in ("a", "b"):
        three(scratch, name, resource_claims=[{"resource": "kv", "scope": "p", "mode": "exclusive"}])
    assert scratch.extension("enable", "org.a").code == 0
    refused = scratch.extension("enable", "org.b")
    assert refused.code == 3
    assert "org.a" in refused.err
    assert "org.b" not in scratch.stored()["extensions"]
    both = scratch.run("run", "--with", "org.b", "--", "python", "-c", "print(1)")
    assert (both.code, both.out) == (3, "")
