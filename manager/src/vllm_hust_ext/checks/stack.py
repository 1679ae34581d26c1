"""The host's pinned stack: Python, CANN, PyTorch, torch_npu, vLLM and vllm-ascend move in lockstep, on named chips.

What a release of vllm-ascend asks for is read from its own metadata: ``Requires-Dist``, ``Requires-Python`` and the
prerequisites in its README, which is the metadata's description.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

from vllm_hust_ext import versions
from vllm_hust_ext.distributions import Distribution, canonical_name
from vllm_hust_ext.findings import Finding, Severity
from vllm_hust_ext.session import Session

CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH")
CANN_DEFAULTS = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")
_CANN_FILES = (
    "version.cfg",
    "version.info",
    "ascend_toolkit_install.info",
    "x86_64-linux/ascend_toolkit_install.info",
    "aarch64-linux/ascend_toolkit_install.info",
)
LOCKSTEP = ("torch", "torch-npu", "torchvision", "torchaudio", "triton-ascend")
"""Pinned requirements of vllm-ascend that belong to the compiled stack; other pins are noted, not warned of."""


@dataclass(frozen=True)
class Wanted:
    """What one release of vllm-ascend asks for."""

    python: str | None = None
    cann: str | None = None
    pins: Mapping[str, str] = field(default_factory=dict)
    hardware: tuple[str, ...] = ()


def wanted_by(distribution: Distribution) -> Wanted:
    """Read the prerequisites of a vllm-ascend release from its metadata."""
    pins: dict[str, str] = {}
    for text in distribution.fields("Requires-Dist"):
        try:
            requirement = Requirement(text)
        except ValueError:
            continue
        if "extra" not in text and any(s.operator in ("==", "===") for s in requirement.specifier):
            pins[canonical_name(requirement.name)] = str(requirement.specifier)
    text = distribution.metadata_text
    body = re.split(r"\r?\n\r?\n", text, maxsplit=1)[-1]
    python = _stated(body, r"Python") or next(iter(distribution.fields("Requires-Python")), None)
    for name, label in (("torch", r"PyTorch"), ("torch-npu", r"Torch[-_ ]?NPU")):
        stated = _stated(body, label)
        if stated:
            pins.setdefault(name, stated)
    return Wanted(python, _stated(body, r"CANN"), pins, tuple(_hardware(body)))


def _stated(text: str, label: str) -> str | None:
    """The range behind ``label`` in a prerequisites line, for example ``CANN == 9.1.0``."""
    one = r"[<>=!~]=?=?\s*[0-9][0-9A-Za-z.+*]*"
    match = re.search(rf"(?<![A-Za-z]){label}\s*((?:{one}\s*,?\s*)+)", text, re.IGNORECASE)
    if not match:
        return None
    return re.sub(r"\s+", "", match.group(1)).rstrip(",")


def _hardware(text: str) -> Iterator[str]:
    match = re.search(r"Hardware:?\s*(.+)", text)
    if match:
        yield from (part.strip(" .*`") for part in re.split(r"[,;]", match.group(1)) if "Atlas" in part)


def cann_version(variables: Mapping[str, str] | None = None) -> tuple[str | None, str | None]:
    """(version, folder) of the installed CANN toolkit; (None, None) where none is found."""
    environ = os.environ if variables is None else variables
    for folder in [*(environ[v] for v in CANN_VARIABLES if environ.get(v)), *CANN_DEFAULTS]:
        for name in _CANN_FILES:
            try:
                text = (Path(folder) / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            match = re.search(r"(?i)version\w*\s*=\s*\[?V?(?:\d+:)?([0-9][0-9A-Za-z.]*)", text)
            if match:
                return match.group(1), folder
    return None, None


def stack(session: Session) -> Iterator[Finding]:
    """Installed, asked for, and where they part."""
    host = session.hosts.get("vllm-ascend")
    if host is None:
        found = ", ".join(h.describe() for h in session.hosts.found.values()) or "no host at all"
        yield Finding(
            "host-stack", Severity.NOTE, f"vllm-ascend is not installed ({found}); there is no pinned stack to compare"
        )
        return
    emulated = session.hosts.emulated_npu
    if emulated:
        yield Finding(
            "host-stack",
            Severity.NOTE,
            f"emulated NPU ({emulated}): CANN and torch_npu are the emulator's, and nothing here is"
            " measured on hardware",
        )
    wanted = wanted_by(host.distribution)
    yield from _python(session, wanted, host.describe())
    yield from _core(session)
    yield from _cann(wanted, host.describe(), emulated)
    for name, specifier in sorted(wanted.pins.items()):
        yield from _pin(session, name, specifier, host.describe(), emulated)
    if wanted.hardware:
        yield Finding("host-stack", Severity.NOTE, f"{host.describe()} names these chips: {', '.join(wanted.hardware)}")


def _python(session: Session, wanted: Wanted, host: str) -> Iterator[Finding]:
    if wanted.python is None:
        return
    installed = session.environment.python_version
    answer = versions.in_range(installed, wanted.python)
    if answer.inside:
        yield Finding("host-stack", Severity.OK, f"Python {installed}: {host} asks for {wanted.python}")
    else:
        yield Finding(
            "host-stack",
            Severity.ERROR,
            (f"Python {installed} is installed; {host} asks for {wanted.python}"),
            "make an environment with such a Python",
        )


def _core(session: Session) -> Iterator[Finding]:
    from vllm_hust_ext.compatibility import Outcome, core_reason

    reason = core_reason("vllm-ascend", session.hosts.get("vllm-ascend"), session.hosts)
    if reason is not None:
        severity = {Outcome.OK: Severity.OK, Outcome.NOTE: Severity.NOTE}.get(reason.outcome, Severity.ERROR)
        yield Finding("host-stack", severity, reason.message, reason.fix)


def _cann(wanted: Wanted, host: str, emulated: str | None) -> Iterator[Finding]:
    if wanted.cann is None:
        return
    installed, folder = cann_version()
    if installed is None:
        if emulated:
            yield Finding(
                "host-stack",
                Severity.OK,
                (f"no CANN is installed, and the emulator needs none ({host} asks for CANN {wanted.cann})"),
            )
        else:
            yield Finding(
                "host-stack",
                Severity.ERROR,
                f"no CANN toolkit was found; {host} asks for CANN {wanted.cann}",
                f"install CANN {wanted.cann.lstrip('=')} and source its set_env.sh",
            )
        return
    answer = versions.in_range(installed, wanted.cann)
    if answer.inside:
        yield Finding("host-stack", Severity.OK, f"CANN {installed} in {folder}: {host} asks for {wanted.cann}")
    else:
        yield Finding(
            "host-stack",
            Severity.WARNING,
            f"CANN {installed} is in {folder}; {host} asks for {wanted.cann}",
            f"install CANN {wanted.cann.lstrip('=')}, or the vllm-ascend release for your CANN",
        )


def _pin(session: Session, name: str, specifier: str, host: str, emulated: str | None) -> Iterator[Finding]:
    distribution = session.environment.active.get(canonical_name(name))
    lockstep = name in LOCKSTEP
    if distribution is None:
        if not lockstep:
            return
        if emulated:
            yield Finding(
                "host-stack",
                Severity.NOTE,
                (f"{name} is not installed; {host} asks for {specifier}, the emulated NPU runs without"),
            )
        else:
            severity = Severity.ERROR if name in ("torch", "torch-npu") else Severity.NOTE
            yield Finding(
                "host-stack",
                severity,
                (f"{name} is not installed; {host} asks for {specifier}"),
                f"pip install '{name}{specifier}'",
            )
        return
    answer = versions.in_range(distribution.version, specifier)
    if answer.inside:
        yield Finding("host-stack", Severity.OK, f"{name} {distribution.version}: {host} asks for {specifier}")
        return
    beyond = "; on the emulated NPU other releases do" if emulated else ""
    yield Finding(
        "host-stack",
        Severity.WARNING if lockstep and not emulated else Severity.NOTE,
        f"{name} {distribution.version} is installed; {host} asks for {specifier}{beyond}",
        None if emulated else f"pip install '{name}{specifier}'",
    )
