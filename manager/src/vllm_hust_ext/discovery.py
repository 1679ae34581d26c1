"""What is installed: extension bundles with their manifests, broken registrations, and plugins that vLLM will load.

Nothing is imported: entry points come from metadata files, manifests are read as files. One broken registration never
stands in the way of another.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from vllm_hust_ext.distributions import Distribution, EntryPoint
from vllm_hust_ext.environment import Environment
from vllm_hust_ext.manifest.loading import FILE_NAMES, InvalidManifest, parse_manifest, read_file
from vllm_hust_ext.manifest.model import Manifest

BUNDLE_GROUP = "vllm_hust.extension_bundles"
MISTAKEN_BUNDLE_GROUPS = ("vllm.extension_bundles", "vllm_hust_ext.extension_bundles", "vllm_hust.extension_bundle")
"""Groups that published packages used by mistake: nothing reads them."""

PLUGIN_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
    "vllm.endpoint_plugins",
)
"""Entry-point groups from which vLLM itself loads."""

SEAMS_FILE = "vllm-hust-extension-seams.json"


@dataclass(frozen=True)
class Plugin:
    """An entry point that vLLM loads, from any distribution, with or without a manifest."""

    group: str
    name: str
    value: str
    distribution: Distribution


@dataclass(frozen=True)
class Bundle:
    """A valid, registered extension."""

    manifest: Manifest
    distribution: Distribution
    manifest_path: Path
    sha256: str
    other_revisions: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def extension_id(self) -> str:
        return self.manifest.extension_id

    @property
    def seams_path(self) -> Path:
        return self.manifest_path.parent / SEAMS_FILE


@dataclass(frozen=True)
class BrokenBundle:
    """A registration that cannot be used, with every reason."""

    extension_id: str
    distribution: Distribution
    reasons: tuple[str, ...]
    hint: str
    manifest_path: Path | None = None


@dataclass(frozen=True)
class Inventory:
    """Everything found in one environment."""

    bundles: dict[str, Bundle]
    broken: dict[str, BrokenBundle]
    plugins: tuple[Plugin, ...]
    mistaken: tuple[tuple[Distribution, EntryPoint], ...] = ()
    shadowed: tuple[Distribution, ...] = field(default=())

    @cached_property
    def plugins_of(self) -> dict[str, list[Plugin]]:
        """Plugins by the canonical name of their distribution."""
        result: dict[str, list[Plugin]] = defaultdict(list)
        for plugin in self.plugins:
            result[plugin.distribution.key].append(plugin)
        return result

    @cached_property
    def owners(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """(distribution key, plugin name) -> ids of the bundles that this plugin carries."""
        found: dict[tuple[str, str], list[str]] = defaultdict(list)
        for bundle in self.bundles.values():
            for plugin in carriers_of(bundle, self).plugins:
                found[(plugin.distribution.key, plugin.name)].append(bundle.extension_id)
        return {key: tuple(sorted(ids)) for key, ids in found.items()}

    def known_ids(self) -> list[str]:
        return sorted({*self.bundles, *self.broken})


@dataclass(frozen=True)
class Carriers:
    """The plugins through which a bundle gets into a vLLM process, and how that is known."""

    plugins: tuple[Plugin, ...]
    source: str
    """``declared``, ``inferred`` (module:object), ``only plugin of its distribution``, or ``none``."""


def carriers_of(bundle: Bundle, inventory: Inventory) -> Carriers:
    """The vLLM plugins that carry ``bundle``.

    Declared ``activation.entry_points`` come first; else an ``implementation`` entry that is not inert and whose
    ``module:object`` (or group and name) is an entry point of the same distribution; else, where the distribution has
    just one vLLM plugin, that one.
    """
    own = inventory.plugins_of.get(bundle.distribution.key, [])
    manifest = bundle.manifest
    declared = {(e.group, e.name) for e in manifest.activation.entry_points}
    if declared:
        return Carriers(tuple(p for p in own if (p.group, p.name) in declared), "declared")
    values: set[str] = set()
    names: set[tuple[str, str]] = set()
    for carrier in manifest.implementation:
        if carrier.get("status") in ("import_only", "legacy_unregistered"):
            continue
        if carrier.get("type") == "python_module":
            values.add(f"{carrier['module']}:{carrier['object']}")
        elif carrier.get("type") == "python_entry_point":
            names.add((str(carrier.get("group")), str(carrier.get("name"))))
            values.add(str(carrier.get("object", "")))
    matched = tuple(p for p in own if p.value in values or (p.group, p.name) in names)
    if not matched:
        references = {c.implementation_ref for c in manifest.components}
        matched = tuple(p for p in own if p.value in references)
    if matched:
        return Carriers(matched, "inferred")
    if len(own) == 1:
        return Carriers(tuple(own), "only plugin of its distribution")
    return Carriers((), "none")


def discover(environment: Environment) -> Inventory:
    """Look through the metadata of every distribution of ``environment``."""
    plugins: list[Plugin] = []
    registrations: dict[str, list[tuple[Distribution, EntryPoint]]] = defaultdict(list)
    mistaken: list[tuple[Distribution, EntryPoint]] = []
    shadowed: list[Distribution] = []
    for distribution in environment.distributions:
        if distribution.shadowed_by is not None:
            shadowed.append(distribution)
            continue
        for entry in distribution.entry_points:
            if entry.group == BUNDLE_GROUP:
                registrations[entry.name].append((distribution, entry))
            elif entry.group in PLUGIN_GROUPS:
                plugins.append(Plugin(entry.group, entry.name, entry.value, distribution))
            elif entry.group in MISTAKEN_BUNDLE_GROUPS:
                mistaken.append((distribution, entry))
    bundles: dict[str, Bundle] = {}
    broken: dict[str, BrokenBundle] = {}
    for extension_id in sorted(registrations):
        read = [_read_registration(d, e, d.entry_points) for d, e in registrations[extension_id]]
        good = [item for item in read if isinstance(item, Bundle)]
        bad = [item for item in read if isinstance(item, BrokenBundle)]
        if len({bundle.sha256 for bundle in good}) > 1:
            broken[extension_id] = _ambiguous(extension_id, good)
        elif good:
            # A wheel is preferred over an editable install of the same document, then the name decides.
            bundles[extension_id] = min(
                good, key=lambda b: (b.distribution.editable_root is not None, b.distribution.key)
            )
        elif bad:
            broken[extension_id] = bad[0]
    return Inventory(bundles, broken, tuple(plugins), tuple(mistaken), tuple(shadowed))


def _ambiguous(extension_id: str, bundles: list[Bundle]) -> BrokenBundle:
    names = [f"{b.distribution.name} {b.distribution.version} ({b.manifest_path})" for b in bundles]
    return BrokenBundle(
        extension_id,
        bundles[0].distribution,
        (f"is registered with different manifests by {' and by '.join(names)}",),
        f"uninstall one: pip uninstall {bundles[-1].distribution.name}",
        bundles[0].manifest_path,
    )


def _read_registration(
    distribution: Distribution, entry: EntryPoint, own_entry_points: Iterable[EntryPoint]
) -> Bundle | BrokenBundle:
    """Read the manifest that ``entry`` points at, or say why it cannot be used."""
    label = f"{distribution.name} {distribution.version or '(no version)'}"
    reinstall = f"reinstall it: pip install --force-reinstall --no-deps {distribution.name}"

    def refuse(*reasons: str, hint: str, path: Path | None = None) -> BrokenBundle:
        return BrokenBundle(entry.name, distribution, reasons, hint, path)

    value = entry.value
    if not all(part.isidentifier() for part in value.split(".")):
        return refuse(
            f"{label} registers it as {value!r}, which is not a dotted package path",
            hint=(
                f"tell the author of {distribution.name}: the value names the package that holds the"
                " manifest, without ':'"
            ),
        )
    files, folders = _manifest_files(distribution, value)
    if not files:
        closed = [str(folder) for folder in folders if _denied(folder)]
        if closed:
            return refuse(
                f"{label} registers it in package {value}, and you may not read {closed[0]}",
                hint=f"correct the permissions of {closed[0]} and the folders above it",
            )
        looked = ", ".join(str(f) for f in folders[:3])
        return refuse(
            f"{label} registers it in package {value}, where no manifest file is"
            f" ({', '.join(FILE_NAMES)}); looked in {looked}",
            hint=reinstall,
        )
    path = files[0]
    try:
        data = read_file(path)
        manifest = parse_manifest(data, str(path))
    except InvalidManifest as error:
        return refuse(
            *(str(fault) for fault in error.faults),
            hint=f"{path} must be corrected by the author of {label}",
            path=path,
        )
    if manifest.extension_id != entry.name:
        return refuse(
            f"{path.name} calls itself {manifest.extension_id}, but {label} registers it as {entry.name}",
            hint=f"tell the author of {distribution.name}: entry-point name and extension_id must be equal",
            path=path,
        )
    own = {(e.group, e.name): e for e in own_entry_points}
    faults: list[str] = []
    for declared in manifest.activation.entry_points:
        found = own.get((declared.group, declared.name))
        if found is None:
            faults.append(
                f"activation.entry_points names {declared.group}:{declared.name}, which {label} does not declare"
            )
        elif not module_exists(distribution, found.value.split(":")[0]):
            faults.append(
                f"entry point {declared.name} = {found.value} points at a module that is not installed with {label}"
            )
    if faults:
        return refuse(*faults, hint=reinstall, path=path)
    notes = tuple(
        f"{other.name} is installed beside it and not read: {path.name} is the newest revision that is known"
        for other in files[1:]
    )
    return Bundle(manifest, distribution, path, hashlib.sha256(data).hexdigest(), tuple(files[1:]), notes)


def _denied(folder: Path) -> bool:
    """Whether permissions keep this process from looking into ``folder``."""
    try:
        os.lstat(folder / FILE_NAMES[0])
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _manifest_files(distribution: Distribution, dotted: str) -> tuple[list[Path], list[Path]]:
    """Manifest files of the package, newest revision first, and the folders that were looked into."""
    folders = list(dict.fromkeys(distribution.package_folder_candidates(dotted)))
    relative = dotted.replace(".", "/")
    for folder in folders:
        present = [folder / name for name in FILE_NAMES if os.path.lexists(folder / name)]
        if distribution.record is not None and folder == distribution.location.joinpath(*dotted.split(".")):
            # A file that RECORD does not list was left behind by something else.
            present = [p for p in present if f"{relative}/{p.name}" in distribution.record]
        if present:
            return present, folders
    return [], folders


def module_exists(distribution: Distribution, dotted: str) -> bool:
    """Whether the module is a source file, package or extension module in this distribution's folders."""
    for candidate in distribution.package_folder_candidates(dotted):
        if os.path.isfile(candidate / "__init__.py") or os.path.isfile(candidate.with_suffix(".py")):
            return True
        try:
            if any(
                p.name.startswith(f"{candidate.name}.") and p.suffix in (".so", ".pyd", ".pyc")
                for p in candidate.parent.iterdir()
            ):
                return True
        except (OSError, ValueError):  # ValueError: a NUL in a path that foreign metadata name
            continue
    return False
