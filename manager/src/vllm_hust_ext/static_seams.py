"""Seams sidecar x the host's source files -> which seams match, by AST.

The sidecar (``vllm-hust-extension-seams.json`` beside the manifest) states what an extension needs of its host's
sources, in a closed vocabulary: ``exists``, ``absent``, ``parameters``, ``call_count``. The live check of the
extension decides in the engine; this one answers beforehand, and says "unknown" where the sources alone cannot tell.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from vllm_hust_ext import versions
from vllm_hust_ext.hosts import Host, Hosts
from vllm_hust_ext.source_index import Binding, Lookup, ModuleNotFound, SourceIndex, Unreadable, parameter_names

if TYPE_CHECKING:
    from vllm_hust_ext.compatibility import Reason
    from vllm_hust_ext.discovery import Bundle

SCHEMA = "vllm-hust-ext.seams/1"
CHECKS = ("exists", "absent", "parameters", "call_count")

PROPERTY_DECORATORS = frozenset({"property", "cached_property", "setter", "getter", "deleter"})
TRANSPARENT_DECORATORS = frozenset(
    {
        "staticmethod", "classmethod", "abstractmethod", "override", "final", "deprecated", "wraps",
        "lru_cache", "cache", "contextmanager",
        "asynccontextmanager", "inference_mode", "no_grad",
    }
)  # fmt: skip
"""Decorators that leave the parameters as they are written, as ``inspect.signature`` sees them."""


class SeamStatus(str, Enum):
    MATCHED = "matched"
    DIFFERS = "differs"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class SeamResult:
    carrier: str
    target: str
    check: str
    status: SeamStatus
    detail: str
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "carrier": self.carrier,
            "target": self.target,
            "check": self.check,
            "status": self.status.value,
            "detail": self.detail,
            "why": self.why,
        }


@dataclass(frozen=True)
class SeamReport:
    """What the sidecar and the sources say together."""

    results: tuple[SeamResult, ...] = ()
    verified: bool = False
    verified_on: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = field(default=(), compare=False)

    @property
    def all_matched(self) -> bool:
        return bool(self.results) and all(r.status is SeamStatus.MATCHED for r in self.results)

    def as_json(self) -> dict[str, Any]:
        return {
            "verified": self.verified,
            "verified_on": list(self.verified_on),
            "results": [r.as_json() for r in self.results],
        }


def check(bundle: Bundle, hosts: Hosts) -> SeamReport:
    """Check the sidecar of ``bundle`` against the installed sources of ``hosts``."""
    from vllm_hust_ext.compatibility import Outcome, Reason
    from vllm_hust_ext.manifest.loading import InvalidManifest, parse_json_object, read_file

    if not os.path.isfile(bundle.seams_path):
        return SeamReport(
            reasons=(Reason("seams", Outcome.NOTE, "it states no seams, so its host's sources were not looked at"),)
        )
    try:
        document = parse_json_object(read_file(bundle.seams_path, follow_symlink=True), what="a seams sidecar")
        sidecar = _validated(document, bundle.extension_id)
    except (InvalidManifest, ValueError) as error:
        said = "; ".join(str(f) for f in error.faults) if isinstance(error, InvalidManifest) else str(error)
        return SeamReport(
            reasons=(
                Reason(
                    "seams",
                    Outcome.UNKNOWN,
                    f"its seams sidecar cannot be used: {said}",
                    f"reinstall {bundle.distribution.name}, or tell its author about {bundle.seams_path}",
                ),
            )
        )
    results = check_sources(sidecar, hosts.sources)
    verified_on = tuple(_describe(item) for item in sidecar["verified_on"])
    verified = any(_is_here(item, hosts) for item in sidecar["verified_on"])
    return SeamReport(results, verified, verified_on, tuple(_reasons(results, verified, verified_on)))


def check_sources(sidecar: Mapping[str, Any], sources: SourceIndex) -> tuple[SeamResult, ...]:
    """Check every seam of a sidecar document against sources, installed ones or not."""
    return tuple(
        _check_one(sources, str(carrier["name"]), seam) for carrier in sidecar["carriers"] for seam in carrier["seams"]
    )


def _validated(document: dict[str, Any], extension_id: str) -> dict[str, Any]:
    """Check the shape; later additions (unknown keys) are let through, an unknown check becomes an unknown answer."""
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema is {document.get('schema')!r}, not {SCHEMA!r}")
    if document.get("extension_id") != extension_id:
        raise ValueError(f"extension_id is {document.get('extension_id')!r}, not {extension_id!r}")
    carriers, verified = document.get("carriers"), document.get("verified_on", [])
    if not isinstance(carriers, list) or not isinstance(verified, list):
        raise ValueError("carriers and verified_on must be arrays")
    for number, carrier in enumerate(carriers):
        if (
            not isinstance(carrier, dict)
            or not isinstance(carrier.get("name"), str)
            or not isinstance(carrier.get("seams"), list)
        ):
            raise ValueError(f"carriers[{number}] needs a name and an array of seams")
        for index, seam in enumerate(carrier["seams"]):
            place = f"carriers[{number}].seams[{index}]"
            if (
                not isinstance(seam, dict)
                or not isinstance(seam.get("target"), str)
                or not isinstance(seam.get("check"), str)
            ):
                raise ValueError(f"{place} needs a target and a check")
            module, separator, name = seam["target"].partition(":")
            parts = [*module.split("."), *name.split(".")] if separator else [""]
            if not all(part.isidentifier() for part in parts):
                raise ValueError(
                    f"{place}.target {seam['target']!r} is not of the form 'package.module:Class.attribute'"
                )
            names = seam.get("parameters")
            if seam["check"] == "parameters" and not (
                isinstance(names, list) and all(isinstance(n, str) for n in names)
            ):
                raise ValueError(f"{place}.parameters must be an array of names")
            if seam["check"] == "call_count" and not (
                isinstance(seam.get("callee"), str) and isinstance(seam.get("count"), int)
            ):
                raise ValueError(f"{place} needs a callee and a count")
    for number, item in enumerate(verified):
        if not (
            isinstance(item, dict)
            and isinstance(item.get("distribution"), str)
            and isinstance(item.get("version"), str)
        ):
            raise ValueError(f"verified_on[{number}] needs a distribution and a version")
        if not isinstance(item.get("with", {}), dict):
            raise ValueError(f"verified_on[{number}].with must be an object of distributions and versions")
    return document | {"verified_on": verified}


def _describe(item: Mapping[str, Any]) -> str:
    beside = ", ".join(f"{name} {version}" for name, version in sorted(item.get("with", {}).items()))
    return f"{item['distribution']} {item['version']}" + (f" with {beside}" if beside else "")


def _is_here(item: Mapping[str, Any], hosts: Hosts) -> bool:
    wanted = {item["distribution"]: item["version"], **item.get("with", {})}
    return all(_same_release(hosts.get(str(name)), version) for name, version in wanted.items())


def _same_release(host: Host | None, version: object) -> bool:
    """The same public version; a local suffix (+empty, +cpu) names a build of that release."""
    installed, wanted = versions.parse(host.version if host else None), versions.parse(str(version))
    return installed is not None and wanted is not None and installed.public == wanted.public


def _reasons(results: tuple[SeamResult, ...], verified: bool, verified_on: tuple[str, ...]) -> list[Reason]:
    from vllm_hust_ext.compatibility import Outcome, Reason

    reasons: list[Reason] = []
    for result in results:
        if result.status in (SeamStatus.DIFFERS, SeamStatus.MISSING):
            reasons.append(
                Reason(
                    f"seam {result.target}",
                    Outcome.FAILS,
                    f"carrier {result.carrier}: {result.target} {result.detail}",
                    "use a host release on which it is verified"
                    f" ({'; '.join(verified_on) or 'none is stated'}), or a release of"
                    " the extension for this host",
                )
            )
        elif result.status is SeamStatus.UNKNOWN:
            reasons.append(
                Reason(
                    f"seam {result.target}",
                    Outcome.NOTE,
                    f"carrier {result.carrier}: {result.target} cannot be judged from the sources: {result.detail}",
                    "the extension checks it itself when the engine starts; see 'extension status' then",
                )
            )
    matched = sum(r.status is SeamStatus.MATCHED for r in results)
    if matched:
        reasons.append(Reason("seams", Outcome.OK, f"{matched} of {len(results)} seams match the installed sources"))
    if verified:
        reasons.append(Reason("verified", Outcome.OK, "its author verified it on exactly these host versions"))
    else:
        reasons.append(
            Reason(
                "verified",
                Outcome.NOTE,
                "it was never run on these host versions; it is verified on"
                f" {'; '.join(verified_on) or 'none that its author names'}",
            )
        )
    return reasons


def _check_one(index: SourceIndex, carrier: str, seam: Mapping[str, Any]) -> SeamResult:
    target, kind, why = str(seam["target"]), str(seam["check"]), str(seam.get("why", ""))

    def result(status: SeamStatus, detail: str) -> SeamResult:
        return SeamResult(carrier, target, kind, status, detail, why)

    if kind not in CHECKS:
        return result(SeamStatus.UNKNOWN, f"check {kind!r} is not known to this manager")
    module, _, name = target.partition(":")
    try:
        found = index.resolve(module, name)
    except ModuleNotFound as error:
        if not error.installed:
            return result(SeamStatus.UNKNOWN, str(error))
        return result(SeamStatus.MISSING, str(error))
    except Unreadable as error:
        return result(SeamStatus.UNKNOWN, str(error))
    if kind == "absent":
        if found.found:
            return result(SeamStatus.DIFFERS, f"is there ({_place(found.bindings[0])}), but must be absent")
        return result(SeamStatus.MATCHED, "is absent") if found.certain else result(SeamStatus.UNKNOWN, found.why)
    if not found.found:
        return result(SeamStatus.MISSING, "is not there") if found.certain else result(SeamStatus.UNKNOWN, found.why)
    if kind == "exists":
        return result(SeamStatus.MATCHED, f"is there ({_place(found.bindings[0])})")
    answers = [_judge(index, binding, kind, seam, "." in name) for binding in found.bindings]
    statuses = {status for status, _ in answers}
    if statuses == {SeamStatus.MATCHED} and found.certain:
        return result(*answers[0])
    if SeamStatus.MATCHED not in statuses and SeamStatus.UNKNOWN not in statuses:
        return result(*answers[0])
    detail = next((d for s, d in answers if s is not SeamStatus.MATCHED), found.why or answers[0][1])
    return result(SeamStatus.UNKNOWN, detail)


def _place(binding: Binding) -> str:
    return f"{binding.module.path.name}:{getattr(binding.node, 'lineno', 1)}"


def _judge(
    index: SourceIndex, binding: Binding, kind: str, seam: Mapping[str, Any], in_class: bool
) -> tuple[SeamStatus, str]:
    node = binding.node
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):  # forward = other_function
        aliased: Lookup = index.expression(node.value, binding.module)
        if len(aliased.bindings) == 1:
            return _judge(index, aliased.bindings[0], kind, seam, in_class)
    if isinstance(node, ast.ClassDef):
        return SeamStatus.DIFFERS, f"is a class, not a function ({_place(binding)})"
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return SeamStatus.UNKNOWN, f"is not defined by a function statement ({_place(binding)})"
    if kind == "call_count":
        callee, wanted = str(seam["callee"]), int(seam["count"])
        calls = (n for statement in node.body for n in ast.walk(statement) if isinstance(n, ast.Call))
        count = sum(_calls(call.func, callee) for call in calls)
        if count == wanted:
            return SeamStatus.MATCHED, f"calls {callee} {count} times"
        return SeamStatus.DIFFERS, f"calls {callee} {count} times, not {wanted} ({_place(binding)})"
    decorators = {ast.unparse(d).split("(")[0].rpartition(".")[2] for d in node.decorator_list}
    if decorators & PROPERTY_DECORATORS:
        return SeamStatus.DIFFERS, f"is a property, not a function ({_place(binding)})"
    opaque = sorted(decorators - TRANSPARENT_DECORATORS)
    if opaque:
        return SeamStatus.UNKNOWN, f"decorator {', '.join(opaque)} may change its parameters ({_place(binding)})"
    names = parameter_names(node, bound=in_class and "staticmethod" not in decorators)
    wanted_names = list(seam["parameters"])
    if names == wanted_names or _begin_as_stated(names, wanted_names):
        return SeamStatus.MATCHED, f"has the parameters ({', '.join(names)})"
    said = f"has the parameters ({', '.join(names)}), not ({', '.join(wanted_names)})"
    return SeamStatus.DIFFERS, f"{said} ({_place(binding)})"


def _begin_as_stated(names: list[str], stated: list[str]) -> bool:
    """A list that ends in "..." states how the parameters begin."""
    return stated[-1:] == ["..."] and names[: len(stated) - 1] == stated[:-1]


def _calls(function: ast.expr, callee: str) -> bool:
    """``callee`` is a plain name (last part of the call) or a dotted end of it."""
    try:
        text = ast.unparse(function)
    except (ValueError, RecursionError):
        return False
    return text == callee or text.endswith(f".{callee}")
