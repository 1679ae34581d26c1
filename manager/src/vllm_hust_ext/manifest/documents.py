"""The manifest revisions as pydantic models, strict: an unknown or missing key, a wrong type or a bad range is a fault.

Field rules are those of the published Manifest 0.2; revision 0.3 adds two optional arrays, revision 1.0 is the older
shape and only read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)

from vllm_hust_ext.manifest.model import (
    Activation,
    Component,
    DeclaredEntryPoint,
    ExtensionRequirement,
    HostRequirement,
    Manifest,
    Protocol,
    ResourceClaim,
    Runtime,
    Service,
)


def _version(value: str) -> str:
    try:
        Version(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a PEP 440 version") from None
    return value


def _specifier(value: str) -> str:
    try:
        # Each part is asked, because packaging reads the version in it only then.
        for part in SpecifierSet(value):
            part.contains("0", prereleases=True)
    except ValueError:
        raise ValueError(f"{value!r} is not a PEP 440 version range, for example '>=1.2,<2'") from None
    if not value.strip():
        raise ValueError("the range is blank; write '>=0' for any version")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be blank")
    return value


_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
ClaimIdentifier = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._:/-]*$")]
Text = Annotated[str, StringConstraints(min_length=1), AfterValidator(_not_blank)]
VersionText = Annotated[str, AfterValidator(_version)]
Range = Annotated[str, StringConstraints(min_length=1), AfterValidator(_specifier)]
ModulePath = Annotated[str, StringConstraints(pattern=rf"^{_DOTTED}$")]
SingleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ObjectReference = Annotated[str, StringConstraints(pattern=rf"^{_DOTTED}:{_DOTTED}$")]
Contract = Annotated[str, StringConstraints(pattern=r"^vllm\..+$")]


class _Strict(BaseModel):
    # Only the models of the revision that is read are built.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class HostDocument(_Strict):
    provider: Identifier
    name: Text
    version_range: Range
    api_range: Range | None = None


class RuntimeDocument(_Strict):
    type: Literal["python", "external_service", "oci", "kubernetes", "composite"]
    process_scope: Text
    isolation: Text


class ProtocolDocument(_Strict):
    name: Text
    version_range: Range | None


class ServiceDocument(_Strict):
    service_id: Text
    protocol: Text
    version_range: Range | None
    endpoint_config: Text
    optional: bool = False


class ExtensionRequirementDocument(_Strict):
    extension_id: Identifier
    version_range: Range


class ResourceClaimDocument(_Strict):
    resource: ClaimIdentifier
    scope: ClaimIdentifier
    mode: Literal["exclusive", "shared"]


class ComponentDocument(_Strict):
    component_id: Identifier
    contracts: Annotated[list[Contract], Field(min_length=1)]
    execution_planes: list[Literal["api", "scheduler", "worker", "native", "device", "bridge"]]
    isolation: Literal["trusted_in_process", "process_isolated", "sandboxed_process"]
    implementation_ref: ObjectReference
    permissions: (
        list[
            Literal[
                "device_access",
                "filesystem_read",
                "filesystem_write",
                "ipc",
                "network_egress",
                "shared_memory",
                "subprocess",
            ]
        ]
        | None
    ) = None

    @field_validator("contracts")
    @classmethod
    def _contracts_unique(cls, value: list[str]) -> list[str]:
        return _unique(value, "contract")

    def to_model(self) -> Component:
        return Component(
            self.component_id,
            tuple(self.contracts),
            tuple(self.execution_planes),
            self.isolation,
            self.implementation_ref,
            tuple(self.permissions or ()),
        )


class EntryPointDocument(_Strict):
    group: Text
    name: Text


class ActivationDocument(_Strict):
    entry_points: list[EntryPointDocument] = []
    environment: dict[str, str] = {}
    additional_config: dict[str, JsonValue] = {}

    def to_model(self) -> Activation:
        return Activation(
            tuple(DeclaredEntryPoint(e.group, e.name) for e in self.entry_points),
            dict(sorted(self.environment.items())),
            dict(sorted(self.additional_config.items())),
        )


class PythonModuleDocument(_Strict):
    """A carrier that is a module: exactly these keys."""

    type: Literal["python_module"]
    module: ModulePath
    object: SingleName
    status: Literal["active", "import_only", "legacy_unregistered"]


class CarrierDocument(BaseModel):
    """Any other carrier: a type and at least one attribute of its own."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)
    type: Literal[
        "host_builtin",
        "python_entry_point",
        "external_service",
        "oci_image",
        "helm_values",
        "kubernetes_manifest",
        "crd",
        "controller",
    ]

    @model_validator(mode="after")
    def _says_more_than_its_type(self) -> CarrierDocument:
        if not self.model_extra:
            raise ValueError("an implementation needs at least one key besides 'type'")
        return self


Implementation = Annotated[PythonModuleDocument | CarrierDocument, Field(discriminator="type")]


def _unique(values: list[str], what: str) -> list[str]:
    twice = sorted({v for v in values if values.count(v) > 1})
    if twice:
        raise ValueError(f"each {what} may be named once; named more often: {', '.join(twice)}")
    return values


