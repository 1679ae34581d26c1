"""``doctor``: what it finds, how grave it is, what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from vllm_hust_ext.checks import gates, stack
from vllm_hust_ext.distributions import Distribution

from .scratch import Scratch, manifest

README = """
# Something

- Hardware: Atlas 800I A2 Inference series, Atlas A3 Training series (Experimental)
- OS: Linux
- Software:
    - Python >= 3.10, < 3.13
    - CANN == 9.1.0 (see the notes)
    - PyTorch == 2.10.0, TorchNPU == 2.10.0.post4
    - vLLM (the same version as vllm-ascend)
"""


def findings(scratch: Scratch, **env: str) -> tuple[int, list[dict[str, Any]]]:
    done = scratch.run("doctor", "--json", env=env)
    found = done.json["findings"]
    assert all(f["fix"] for f in found if f["severity"] == "error")
    assert done.json["healthy"] is (done.code == 0)
    return done.code, found


def about(found: list[dict[str, Any]], check: str, words: str) -> dict[str, Any]:
    matching = [f for f in found if f["check"] == check and words in f["message"]]
    assert matching, [f for f in found if f["check"] == check]
    return matching[0]


def test_a_sound_environment_is_healthy(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    scratch.extension("enable", "org.example.one")
    code, _ = findings(scratch)
    assert code == 0
    assert "healthy" in scratch.run("doctor").out


def test_orphan_intents(scratch: Scratch) -> None:
    scratch.config.write_text('{"schema_version": 3, "extensions": {"org.gone": {"state": "enabled"}}}')
    code, found = findings(scratch)
    assert code == 1
    assert "forget org.gone" in about(found, "intents", "org.gone is enabled, but not installed")["fix"]


def test_enabled_but_unfit(scratch: Scratch) -> None:
    scratch.site.host("0.20.0", "0.20.0")
    scratch.site.extension()
    scratch.extension("enable", "org.example.one")
    code, found = findings(scratch)
    assert code == 1
    about(found, "intents", "org.example.one is enabled, but incompatible")


def test_exported_and_misspelt_gates(scratch: Scratch) -> None:
    scratch.site.host(sources={"vllm/envs.py": 'x = {"EXAMPLE_ONES": 1}\n'})
    scratch.site.extension()
    code, found = findings(scratch, EXAMPLE_ONE="1")
    assert code == 1
    about(found, "gates", "org.example.one is disabled, but you exported EXAMPLE_ONE=1")
    for wrong in ("EXAMPLE_OEN", "EXAMPLE_ON", "EXAMPLEONE", "example_one", "XAMPLE_ONE"):
        code, found = findings(scratch, **{wrong: "1"})
        assert code == 1, wrong
        assert "did you mean EXAMPLE_ONE?" in about(found, "misspelt-gates", wrong)["message"]
    for right in ("EXAMPLE_ONES", "EXAMPLE_SOMETHING", "OTHER_ONE"):  # the first one is the host's own
        assert findings(scratch, **{right: "1"})[0] == 0, right


def test_distance() -> None:
    assert gates._near("ABCDEFGH", "ABCDEFG")
    assert gates._near("ABCD_EFGH", "ABCDEFGH")
    assert not gates._near("ABCDEFGH", "ABCDEFGH")
    assert not gates._near("ABCDEFGH", "ABCDEXYZ")


def test_allowlist_exclusions(scratch: Scratch) -> None:
    scratch.site.host()
    scratch.site.extension()
    scratch.extension("enable", "org.example.one")
    code, found = findings(scratch, VLLM_PLUGINS="ascend_model")
    assert code == 1
    about(found, "allowlist", "platform plugin ascend")
    about(found, "allowlist", "one-plugin, which carries the enabled org.example.one")


def test_plugins_of_one_name(scratch: Scratch) -> None:
    scratch.site.install("left", entry_points={"vllm.general_plugins": {"same": "left:load"}})
    scratch.site.install("right", entry_points={"vllm.general_plugins": {"same": "right:load"}})
    code, found = findings(scratch)
    assert code == 1
    about(found, "plugins", "left and right both bring the plugin 'same'")
    about(found, "plugins", "left 1.0 has plugins without a manifest: same")


def test_kernel_wheels_and_other_extras(scratch: Scratch) -> None:
    extra = (
        "Provides-Extra: kernels\nRequires-Dist: fast-kernel==2.0 ; extra =="
        " 'kernels'\nRequires-Dist: pytest ; extra == 'test'\n"
    )
    scratch.site.extension(metadata=extra)
    code, found = findings(scratch)
    assert (
        about(found, "optional-requirements", ("one[kernels] wants fast-kernel==2.0, which is not installed"))[
            "severity"
        ]
        == "note"
    )
    assert not any("wants pytest" in f["message"] for f in found)
    scratch.site.install("fast-kernel", "1.0")
    code, found = findings(scratch)
    assert code == 1
    about(found, "optional-requirements", "fast-kernel 1.0 is installed")
    scratch.site.install("fast-kernel", "2.0")


def test_report_folder(scratch: Scratch) -> None:
    code, found = findings(scratch, VLLM_HUST_EXT_REPORT_DIR="/no/such/folder")
    assert code == 1
    assert "mkdir -m 700" in about(found, "reports", "/no/such/folder is not a folder")["fix"]


def test_permissions_of_the_intents_file(scratch: Scratch) -> None:
    scratch.config.write_text('{"schema_version": 3, "extensions": {}}')
    scratch.config.chmod(0o666)
    code, found = findings(scratch)
    assert code == 1
    about(found, "intents", "can be written by others")


def test_an_earlier_managers_file_is_pointed_out(own_scratch: Scratch) -> None:
    old = own_scratch.root / "home" / ".config" / "vllm-hust-ext"
    old.mkdir(parents=True)
    (old / "config.json").write_text(
        '{"schema_version": 2, "extensions": {"org.x": {"enabled": true, "configuration": {}}}}'
    )
    env = {"VLLM_HUST_EXT_CONFIG": None, "XDG_CONFIG_HOME": None}
    done = own_scratch.run("doctor", "--json", env=env)
    finding = about(done.json["findings"], "intents", "does not read them")
    command = finding["fix"].partition("take them over: ")[2]
    import subprocess

    subprocess.run(command, shell=True, check=True)
    listed = own_scratch.extension("list", "--json", env=env).json
    assert listed["orphan_intents"] == [{"extension_id": "org.x", "state": "enabled"}]


# -- the pinned stack -------------------------------------------------------------------------------------------------


def host_with_readme(
    scratch: Scratch, requires: str = ("Requires-Dist: torch==2.10.0\nRequires-Dist: torch-npu==2.10.0.post4\n")
) -> None:
    scratch.site.install("vllm-ascend", "0.27.1rc1", files={"vllm_ascend/__init__.py": ""}, metadata=requires + README)
    scratch.site.install("vllm", "0.27.1", files={"vllm/__init__.py": ""})


def test_prerequisites_are_read_from_the_hosts_own_metadata(tmp_path: Path) -> None:
    info = tmp_path / "vllm_ascend-0.27.1rc1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.27.1rc1\nRequires-Dist: torch==2.10.0\n{README}"
    )
    wanted = stack.wanted_by(Distribution(info, tmp_path, "vllm-ascend", None))
    assert wanted.python == ">=3.10,<3.13"
    assert wanted.cann == "==9.1.0"
    assert wanted.pins == {"torch": "==2.10.0", "torch-npu": "==2.10.0.post4"}
    assert wanted.hardware == ("Atlas 800I A2 Inference series", "Atlas A3 Training series (Experimental)")


def test_where_the_stack_parts(scratch: Scratch) -> None:
    host_with_readme(scratch)
    scratch.site.install("torch", "2.13.0")
    code, found = findings(scratch)
    assert code == 1
    assert about(found, "host-stack", "no CANN toolkit was found")["severity"] == "error"
    assert about(found, "host-stack", "torch 2.13.0 is installed")["severity"] == "warning"
    assert "pip install 'torch-npu==2.10.0.post4'" in about(found, "host-stack", "torch-npu is not installed")["fix"]
    about(found, "host-stack", "names these chips: Atlas 800I A2")


def test_on_the_emulated_npu_the_stack_is_noted_only(scratch: Scratch) -> None:
    host_with_readme(scratch)
    scratch.site.install("torch", "2.13.0")
    code, found = findings(scratch, TORCH_NPU_EMULATOR="1")
    assert code == 0
    about(found, "host-stack", "emulated NPU")


def test_a_sound_stack(scratch: Scratch, tmp_path: Path) -> None:
    host_with_readme(scratch)
    scratch.site.install("torch", "2.10.0+cpu")
    scratch.site.install("torch-npu", "2.10.0.post4")
    (tmp_path / "cann").mkdir()
    for name, text in (
        ("version.cfg", "# version: 1.0\nruntime_running_version=[9.1.0:9.1.0]\n"),
        ("ascend_toolkit_install.info", "version=9.1.0\n"),
    ):
        for old in (tmp_path / "cann").iterdir():
            old.unlink()
        (tmp_path / "cann" / name).write_text(text)
        code, found = findings(scratch, ASCEND_HOME_PATH=str(tmp_path / "cann"))
        assert code == 0, found
        about(found, "host-stack", "CANN 9.1.0")
    (tmp_path / "cann" / "ascend_toolkit_install.info").write_text("version=8.0.RC1\n")
    code, found = findings(scratch, ASCEND_HOME_PATH=str(tmp_path / "cann"))
    assert code == 1


def test_a_python_that_the_host_does_not_take(scratch: Scratch) -> None:
    text = README.replace("< 3.13", "< 3.10").replace(">= 3.10", ">= 3.9")
    scratch.site.install("vllm-ascend", "0.27.1rc1", files={"vllm_ascend/__init__.py": ""}, metadata=text)
    _, found = findings(scratch)
    assert about(found, "host-stack", "Python")["severity"] == "error"


@pytest.mark.host
def test_the_installed_hosts_own_prerequisites() -> None:
    import importlib.metadata

    from vllm_hust_ext import environment

    try:
        version = importlib.metadata.version("vllm-ascend")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm-ascend is not installed here")
    wanted = stack.wanted_by(environment.current().active["vllm-ascend"])
    assert wanted.cann
    assert wanted.cann.startswith("==")
    assert {"torch", "torch-npu"} <= set(wanted.pins)
    assert wanted.python
    assert os.fspath(version)


def test_a_masked_or_broken_extension_is_no_riddle(scratch: Scratch) -> None:
    scratch.site.extension(b"{", distribution="bad", entry_name="org.bad")
    scratch.site.extension(manifest())
    code, found = findings(scratch)
    assert code == 1
    about(found, "extensions", "org.bad")
