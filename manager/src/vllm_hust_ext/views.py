"""JSON views of bundles, plugins and hosts: the stable keys of ``--json``."""

from __future__ import annotations

import os
from typing import Any

from vllm_hust_ext.discovery import BrokenBundle, Bundle, Plugin, carriers_of
from vllm_hust_ext.errors import BrokenState
from vllm_hust_ext.hosts import Host, Hosts
from vllm_hust_ext.session import Session


def host_view(host: Host) -> dict[str, Any]:
    return {
        "name": host.wanted,
        "distribution": host.distribution.name,
        "version": host.version,
        "package": host.package,
        "folder": str(host.folder) if host.folder is not None else None,
    }


def hosts_view(hosts: Hosts) -> dict[str, Any]:
    return {"installed": [host_view(h) for h in hosts.found.values()], "emulated_npu": hosts.emulated_npu}


def environment_view(session: Session) -> dict[str, Any]:
    environment = session.environment
    return {
        "prefix": str(environment.prefix),
        "python": str(environment.executable),
        "python_version": environment.python_version,
        "hosts": hosts_view(session.hosts),
        "intents": {"path": str(session.origin.path), "kind": session.origin.kind},
    }


def plugin_view(plugin: Plugin, owners: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "group": plugin.group,
        "value": plugin.value,
        "distribution": plugin.distribution.name,
        "distribution_version": plugin.distribution.version,
        "extensions": list(owners),
    }


def state_word(session: Session, extension_id: str) -> str:
    """The stored state; "not known" where the intents file is damaged."""
    try:
        return session.state(extension_id).value
    except BrokenState:
        return "not known"


def broken_view(broken: BrokenBundle, state: str) -> dict[str, Any]:
    return {
        "bundle_id": broken.extension_id,
        "valid": False,
        "discovery_error": "; ".join(broken.reasons),
        "reasons": list(broken.reasons),
        "hint": broken.hint,
        "distribution": broken.distribution.name,
        "distribution_version": broken.distribution.version,
        "manifest_path": str(broken.manifest_path) if broken.manifest_path else None,
        "state": state,
        "enabled": state == "enabled",
    }


def bundle_view(session: Session, bundle: Bundle) -> dict[str, Any]:
    """Everything about one bundle. Keys that earlier managers printed keep their names."""
    manifest = bundle.manifest
    state = state_word(session, bundle.extension_id)
    carriers = carriers_of(bundle, session.inventory)
    requirements = []
    for requirement in manifest.requires_extensions:
        other = session.inventory.bundles.get(requirement.extension_id)
        requirements.append(
            {
                "extension_id": requirement.extension_id,
                "version_range": requirement.version_range,
                "installed": other is not None,
                "installed_version": other.manifest.extension_version if other else None,
                "enabled": state_word(session, requirement.extension_id) == "enabled",
            }
        )
    return {
        "bundle_id": bundle.extension_id,
        "bundle_version": manifest.extension_version,
        "valid": True,
        "schema_version": manifest.schema_version,
        "distribution": bundle.distribution.name,
        "distribution_version": bundle.distribution.version,
        "state": state,
        "enabled": state == "enabled",
        "kind": manifest.kind,
        "host": {
            "provider": manifest.host.provider,
            "name": manifest.host.name,
            "version_range": manifest.host.version_range,
            "api_range": manifest.host.api_range,
        },
        "runtime": {
            "type": manifest.runtime.type,
            "process_scope": manifest.runtime.process_scope,
            "isolation": manifest.runtime.isolation,
        },
        "lifecycle_owner": manifest.lifecycle_owner,
        "protocols": [{"name": p.name, "version_range": p.version_range} for p in manifest.protocols],
        "implementation": [dict(i) for i in manifest.implementation],
        "requires_services": [
            {
                "service_id": s.service_id,
                "protocol": s.protocol,
                "version_range": s.version_range,
                "endpoint_config": s.endpoint_config,
                "optional": s.optional,
            }
            for s in manifest.requires_services
        ],
        "requires_extensions": requirements,
        "resource_claims": [
            {"resource": c.resource, "scope": c.scope, "mode": c.mode} for c in manifest.resource_claims
        ],
        "components": [
            {
                "component_id": c.component_id,
                "contracts": list(c.contracts),
                "execution_planes": list(c.execution_planes),
                "isolation": c.isolation,
                "implementation_ref": c.implementation_ref,
                "permissions": list(c.permissions),
            }
            for c in manifest.components
        ],
        "activation": {
            "entry_points": [{"group": e.group, "name": e.name} for e in manifest.activation.entry_points],
            "environment": dict(manifest.activation.environment),
            "additional_config": manifest.additional_config,
            "runtime_qualification": manifest.runtime_qualification,
        },
        "activation_ready": manifest.activation_blocker is None,
        "activation_blocker": manifest.activation_blocker,
        "carriers": {
            "source": carriers.source,
            "plugins": [{"group": p.group, "name": p.name, "value": p.value} for p in carriers.plugins],
        },
        "experimental": manifest.experimental,
        "manifest_path": str(bundle.manifest_path),
        "manifest_sha256": bundle.sha256,
        "seams_path": str(bundle.seams_path) if os.path.isfile(bundle.seams_path) else None,
        "notes": list(bundle.notes),
        "verdict": session.verdict(bundle).as_json(),
    }
