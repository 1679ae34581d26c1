"""Which hosts are installed: vLLM, vllm-ascend, and what other providers name. Found by metadata and files, never
imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vllm_hust_ext.distributions import Distribution, canonical_name
from vllm_hust_ext.environment import Environment
from vllm_hust_ext.source_index import SourceIndex

EMULATOR_VARIABLE = "TORCH_NPU_EMULATOR"
EMULATOR_DISTRIBUTION = "torch-npu-emulator"


@dataclass(frozen=True)
class HostPackage:
    """A host that a provider knows: the distribution that normally brings it and the package it provides."""

    distribution: str
    package: str
    summary: str = ""
    provider: str = "vllm"


BUILTIN_HOSTS = (
    HostPackage("vllm", "vllm", "the engine"),
    HostPackage("vllm-ascend", "vllm_ascend", "the Ascend NPU platform of vLLM"),
)


@dataclass(frozen=True)
class Host:
    """An installed host.

    Attributes:
        wanted: canonical distribution name under which extensions ask for it.
        distribution: the distribution that really provides it (a fork or another build may have another name).
        version: its version, None where its metadata state none.
        folder: the folder of its package, None where its source was not found.
    """

    wanted: str
    package: str
    distribution: Distribution
    version: str | None
    folder: Path | None

    @property
    def other_name(self) -> str | None:
        """The name of the distribution where it is not the usual one."""
        return self.distribution.name if self.distribution.key != self.wanted else None

    def describe(self) -> str:
        version = self.version or "(no version)"
        if self.other_name:
            return f"{self.wanted} {version} (as distribution {self.other_name})"
        return f"{self.wanted} {version}"


@dataclass(frozen=True)
class Hosts:
    """The hosts of one environment, by canonical distribution name."""

    found: Mapping[str, Host]
    known: tuple[HostPackage, ...] = BUILTIN_HOSTS
    emulated_npu: str | None = None
    """How an emulated NPU was recognised, or None."""
    path: tuple[str, ...] = ()

    @cached_property
    def sources(self) -> SourceIndex:
        """The sources of this environment, parsed once for all extensions."""
        return SourceIndex(self.path, {h.package: h.folder for h in self.found.values() if h.folder is not None})

    def get(self, name: str) -> Host | None:
        return self.found.get(canonical_name(name))


def find_hosts(
    environment: Environment, known: Sequence[HostPackage] = BUILTIN_HOSTS, variables: Mapping[str, str] | None = None
) -> Hosts:
    """Find every host of ``known`` in ``environment``."""
    found: dict[str, Host] = {}
    for package in known:
        host = _find(environment, package)
        if host is not None:
            found[host.wanted] = host
    return Hosts(
        found, tuple(known), _emulator(environment, os.environ if variables is None else variables), environment.path
    )


def host_of_distribution(environment: Environment, name: str) -> Host | None:
    """A host that no provider knows: any installed distribution of that name. Its source is not looked for."""
    distribution = environment.active.get(canonical_name(name))
    if distribution is None:
        return None
    return Host(distribution.key, distribution.key.replace("-", "_"), distribution, distribution.version, None)


def _emulator(environment: Environment, variables: Mapping[str, str]) -> str | None:
    if variables.get(EMULATOR_VARIABLE):
        return f"{EMULATOR_VARIABLE} is set"
    distribution = environment.active.get(EMULATOR_DISTRIBUTION)
    return f"{distribution.name} {distribution.version} is installed" if distribution is not None else None


def _find(environment: Environment, package: HostPackage) -> Host | None:
    wanted = canonical_name(package.distribution)
    named = environment.active.get(wanted)
    if named is not None:
        return Host(wanted, package.package, named, named.version, _folder(environment, named, package.package))
    for entry in environment.path:
        folder = Path(entry or ".") / package.package
        if not os.path.isfile(folder / "__init__.py"):
            continue
        provider = _provider_of(environment, package.package, folder)
        if provider is not None:
            return Host(wanted, package.package, provider, provider.version, folder)
    return None


def _folder(environment: Environment, distribution: Distribution, package: str) -> Path | None:
    for candidate in distribution.package_folder_candidates(package):
        if os.path.isfile(candidate / "__init__.py"):
            return candidate
    for entry in environment.path:
        candidate = Path(entry or ".") / package
        if os.path.isfile(candidate / "__init__.py"):
            return candidate
    return None


def _provider_of(environment: Environment, package: str, folder: Path) -> Distribution | None:
    """The distribution whose files ``package`` in ``folder`` are. Names that resemble the package are tried first."""
    stem = package.split("_")[0]
    candidates = sorted(environment.active.values(), key=lambda d: (stem not in d.key, d.key))
    for distribution in candidates:
        if distribution.editable_root is not None:
            if folder in distribution.package_folder_candidates(package):
                return distribution
        elif distribution.location == Path(os.path.realpath(folder.parent)):
            listed = distribution.record
            if listed is not None:
                if f"{package}/__init__.py" in listed:
                    return distribution
            elif package in (distribution.read("top_level.txt") or "").split():
                return distribution
    return None