def _unique_components(value: list[ComponentDocument] | None) -> list[ComponentDocument] | None:
    _unique([c.component_id for c in value or ()], "component_id")
    return value


class Document02(_Strict):
    """Manifest 0.2."""

    schema_version: Literal["0.2-experimental"]
    extension_id: Identifier
    extension_version: VersionText
    kind: Literal[
        "in_process_plugin",
        "scheduler_policy",
        "kv_connector",
        "kv_service_adapter",
        "control_plane_extension",
        "runtime_bridge",
    ]
    host: HostDocument
    runtime: RuntimeDocument
    lifecycle_owner: Literal["vllm", "host", "external_operator", "kubernetes", "user"]
    protocols: list[ProtocolDocument]
    implementation: Annotated[list[Implementation], Field(min_length=1)]
    requires_services: list[ServiceDocument]
    components: Annotated[list[ComponentDocument] | None, AfterValidator(_unique_components)] = None
    activation: ActivationDocument | None = None

    def to_manifest(self) -> Manifest:
        return Manifest(
            schema_version=self.schema_version,
            extension_id=self.extension_id,
            extension_version=self.extension_version,
            kind=self.kind,
            host=HostRequirement(self.host.provider, self.host.name, self.host.version_range, self.host.api_range),
            runtime=Runtime(self.runtime.type, self.runtime.process_scope, self.runtime.isolation),
            lifecycle_owner=self.lifecycle_owner,
            protocols=tuple(Protocol(p.name, p.version_range) for p in self.protocols),
            implementation=tuple(i.model_dump() for i in self.implementation),
            requires_services=tuple(
                Service(s.service_id, s.protocol, s.version_range, s.endpoint_config, s.optional)
                for s in self.requires_services
            ),
            components=tuple(c.to_model() for c in self.components or ()),
            activation=(self.activation or ActivationDocument()).to_model(),
        )


def _unique_requirements(value: list[ExtensionRequirementDocument]) -> list[ExtensionRequirementDocument]:
    _unique([r.extension_id for r in value], "extension_id")
    return value


def _unique_claims(value: list[ResourceClaimDocument]) -> list[ResourceClaimDocument]:
    _unique([f"{c.mode} claim on {c.resource} in {c.scope}" for c in value], "resource claim")
    return value


class Document03(Document02):
    """Manifest 0.3: 0.2 and what an extension needs of, or denies to, other extensions."""

    schema_version: Literal["0.3", "0.3-experimental"]  # type: ignore[assignment]
    requires_extensions: Annotated[list[ExtensionRequirementDocument], AfterValidator(_unique_requirements)] = []
    resource_claims: Annotated[list[ResourceClaimDocument], AfterValidator(_unique_claims)] = []

    def to_manifest(self) -> Manifest:
        from dataclasses import replace

        return replace(
            super().to_manifest(),
            requires_extensions=tuple(
                ExtensionRequirement(r.extension_id, r.version_range) for r in self.requires_extensions
            ),
            resource_claims=tuple(ResourceClaim(c.resource, c.scope, c.mode) for c in self.resource_claims),
        )


def _admits_1_0(value: str) -> str:
    if not SpecifierSet(value).contains("1.0", prereleases=True):
        raise ValueError(f"{value!r} does not contain 1.0, the only host API of this revision")
    return value


class Document1(_Strict):
    """The older shape, revision 1.0; only read."""

    schema_version: Literal["1.0"]
    bundle_id: Identifier
    bundle_version: VersionText
    host_api_range: Annotated[Range, AfterValidator(_admits_1_0)]
    components: Annotated[list[ComponentDocument], Field(min_length=1), AfterValidator(_unique_components)]
    activation: ActivationDocument | None = None

    def to_manifest(self) -> Manifest:
        return Manifest(
            schema_version=self.schema_version,
            extension_id=self.bundle_id,
            extension_version=self.bundle_version,
            kind="in_process_plugin",
            host=HostRequirement("vllm", "vllm", ">=0", ">=1,<2"),
            runtime=Runtime("python", "vllm_processes", "trusted_in_process"),
            lifecycle_owner="vllm",
            protocols=(),
            implementation=(),
            components=tuple(c.to_model() for c in self.components),
            activation=(self.activation or ActivationDocument()).to_model(),
        )


REVISIONS: dict[str, type[Document02] | type[Document03] | type[Document1]] = {
    "0.2-experimental": Document02,
    "0.3": Document03,
    "0.3-experimental": Document03,
    "1.0": Document1,
}


def json_schema(revision: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of a revision: what can be said without PEP 440, uniqueness across items and file rules."""
    schema = _plain(REVISIONS[revision].model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _plain(schema: Any) -> Any:
    """Leave out what differs among pydantic's releases and says nothing: titles, type and enum of a constant."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    empty = {"title"} | ({"type", "enum"} if "const" in schema else set())
    return {k: _plain(v) for k, v in schema.items() if k not in empty or isinstance(v, dict)}
