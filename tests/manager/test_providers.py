"""Plugins of the manager: hosts and checks of other distributions, and commands of extensions. The examples are those
of the docs.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from .scratch import Scratch, build_wheel, manifest, pip

GUIDE = Path(__file__).parents[2] / "docs" / "manager-plugins.md"


def block(title: str) -> str:
    """The fenced block of the guide that follows the line with ``title``."""
    match = re.search(rf"^{re.escape(title)}\n+```\w*\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert match, title
    return match.group(1)


def install_the_example(scratch: Scratch) -> None:
    """Build the guide's project as it is printed there and install it with pip."""
    project = scratch.root / "example"
    for title, path in (
        ("`pyproject.toml`:", "pyproject.toml"),
        ("`src/acme_vllm_tools/provider.py`:", "src/acme_vllm_tools/provider.py"),
        ("`src/acme_vllm_tools/command.py`:", "src/acme_vllm_tools/command.py"),
    ):
        target = project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block(title))
    (project / "src" / "acme_vllm_tools" / "__init__.py").touch()
    pip(scratch.python, "install", "--no-deps", "--no-build-isolation", "--no-index", project)


@pytest.mark.slow
def test_the_worked_example_of_the_guide(own_scratch: Scratch) -> None:
    pytest.importorskip("setuptools")
    install_the_example(own_scratch)
    scratch = own_scratch
    scratch.site.install("acme-vllm-fork", "2.1", files={"acme_engine/__init__.py": ""})
    scratch.site.host()
    carrier = [{"type": "python_module", "module": "one.plugin", "object": "load", "status": "active"}]
    host = {"provider": "vllm", "name": "acme-engine", "version_range": ">=2,<3"}
    scratch.site.extension(manifest(host=host, implementation=carrier))
    done = scratch.extension("inspect", "org.example.one", "--json")
    verdict = done.json["verdict"]
    assert verdict["fits"], verdict
    assert any("as distribution acme-vllm-fork" in r["message"] for r in verdict["reasons"])
    # the extra check speaks in the verdict, and in doctor
    refused = scratch.extension("check", "org.example.one", env={"ACME_MAINTENANCE": "1"})
    assert refused.code == 1
    assert "maintenance" in refused.out
    assert "acme" in scratch.run("doctor").out
    # the command runs by exec of python -m, with its own arguments and exit code
    ran = scratch.run("acme-hello", "--loud", "world")
    assert (ran.code, ran.out) == (5, "HELLO WORLD\n")
    assert "acme-hello" in scratch.run("--help").out


HOOK = "from vllm_hust_ext.hookspecs import hookimpl\n@hookimpl\n"


@pytest.mark.parametrize(
    "body",
    [
        "raise RuntimeError('at import')",
        "raise SystemExit(3)",
        "import no_such_module",
        HOOK + "def vllm_hust_ext_hosts():\n    raise ValueError('in the hook')",
        HOOK + "def vllm_hust_ext_hosts():\n    return 5",
        HOOK + "def vllm_hust_ext_no_such_hook():\n    return []",
        HOOK + "def vllm_hust_ext_check(manifest):\n    return 1 / 0",
        "def (",
    ],
)
def test_a_broken_provider_is_isolated_and_reported(scratch: Scratch, body: str) -> None:
    scratch.site.host()
    scratch.site.extension()
    good = (
        "from vllm_hust_ext.hookspecs import hookimpl\nfrom vllm_hust_ext.hosts import"
        " HostPackage\n@hookimpl\ndef vllm_hust_ext_hosts():\n    return [HostPackage('other', 'other')]\n"
    )
    scratch.site.install("fine", files={"fine.py": good}, entry_points={"vllm_hust_ext.providers": {"fine": "fine"}})
    scratch.site.install("bad", files={"bad.py": body}, entry_points={"vllm_hust_ext.providers": {"bad": "bad"}})
    scratch.site.install("other", "7")
    done = scratch.extension("list", "--json")
    assert done.code == 0
    assert "other" in {h["name"] for h in done.json["environment"]["hosts"]["installed"]}
    (left_out,) = done.json["providers_left_out"]
    assert left_out["name"] == "bad"
    assert scratch.extension("check", "org.example.one").code == 0
    doctor = scratch.run("doctor", "--json")
    assert doctor.code == 1
    assert any(
        f["check"] == "providers" and "bad" in f["message"] and f["severity"] == "warning"
        for f in doctor.json["findings"]
    )


