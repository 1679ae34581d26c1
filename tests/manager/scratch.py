"""Scratch environments: a virtual environment that holds the manager and what it needs, nothing else, and site
folders with distributions that the tests write themselves.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import vllm_hust_ext
from packaging.requirements import Requirement

OPTIONAL = ("prometheus-client", "setuptools", "wheel")
MANAGER_ENTRY_POINTS = {
    "console_scripts": {"vllm-hust-ext": "vllm_hust_ext.cli:main"},
    "vllm.general_plugins": {"vllm_hust_ext_metrics": "vllm_hust_ext.metrics_plugin:load"},
}


def manifest(extension_id: str = "org.example.one", **changes: Any) -> dict[str, Any]:
    """A valid Manifest 0.2 document; ``changes`` replace top-level keys, a value of None removes one."""
    document: dict[str, Any] = {
        "schema_version": "0.2-experimental",
        "extension_id": extension_id,
        "extension_version": "1.0",
        "kind": "in_process_plugin",
        "host": {"provider": "vllm", "name": "vllm-ascend", "version_range": ">=0.27,<0.28"},
        "runtime": {"type": "python", "process_scope": "workers", "isolation": "trusted_in_process"},
        "lifecycle_owner": "vllm",
        "protocols": [],
        "implementation": [{"type": "python_module", "module": "one.plugin", "object": "load", "status": "active"}],
        "requires_services": [],
        "activation": {"environment": {"EXAMPLE_ONE": "1"}},
    }
    for key, value in changes.items():
        if value is None:
            document.pop(key, None)
        else:
            document[key] = value
    return document


def _entry_points_text(groups: Mapping[str, Mapping[str, str]]) -> str:
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups.items()
    )


def wheel_files(
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    entry_points: Mapping[str, Mapping[str, str]],
    metadata: str = "",
) -> dict[str, bytes]:
    """All files of a wheel, RECORD last."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    content = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}".encode()
    content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if entry_points:
        content[f"{info}/entry_points.txt"] = _entry_points_text(entry_points).encode()
    rows = []
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    content[f"{info}/RECORD"] = ("\n".join([*rows, f"{info}/RECORD,,"]) + "\n").encode()
    return content


@dataclass
class Site:
    """A folder on the import path that holds installed distributions."""

    path: Path

    def install(
        self,
        name: str,
        version: str = "1.0",
        *,
        files: Mapping[str, str | bytes] | None = None,
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        metadata: str = "",
        record: bool = True,
    ) -> Path:
        """Lay a wheel's files out, as an installer does. Returns its metadata folder."""
        content = wheel_files(name, version, files or {}, entry_points or {}, metadata)
        for relative, data in content.items():
            if relative.endswith("/RECORD") and not record:
                continue
            target = self.path / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return self.path / f"{name.replace('-', '_')}-{version}.dist-info"

    def extension(
        self,
        document: Mapping[str, Any] | bytes | None = None,
        *,
        distribution: str = "one",
        version: str = "1.0",
        package: str | None = None,
        plugins: Mapping[str, str] | None = None,
        file_name: str = "vllm-hust-extension-v0.2.json",
        extra: Mapping[str, str | bytes] | None = None,
        record: bool = True,
        entry_name: str | None = None,
        groups: Mapping[str, Mapping[str, str]] | None = None,
        metadata: str = "",
    ) -> Path:
        """Install a distribution with one bundle. Its module raises when it is imported: nobody may do that."""
        top = package or distribution.replace("-", "_")
        data: str | bytes
        if document is None:
            document = manifest()
        data = document if isinstance(document, bytes) else json.dumps(document)
        identity = entry_name or (json.loads(data).get("extension_id") or json.loads(data).get("bundle_id"))
        files: dict[str, str | bytes] = {
            f"{top}/__init__.py": "raise ImportError('an extension was imported by the manager')\n",
            f"{top}/plugin.py": "raise ImportError('an extension was imported by the manager')\n",
            f"{top}/manifests/{file_name}": data,
            **(extra or {}),
        }
        entry_points = {
            "vllm_hust.extension_bundles": {identity: f"{top}.manifests"},
            "vllm.general_plugins": dict(plugins if plugins is not None else {f"{top}-plugin": f"{top}.plugin:load"}),
            **(groups or {}),
        }
        return self.install(
            distribution, version, files=files, entry_points=entry_points, record=record, metadata=metadata
        )

    def host(
        self, version: str = "0.27.1rc1", core: str | None = "0.27.1", *, sources: Mapping[str, str] | None = None
    ) -> None:
        """Metadata and a few source files of a vllm-ascend and a vLLM. They serve to be read, never to be imported."""
        poison = "raise ImportError('the host was imported by the manager')\n"
        split: dict[str, dict[str, str]] = {"vllm": {}, "vllm_ascend": {}}
        for path, text in (sources or {}).items():
            split[path.split("/")[0]][path] = text
        self.install(
            "vllm-ascend",
            version,
            files={"vllm_ascend/__init__.py": poison, **split["vllm_ascend"]},
            entry_points={
                "vllm.platform_plugins": {"ascend": "vllm_ascend:register"},
                "vllm.general_plugins": {"ascend_model": "vllm_ascend:register_model"},
            },
        )
        if core is not None:
            self.install(
                "vllm",
                core,
                files={"vllm/__init__.py": poison, **split["vllm"]},
                entry_points={"vllm.general_plugins": {"lora_filesystem_resolver": "vllm.plugins:register"}},
            )


