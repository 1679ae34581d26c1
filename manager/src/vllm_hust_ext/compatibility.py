"""Manifest x hosts -> a verdict with every reason, each with what would fix it. Nothing is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from vllm_hust_ext import versions
from vllm_hust_ext.distributions import canonical_name
from vllm_hust_ext.environment import Environment
from vllm_hust_ext.hosts import Host, Hosts, host_of_distribution

if TYPE_CHECKING:
    from vllm_hust_ext.discovery import Bundle
    from vllm_hust_ext.static_seams import SeamReport


class Outcome(str, Enum):
    """How one reason counts."""

    OK = "ok"
    NOTE = "note"
    UNKNOWN = "unknown"
    FAILS = "fails"


class Status(str, Enum):
    """The verdict in a word."""

    VERIFIED = "verified"
    """Fits, and its author ran it on exactly these host versions."""
    SEAMS_MATCH = "seams-match"
    """Fits, and every seam is found in the installed sources; it was never run on this release."""
    COMPATIBLE = "compatible"
    """Fits by its declared ranges; nothing is said about seams."""
    UNKNOWN = "unknown"
    """Something needed for an answer is not known: no host, no version, no proof."""
    INCOMPATIBLE = "incompatible"

    @property
    def fits(self) -> bool:
        return self in (Status.VERIFIED, Status.SEAMS_MATCH, Status.COMPATIBLE)

    @property
    def words(self) -> str:
        return {
            Status.VERIFIED: "compatible, verified on this host",
            Status.SEAMS_MATCH: "compatible, seams match, never run on this release",
            Status.COMPATIBLE: "compatible by its declared range",
            Status.UNKNOWN: "compatibility cannot be told",
            Status.INCOMPATIBLE: "incompatible",
        }[self]


@dataclass(frozen=True)
class Reason:
    """One thing that was looked at."""

    check: str
    outcome: Outcome
    message: str
    fix: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"check": self.check, "outcome": self.outcome.value, "message": self.message, "fix": self.fix}


@dataclass(frozen=True)
class Verdict:
    """Whether an extension fits, with all reasons."""

    status: Status
    reasons: tuple[Reason, ...]
    host: Host | None = None
    seams: SeamReport | None = field(default=None, compare=False)

    @property
    def fits(self) -> bool:
        return self.status.fits

    def that(self, *outcomes: Outcome) -> list[Reason]:
        return [r for r in self.reasons if r.outcome in outcomes]

    @property
    def against(self) -> list[Reason]:
        """The reasons that keep it from being compatible."""
        return self.that(Outcome.FAILS) + self.that(Outcome.UNKNOWN)

    def as_json(self) -> dict[str, Any]:
        return {
            "status": self.status.value,
            "fits": self.fits,
            "summary": self.status.words,
            "reasons": [r.as_json() for r in self.reasons],
            "seams": self.seams.as_json() if self.seams is not None else None,
        }


def assess(
    bundle: Bundle,
    environment: Environment,
    hosts: Hosts,
    *,
    configuration: Mapping[str, Any] | None = None,
    extra_reasons: Sequence[Reason] = (),
) -> Verdict:
    """All reasons for and against running ``bundle`` in ``environment``.

    ``configuration`` is what the user stored for this extension; ``host_version``, ``host_api_version``,
    ``protocol_versions`` and ``runtime_qualification`` in it answer what cannot be read from the installation.
    """
    settings = configuration or {}
    manifest = bundle.manifest
    host = hosts.get(manifest.host.name) or host_of_distribution(environment, manifest.host.name)
    reasons = [_provider(manifest.host.provider), _host_version(manifest.host, host, hosts, settings)]
    if manifest.host.api_range is not None:
        reasons.append(_host_api(manifest.host.api_range, host, settings))
    reasons += [_protocol(p.name, p.version_range, settings) for p in manifest.protocols]
    reasons += [_service(s, settings) for s in manifest.requires_services]
    core = core_reason(manifest.host.name, host, hosts)
    if core is not None:
        reasons.append(core)
    qualification = _qualification(manifest.runtime_qualification, settings)
    if qualification is not None:
        reasons.append(qualification)
    report = None
    verified = False
    if host is not None:
        from vllm_hust_ext import static_seams

        report = static_seams.check(bundle, hosts)
        reasons += report.reasons
        verified = report.verified
    reasons += [Reason("configuration", Outcome.NOTE, fault) for fault in stored_faults(settings)]
    reasons += extra_reasons
    outcomes = {r.outcome for r in reasons}
    if Outcome.FAILS in outcomes:
        status = Status.INCOMPATIBLE
    elif Outcome.UNKNOWN in outcomes:
        status = Status.UNKNOWN
    elif verified:
        status = Status.VERIFIED
    elif report is not None and report.all_matched:
        status = Status.SEAMS_MATCH
    else:
        status = Status.COMPATIBLE
    return Verdict(status, tuple(reasons), host, report)


_STORED_TYPES: Mapping[str, tuple[type, str]] = {
    "host_version": (str, "a string"),
    "host_api_version": (str, "a string"),
    "protocol_versions": (dict, "an object"),
    "runtime_qualification": (dict, "an object"),
    "environment": (dict, "an object"),
    "launch_options": (dict, "an object"),
}


def stored_faults(configuration: Mapping[str, Any]) -> list[str]:
    """What a stored configuration says that cannot be read, as sentences."""
    faults = [
        f"{key} in its stored configuration is not {words}; ignored"
        for key, (kind, words) in _STORED_TYPES.items()
        if key in configuration and not isinstance(configuration[key], kind)
    ]
    protocols = configuration.get("protocol_versions")
    faults += [
        f"protocol_versions.{name} in its stored configuration is not a string; ignored"
        for name, version in (protocols.items() if isinstance(protocols, dict) else ())
        if not isinstance(version, str)
    ]
    return faults


def _provider(provider: str) -> Reason:
    if provider == "vllm":
        return Reason("provider", Outcome.OK, "it runs inside vLLM")
    return Reason(
        "provider",
        Outcome.UNKNOWN,
        f"it is made for host provider {provider!r}, which this manager cannot judge or launch",
        "follow the extension's own instructions",
    )


def _host_version(requirement: Any, host: Host | None, hosts: Hosts, settings: Mapping[str, Any]) -> Reason:
    stated = settings.get("host_version")
    name, wanted = requirement.name, requirement.version_range
    if isinstance(stated, str):
        answer = versions.in_range(stated, wanted)
        said = f"host version {stated} is stated in the stored configuration: {answer.explanation}"
    elif host is None:
        others = "; ".join(h.describe() for h in hosts.found.values())
        return Reason(
            "host-version",
            Outcome.UNKNOWN,
            f"the host is missing: it needs {name} {wanted}, and no distribution of that name, nor"
            " another that provides its"
            f" package, is installed{' (installed: ' + others + ')' if others else ''}",
            f"install it: pip install '{name}{wanted}'",
        )
    else:
        answer = versions.in_range(host.version, wanted)
        said = f"{host.describe()} is installed: {answer.explanation}"
        if host.other_name:
            said += (
                f"; distribution {host.other_name} provides the package {host.package}, so it counts as {host.wanted}"
            )
    if answer.inside:
        return Reason("host-version", Outcome.OK, said)
    fix = f"install {name} {wanted}, or a release of this extension whose range admits the installed host"
    if answer.inside is None:
        return Reason(
            "host-version",
            Outcome.UNKNOWN,
            said,
            'state it: store {"host_version": "X.Y.Z"} with \'extension configure\'',
        )
    version = versions.parse(stated if isinstance(stated, str) else host.version if host else None)
    if version is not None and versions.is_untagged(version):
        fix = (
            'if you know the release that was built, store {"host_version": "X.Y.Z"} with \'extension'
            " configure'; or build it with"
            " SETUPTOOLS_SCM_PRETEND_VERSION set"
        )
    return Reason("host-version", Outcome.FAILS, said, fix)


def _host_api(wanted: str, host: Host | None, settings: Mapping[str, Any]) -> Reason:
    stated = settings.get("host_api_version")
    if isinstance(stated, str):
        answer = versions.in_range(stated, wanted)
        outcome = {True: Outcome.OK, False: Outcome.FAILS, None: Outcome.UNKNOWN}[answer.inside]
        return Reason(
            "host-api",
            outcome,
            f"host API {stated} is stated in the stored configuration: {answer.explanation}",
            None if answer.inside else "correct host_api_version in the stored configuration",
        )
    if host is None:
        return Reason(
            "host-api", Outcome.UNKNOWN, f"host API {wanted} cannot be looked for without the host", "install the host"
        )
    registry = _engine_file(host, "plugins/extension_capabilities.py")
    if registry is not None:
        return Reason(
            "host-api",
            Outcome.UNKNOWN,
            "this host has a registry of its extension API, which only a running host can answer from",
            'state it: store {"host_api_version": "1.0"} with \'extension configure\'',
        )
    answer = versions.in_range("1.0", wanted)
    if answer.inside:
        return Reason(
            "host-api",
            Outcome.NOTE,
            "this host states no extension API version; it has the plain plugin interface, which is API"
            f" 1.0: {answer.explanation}",
        )
    return Reason(
        "host-api",
        Outcome.FAILS,
        f"this host has only the plain plugin interface, API 1.0: {answer.explanation}",
        "use a host that offers the API, or another release of the extension",
    )


def _engine_file(host: Host, relative: str) -> Any:
    if host.folder is None:
        return None
    for folder in (host.folder, host.folder.parent / "vllm"):
        if os.path.isfile(folder / relative):
            return folder / relative
    return None


def _protocol(name: str, wanted: str | None, settings: Mapping[str, Any]) -> Reason:
    check = f"protocol {name}"
    if wanted is None:
        return Reason(check, Outcome.NOTE, f"{name} is not versioned by the host; nothing to compare")
    stated = settings.get("protocol_versions")
    version = stated.get(name) if isinstance(stated, Mapping) else None
    if not isinstance(version, str):
        return Reason(
            check,
            Outcome.UNKNOWN,
            f"{name} {wanted} is needed, and the installed host states no version of it (vLLM's releases"
            " have no such protocol)",
            f'use a host that offers it; or store {{"protocol_versions": {{"{name}": "X.Y"}}}} with'
            " 'extension configure'",
        )
    answer = versions.in_range(version, wanted)
    outcome = {True: Outcome.OK, False: Outcome.FAILS, None: Outcome.UNKNOWN}[answer.inside]
    return Reason(
        check,
        outcome,
        f"{name} {version} is stated in the stored configuration: {answer.explanation}",
        None if answer.inside else "correct protocol_versions in the stored configuration",
    )


def _service(service: Any, settings: Mapping[str, Any]) -> Reason:
    """A service that the extension talks to: the user states its endpoint; nobody calls it from here."""
    check = f"service {service.service_id}"
    endpoint = settings.get(service.endpoint_config)
    if endpoint not in (None, "", {}):
        return Reason(
            check,
            Outcome.NOTE,
            (f"{service.service_id} ({service.protocol}) is configured; it is not called to test it"),
        )
    if service.optional:
        return Reason(
            check, Outcome.NOTE, (f"the optional service {service.service_id} ({service.protocol}) is not configured")
        )
    return Reason(
        check,
        Outcome.UNKNOWN,
        f"it needs the service {service.service_id} ({service.protocol}), and no endpoint is stored",
        f"store {{\"{service.endpoint_config}\": ...}} with 'extension configure'",
    )


def core_reason(wanted_host: str, host: Host | None, hosts: Hosts) -> Reason | None:
    """vllm-ascend and vLLM move in lockstep: a release is made for the vLLM of the same version."""
    if host is None or canonical_name(wanted_host) != "vllm-ascend":
        return None
    core = hosts.get("vllm")
    check = "vllm-core"
    if core is None:
        return Reason(
            check,
            Outcome.UNKNOWN,
            f"vLLM itself is missing beside {host.describe()}",
            f"install vllm {_base(host.version) or ''} with VLLM_TARGET_DEVICE=empty".replace("  ", " "),
        )
    plugin_version, core_version = versions.parse(host.version), versions.parse(core.version)
    if plugin_version is None or core_version is None:
        return Reason(check, Outcome.NOTE, f"{core.describe()} beside {host.describe()}: one version cannot be read")
    if versions.is_untagged(plugin_version) or versions.is_untagged(core_version):
        return Reason(
            check,
            Outcome.NOTE,
            f"{core.describe()} beside {host.describe()}: {versions.nature(core.version)}"
            if versions.is_untagged(core_version)
            else f"{core.describe()} beside {host.describe()}: {versions.nature(host.version)}",
        )
    if _release3(plugin_version.release) == _release3(core_version.release):
        return Reason(check, Outcome.OK, f"{core.describe()} is the release that {host.describe()} is made for")
    return Reason(
        check,
        Outcome.FAILS,
        f"{host.describe()} is made for vLLM {plugin_version.base_version}, but {core.describe()} is installed",
        f"install vllm=={plugin_version.base_version}, or the vllm-ascend release of vLLM {core_version.base_version}",
    )


def _release3(release: tuple[int, ...]) -> tuple[int, ...]:
    return (*release, 0, 0)[:3]


def _base(text: str | None) -> str | None:
    version = versions.parse(text)
    return version.base_version if version is not None else None


def _qualification(demanded: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> Reason | None:
    if demanded is None:
        return None
    check = "runtime-qualification"
    scope = ", ".join(f"{key} {demanded[key]}" for key in ("model", "execution_mode") if key in demanded)
    shown = settings.get("runtime_qualification")
    fix = (
        'if it was qualified for your deployment, store {"runtime_qualification": {"status": "passed",'
        " ...}} with the keys that"
        " 'extension inspect' shows, by 'extension configure'"
    )
    if not isinstance(shown, Mapping):
        return Reason(
            check,
            Outcome.UNKNOWN,
            "its author demands a proof of qualification before it"
            f" runs{f' ({scope})' if scope else ''}, and none is stored",
            fix,
        )
    if shown.get("status") != "passed":
        return Reason(
            check, Outcome.FAILS, f"the stored qualification has status {shown.get('status')!r}, not 'passed'", fix
        )
    differing = sorted(key for key, value in demanded.items() if key not in shown or shown[key] != value)
    if differing:
        return Reason(check, Outcome.FAILS, f"the stored qualification differs in {', '.join(differing)}", fix)
    return Reason(check, Outcome.OK, "the stored qualification is the one that its author demands")