def test_without_providers_nothing_of_pluggy_is_imported(scratch: Scratch) -> None:
    import subprocess

    done = subprocess.run(
        [str(scratch.python), "-X", "importtime", "-m", "vllm_hust_ext", "extension", "list"],
        env=scratch.environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not imported & {"pluggy", "rich", "filelock", "yaml", "pydantic", "prometheus_client", "asyncio"}


def test_commands_pass_arguments_signals_and_codes(scratch: Scratch) -> None:
    body = (
        "import sys, os\nprint(os.getpid() == int(os.environ['PARENT']) if 'PARENT' in os.environ"
        " else sys.argv[1:])\nsys.exit(9)\n"
    )
    scratch.site.install(
        "tool",
        files={"tool_cmd.py": body},
        entry_points={"vllm_hust_ext.commands": {"tool": "tool_cmd", "bad": "not a module"}},
    )
    done = scratch.run("tool", "--help", "-x", "--json", "a b")
    assert (done.code, done.out) == (9, "['--help', '-x', '--json', 'a b']\n")
    assert scratch.run("bad").code == 4
    # a command of that name cannot replace the manager's own
    scratch.site.install(
        "thief",
        files={"thief_cmd.py": "print('stolen')"},
        entry_points={"vllm_hust_ext.commands": {"extension": "thief_cmd"}},
    )
    assert "stolen" not in scratch.extension("list").out


# -- real wheels, real pip --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wheels_by_pip_side_by_side_and_uninstall_while_enabled(own_scratch: Scratch) -> None:
    scratch = own_scratch
    scratch.site.host()
    for number, name in enumerate(("alpha", "beta")):
        carrier = [{"type": "python_module", "module": f"{name}.plugin", "object": "load", "status": "active"}]
        document = manifest(f"org.{name}", implementation=carrier, activation={"environment": {f"GATE_{number}": "1"}})
        wheel = build_wheel(
            scratch.root / "wheels",
            name,
            "1.0",
            {
                f"{name}/__init__.py": "",
                f"{name}/plugin.py": "",
                f"{name}/manifests/vllm-hust-extension-v0.2.json": json.dumps(document),
            },
            {
                "vllm_hust.extension_bundles": {f"org.{name}": f"{name}.manifests"},
                "vllm.general_plugins": {name: f"{name}.plugin:load"},
            },
        )
        pip(scratch.python, "install", "--no-deps", wheel)
    for name in ("alpha", "beta"):
        assert scratch.extension("enable", f"org.{name}").code == 0
    assert {"GATE_0=1", "GATE_1=1"} <= set(scratch.extension("env").out.splitlines())
    pip(scratch.python, "uninstall", "-y", "alpha")
    refused = scratch.run("run", "--", "python", "-c", "pass")
    assert refused.code == 3
    assert "org.alpha" in refused.err
    assert scratch.extension("check", "org.beta").code == 0
    assert scratch.extension("forget", "org.alpha").code == 0
    assert scratch.run("run", "--", "python", "-c", "import os; print(os.environ['GATE_1'])").out == "1\n"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["src", "flat", "mapped"])
def test_editable_installs_by_pip(own_scratch: Scratch, layout: str) -> None:
    pytest.importorskip("setuptools")
    project = own_scratch.root / "project"
    top = {"src": "src/gamma", "flat": "gamma", "mapped": "code/somewhere"}[layout]
    (project / top / "manifests").mkdir(parents=True)
    (project / top / "__init__.py").touch()
    (project / top / "plugin.py").touch()
    carrier = [{"type": "python_module", "module": "gamma.plugin", "object": "load", "status": "active"}]
    (project / top / "manifests" / "vllm-hust-extension-v0.2.json").write_text(
        json.dumps(manifest("org.gamma", implementation=carrier))
    )
    where = {
        "src": "[tool.setuptools.packages.find]\nwhere = ['src']\n",
        "flat": "[tool.setuptools]\npackages = ['gamma']\n",
        "mapped": "[tool.setuptools]\npackages = ['gamma']\npackage-dir = {gamma = 'code/somewhere'}\n",
    }[layout]
    (project / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'gamma'\nversion = '1.0'\n"
        "[project.entry-points.'vllm_hust.extension_bundles']\n'org.gamma' = 'gamma.manifests'\n"
        "[project.entry-points.'vllm.general_plugins']\ngamma = 'gamma.plugin:load'\n" + where
    )
    pip(own_scratch.python, "install", "--no-deps", "--no-build-isolation", "-e", project, cwd=project)
    done = own_scratch.extension("list", "--json")
    (one,) = done.json["extensions"]
    assert one["valid"], one
    assert one["manifest_path"].startswith(os.fspath(project))
    assert own_scratch.extension("validate", "org.gamma").code == 0
