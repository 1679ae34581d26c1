"""What every manifest revision says, in one shape. Plain data: parsing and policy are elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

QUALIFICATION_KEY = "_manager_runtime_qualification"
"""Key of ``activation.additional_config`` that speaks to the manager and is never passed to a host."""


@dataclass(frozen=True)
class HostRequirement:
    """The host that an extension is made for: a distribution and a range of its releases."""

    provider: str
    name: str
    version_range: str
    api_range: str | None = None


@dataclass(frozen=True)
class Runtime:
    type: str
    process_scope: str
    isolation: str


@dataclass(frozen=True)
class Protocol:
    """A host protocol; ``version_range`` None means that the host does not version it."""

    name: str
    version_range: str | None


@dataclass(frozen=True)
class Service:
    service_id: str
    protocol: str
    version_range: str | None
    endpoint_config: str
    optional: bool = False


@dataclass(frozen=True)
class ExtensionRequirement:
    extension_id: str
    version_range: str


@dataclass(frozen=True)
class ResourceClaim:
    resource: str
    scope: str
    mode: str


@dataclass(frozen=True)
class Component:
    component_id: str
    contracts: tuple[str, ...]
    execution_planes: tuple[str, ...]
    isolation: str
    implementation_ref: str
    permissions: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeclaredEntryPoint:
    group: str
    name: str


@dataclass(frozen=True)
class Activation:
    """What a launch gets: environment variables and keys of the host's ``--additional-config``."""

    entry_points: tuple[DeclaredEntryPoint, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    additional_config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """One extension as its author describes it."""

    schema_version: str
    extension_id: str
    extension_version: str
    kind: str
    host: HostRequirement
    runtime: Runtime
    lifecycle_owner: str
    protocols: tuple[Protocol, ...]
    implementation: tuple[Mapping[str, Any], ...]
    requires_services: tuple[Service, ...] = ()
    requires_extensions: tuple[ExtensionRequirement, ...] = ()
    resource_claims: tuple[ResourceClaim, ...] = ()
    components: tuple[Component, ...] = ()
    activation: Activation = field(default_factory=Activation)

    @property
    def experimental(self) -> bool:
        return self.schema_version != "1.0"

    @property
    def runtime_qualification(self) -> Mapping[str, Any] | None:
        """The proof that the author demands before a launch, or None."""
        value = self.activation.additional_config.get(QUALIFICATION_KEY)
        return value if isinstance(value, Mapping) else None

    @property
    def additional_config(self) -> dict[str, Any]:
        """What is meant for the host: ``activation.additional_config`` without the manager's own key."""
        return {k: v for k, v in self.activation.additional_config.items() if k != QUALIFICATION_KEY}

    @property
    def inert_modules(self) -> tuple[tuple[str, str], ...]:
        """Carriers that stay inactive beside active ones: ``module:object`` and its status."""
        if self.activation_blocker is not None:
            return ()
        return tuple(
            (f"{carrier.get('module')}:{carrier.get('object')}", str(carrier["status"]))
            for carrier in self.implementation
            if carrier.get("status") in ("import_only", "legacy_unregistered")
        )

    @property
    def activation_blocker(self) -> str | None:
        """Why this extension cannot be switched on at all, or None.

        It is blocked if some carrier calls itself ``import_only`` or ``legacy_unregistered`` and none is active. A
        carrier without a status is active unless it is a ``python_module``.
        """
        inert = sorted(
            {str(c["status"]) for c in self.implementation if c.get("status") in ("import_only", "legacy_unregistered")}
        )
        active = any(
            c.get("status") == "active" or ("status" not in c and c.get("type") != "python_module")
            for c in self.implementation
        )
        if not inert or active:
            return None
        return (
            f"its author ships it as {' and '.join(inert)}: the code can be imported, but nothing in"
            " this release switches it"
            " on in a running host"
        )