def build_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    entry_points: Mapping[str, Mapping[str, str]],
    metadata: str = "",
) -> Path:
    """Write a real wheel file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for relative, data in wheel_files(name, version, files, entry_points, metadata).items():
            archive.writestr(relative, data)
    return path


@dataclass
class Result:
    """What a run of the manager answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """stdout as the one JSON document that it must be."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        assert document["schema"].startswith("vllm-hust-ext.")
        return document

    def __post_init__(self) -> None:
        assert "Traceback (most recent call last)" not in self.err + self.out, self.err + self.out


@dataclass
class Scratch:
    """A virtual environment, a site folder, a home and state of their own."""

    root: Path
    venv: Path
    site: Site
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def config(self) -> Path:
        return self.root / "config" / "config.json"

    @property
    def state(self) -> Path:
        return self.root / "state"

    def environment(self, extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
        base: dict[str, str | None] = {
            "PATH": f"{self.venv / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.root / "home"),
            "PYTHONPATH": str(self.site.path),
            "VLLM_HUST_EXT_CONFIG": str(self.config),
            "VLLM_HUST_EXT_STATE_DIR": str(self.state),
            "PYTHONDONTWRITEBYTECODE": "",
            "LANG": "C.UTF-8",
            "COLUMNS": "80",
            **self.variables,
            **(extra or {}),
        }
        return {key: value for key, value in base.items() if value is not None}

    def command(self, *arguments: str) -> list[str]:
        return [str(self.python), "-m", "vllm_hust_ext", *arguments]

    def run(
        self,
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
    ) -> Result:
        """Run the manager."""
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            env=self.environment(env),
            cwd=cwd or self.root,
            input=stdin,
            timeout=60,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def extension(self, *arguments: str, env: Mapping[str, str | None] | None = None) -> Result:
        return self.run("extension", *arguments, env=env)

    def stored(self) -> dict[str, Any]:
        document = json.loads(self.config.read_text())
        assert isinstance(document, dict)
        return document

    def program(self, name: str, body: str) -> Path:
        """A command of this environment: a Python script with its interpreter in the first line."""
        path = self.venv / "bin" / name
        path.write_text(f"#!{self.python}\n{body}")
        path.chmod(0o755)
        return path


def requirements_of(name: str) -> list[str]:
    """What ``name`` requires, and so on, by the metadata of what is installed; extras left out."""
    found: list[str] = []
    pending = [name]
    while pending:
        for text in importlib.metadata.requires(pending.pop()) or []:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            if requirement.name not in found:
                found.append(requirement.name)
                pending.append(requirement.name)
    return found


def _link_distribution(name: str, site: Path) -> None:
    """Link an installed distribution's top-level files and its metadata into ``site``."""
    distribution = importlib.metadata.distribution(name)
    linked: set[str] = set()
    for file in distribution.files or ():
        top = file.parts[0]
        if top in linked or top in ("..", "__pycache__") or top.endswith(".pth"):
            continue
        linked.add(top)
        source = Path(str(distribution.locate_file(top)))
        if source.exists() and not (site / top).exists():
            (site / top).symlink_to(source)


def make_venv(folder: Path) -> Path:
    """A virtual environment with the manager and its requirements, linked from the environment of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    for name in requirements_of("vllm-hust-ext"):
        _link_distribution(name, site)
    for name in OPTIONAL:
        try:
            _link_distribution(name, site)
        except importlib.metadata.PackageNotFoundError:
            continue
    (site / "vllm_hust_ext").symlink_to(Path(vllm_hust_ext.__file__).parent)
    Site(site).install("vllm-hust-ext", vllm_hust_ext.__version__, entry_points=MANAGER_ENTRY_POINTS)
    script = folder / "bin" / "vllm-hust-ext"
    script.write_text(f"#!{folder / 'bin' / 'python'}\nfrom vllm_hust_ext.cli import main\nmain()\n")
    script.chmod(0o755)
    return folder


def make_scratch(root: Path, venv: Path) -> Scratch:
    for name in ("site", "home", "config"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "config").chmod(0o700)
    return Scratch(root, venv, Site(root / "site"))


def copy_venv(venv: Path, target: Path) -> Path:
    """A copy of a scratch environment for tests that write into it."""
    shutil.copytree(venv, target, symlinks=True)
    for script in (target / "bin").iterdir():
        if not script.is_symlink() and script.read_bytes().startswith(b"#!"):
            script.write_text(script.read_text().replace(str(venv), str(target)))
    return target


def pip(python: Path, *arguments: str | os.PathLike[str], cwd: Path | None = None) -> Sequence[str]:
    """Run the tests' own pip for another interpreter, without an index."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PIP_NO_INDEX": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
