"""Published bundles: list, inspect, why, enable, dry-run, with right verdicts on four hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .published import EXPECTED, HOSTS, PACKAGES, Expected, fetch
from .scratch import Scratch, Site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("published")
    try:
        return {package: fetch(package, folder) for package in PACKAGES}
    except ConnectionError as error:
        pytest.skip(f"the package index does not give them: {error}")


def _status(expected: Expected, host: str) -> str:
    return "compatible" if host in expected.fits else "unknown" if host in expected.not_told else "incompatible"


@pytest.mark.parametrize("package", PACKAGES)
def test_verdicts_on_every_host(scratch: Scratch, installed: dict[str, Path], package: str) -> None:
    for host, versions in HOSTS.items():
        site = Site(scratch.root / f"host-{host}")
        site.host(*versions)
        env = {
            "PYTHONPATH": f"{installed[package]}:{site.path}",
            "VLLM_HUST_EXT_CONFIG": str(scratch.root / host / "c.json"),
        }
        listed = scratch.extension("list", "--json", env=env)
        assert listed.code == 0
        found = {e["bundle_id"]: e for e in listed.json["extensions"]}
        assert set(found) == set(EXPECTED[package])
        for extension_id, expected in EXPECTED[package].items():
            view = found[extension_id]
            assert view["valid"]
            status = _status(expected, host)
            assert view["verdict"]["status"] == status, (host, view["verdict"]["reasons"])
            assert view["activation"]["environment"] == expected.sets
            assert view["activation_ready"] is not expected.inert
            if not expected.inert:
                assert tuple(p["name"] for p in view["carriers"]["plugins"]) == expected.carriers
            if host not in (*expected.fits[:1], *expected.not_told[:1], "0.27"):
                continue  # the verbs are tried where it fits, and on a host where most do not
            fits = status == "compatible"
            assert scratch.extension("inspect", extension_id, env=env).code == (0 if fits else 1)
            why = scratch.extension("why", extension_id, env=env)
            assert why.code == (0 if fits and not expected.inert else 1)
            enabled = scratch.extension("enable", extension_id, env=env)
            assert enabled.code == (3 if expected.inert else 0)
            run = ["run", "--dry-run", "--json", "--with", extension_id]
            others = [a for other in EXPECTED[package] if other != extension_id for a in ("--without", other)]
            dry = scratch.run(*run, *others, "--", "python", "-c", "pass", env=env)
            assert dry.code == (0 if fits and not expected.inert else 3), dry.err
            if dry.code == 0:
                changes = dry.json["environment"]
                assert expected.sets.items() <= changes.items()
                assert "VLLM_PLUGINS" not in changes


def test_a_registration_in_the_wrong_group_is_pointed_out(scratch: Scratch, installed: dict[str, Path]) -> None:
    env = {"PYTHONPATH": str(installed["vllm-hust-dla==0.1.0"])}
    (mistaken,) = scratch.extension("list", "--json", env=env).json["mistaken_registrations"]
    assert mistaken["group"] == "vllm.extension_bundles"
    assert scratch.run("doctor", env=env).code == 1


def test_an_old_document_with_a_foreign_key_is_invalid_and_said(scratch: Scratch, installed: dict[str, Path]) -> None:
    root = installed["vllm-ascend-quantized-kv-cache==0.2.0rc4"]
    (old,) = root.glob("*/manifests/vllm-hust-extension-v1.json")
    done = scratch.extension("validate", str(old), "--json")
    assert done.code == 1
    assert done.json["faults"] == [{"location": "host", "message": "is not a key of this revision"}]


def test_two_published_bundles_side_by_side(scratch: Scratch, installed: dict[str, Path]) -> None:
    """One declares its entry point, one does not: both stay in a user's list, and the host's plugins are warned of."""
    scratch.site.host(*HOSTS["0.25"])
    first, second = "vllm-ascend-split-batch==0.2.0", "vllm-ascend-kvcompress-hust==0.10.0"
    path = f"{installed[first]}:{installed[second]}:{scratch.site.path}"
    env = {"PYTHONPATH": path, "VLLM_PLUGINS": "ascend"}
    for extension_id in ("org.vllm-hust.fia-demask", "org.vllm-hust.ascend-kvcompress"):
        assert scratch.extension("enable", extension_id, env=env).code == 0
    show = ("--", "python", "-c", "import os, json; print(json.dumps(dict(os.environ)))")
    done = scratch.run("run", *show, env=env)
    assert done.code == 0, done.err
    seen = json.loads(done.out)
    assert seen["VLLM_PLUGINS"] == "ascend,ascend_kvcompress,fia-demask"
    assert seen["VLLM_HUST_FIA_DEMASK"] == seen["VLLM_ASCEND_KVCOMPRESS_ENABLED"] == "1"
    assert seen["VLLMHUST_EXT_ENABLED_BUNDLES"] == "org.vllm-hust.ascend-kvcompress,org.vllm-hust.fia-demask"
    assert "vllm-ascend's own plugins: ascend_model" in done.err


def test_a_users_controller_is_not_blanked(scratch: Scratch, installed: dict[str, Path]) -> None:
    """One published manifest asks for VLLM_CLM_CONTROLLER=""; what the user exported stays."""
    scratch.site.host(*HOSTS["0.27"])
    path = f"{installed['vllm-hust-clm-lifecycle==0.1.1']}:{scratch.site.path}"
    env = {"PYTHONPATH": path, "VLLM_CLM_CONTROLLER": "http://controller"}
    ask = ("--", "python", "-c", "import os; print(os.environ['VLLM_CLM_CONTROLLER'])")
    name = "org.vllm-hust.clm-lifecycle"
    done = scratch.run("run", "--with", name, "--allow", name, *ask, env=env)
    assert (done.code, done.out) == (0, "http://controller\n"), done.err
    stated = '{"protocol_versions": {"vllm.request-lifecycle": "1.0"}}'
    assert scratch.run("extension", "configure", name, "--file", "-", stdin=stated, env=env).code == 0
    assert scratch.extension("check", name, env=env).code == 0
