"""Is the kernel wheel `ascend_kernel` there, complete, known, and paired with this stack?

The wheel is a soft dependency: it ships the ops `npu::fa_fp32_stage1` and `npu::lse_merge` as a compiled library for
one (Python ABI, torch_npu, CANN) tuple and is on no package index. It is looked at only when the gate is open. Anything
that is not positively known to be right counts as absent, with one sentence that says what to do.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "ascend_kernel"
OPS = ("fa_fp32_stage1", "lse_merge")
LIBRARY = Path("lib") / "libascend_kernel.so"
DISPATCH_KEY = "PrivateUse1"


@dataclass(frozen=True)
class Build:
    """A published build of the wheel, by the first 16 hex digits of its library's md5."""

    fingerprint: str
    release: str
    torch_npu: str
    cann: str


#: Published builds and the stack each was validated with (the kernel project's pairing table).
KNOWN_BUILDS = (Build("ca8de2d70fe0504d", "2026.9.26", torch_npu="2.13.0rc1", cann="9.1.0"),)

INSTALL_HINT = (
    f"pip install the wheel of the kernel project's release v{KNOWN_BUILDS[-1].release} for it (where that is says the "
    'README, "Cascade on a real NPU")'
)


@dataclass(frozen=True)
class KernelWheel:
    """The verdict on the wheel.

    Attributes:
        usable: both ops may be called.
        detail: "ok ..." or what is wrong and what to do, one sentence.
        limits_apply: what the device build accepts must be checked before a call (always on a real NPU; the emulated
            one lifts the limits so that small models can be tested, unless told to keep them).
        fingerprint: of the compiled library, None where there is none (an emulated NPU).
    """

    usable: bool
    detail: str
    limits_apply: bool = True
    fingerprint: str | None = None


def fingerprint(library: Path) -> str:
    """The first 16 hex digits of the library's md5, the form in which the kernel project publishes it."""
    digest = hashlib.md5(usedforsecurity=False)
    with library.open("rb") as handle:
        for chunk in iter(lambda: handle.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()[:16]


def probe(allowed_fingerprint: str = "") -> KernelWheel:
    """Import the wheel and judge it. Never raises.

    Args:
        allowed_fingerprint: a fingerprint the user vouches for, for a wheel they built themselves.
    """
    try:
        return _judge(allowed_fingerprint)
    except Exception as error:
        return KernelWheel(False, f"{PACKAGE} could not be examined ({type(error).__name__}: {error})")


def _judge(allowed_fingerprint: str) -> KernelWheel:
    try:
        if importlib.util.find_spec(PACKAGE) is None:
            return KernelWheel(False, f"the kernel wheel {PACKAGE} is not installed; to install it: {INSTALL_HINT}")
        module = importlib.import_module(PACKAGE)
    except Exception as error:
        return KernelWheel(
            False,
            f"the kernel wheel {PACKAGE} cannot be loaded ({type(error).__name__}: {error}); it must be built for this "
            f"Python, torch_npu and CANN: {INSTALL_HINT}",
        )
    import torch

    missing = [op for op in OPS if not op_present(torch, op)]
    if missing:
        return KernelWheel(
            False,
            f"the kernel wheel {PACKAGE} registers no {' and no '.join('npu::' + op for op in missing)} for the "
            f"device; it is defective or built for another torch_npu: {INSTALL_HINT}",
        )
    if getattr(module, "__emulated__", False):
        return KernelWheel(
            True,
            "ok, the emulated NPU's stand-in",
            limits_apply=bool(getattr(module, "ENFORCES_DEVICE_LIMITS", True)),
        )
    return _judge_library(module, allowed_fingerprint)


def op_present(torch: Any, op: str, namespace: str = "npu") -> bool:
    """Whether an op is defined and has an implementation for the device."""
    name = f"{namespace}::{op}"
    defined = hasattr(getattr(torch.ops, namespace), op)
    return defined and torch._C._dispatch_has_kernel_for_dispatch_key(name, DISPATCH_KEY)


def _judge_library(module: ModuleType, allowed_fingerprint: str) -> KernelWheel:
    origin = getattr(module, "__file__", None)
    library = Path(origin).parent / LIBRARY if origin else None
    if library is None or not library.is_file():
        return KernelWheel(
            False, f"the kernel wheel {PACKAGE} at {origin} has no {LIBRARY}; reinstall it: {INSTALL_HINT}"
        )
    found = fingerprint(library)
    if allowed_fingerprint and found == allowed_fingerprint.strip().lower():
        return KernelWheel(True, f"ok, fingerprint {found} allowed by the user", fingerprint=found)
    build = next((known for known in KNOWN_BUILDS if known.fingerprint == found), None)
    if build is None:
        return KernelWheel(
            False,
            f"the kernel wheel's library {library} has the unknown fingerprint {found}; a build you made and tested "
            f"yourself is allowed with VLLM_ASCEND_CASCADE_KERNEL_FINGERPRINT={found}",
            fingerprint=found,
        )
    stack = _torch_npu_version()
    if stack != build.torch_npu:
        return KernelWheel(
            False,
            f"the kernel wheel {build.release} was validated with torch_npu {build.torch_npu} (CANN {build.cann}), "
            f"this host has torch_npu {stack or 'none'}; after testing the pair yourself allow it with "
            f"VLLM_ASCEND_CASCADE_KERNEL_FINGERPRINT={found}",
            fingerprint=found,
        )
    return KernelWheel(True, f"ok, release {build.release}", fingerprint=found)


def _torch_npu_version() -> str | None:
    from importlib import metadata

    for name in ("torch-npu", "torch_npu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
