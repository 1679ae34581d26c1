"""Hooks that another distribution can implement for the manager.

A provider is a module (or object) registered in the entry-point group ``vllm_hust_ext.providers``; it marks its
functions with ``hookimpl``. Arguments that an implementation does not need may be left out. An exception leaves that
provider out and is reported by ``vllm-hust-ext doctor``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from vllm_hust_ext.compatibility import Reason
    from vllm_hust_ext.environment import Environment
    from vllm_hust_ext.findings import Finding
    from vllm_hust_ext.hosts import HostPackage
    from vllm_hust_ext.manifest.model import Manifest

hookspec = pluggy.HookspecMarker("vllm_hust_ext")
hookimpl = pluggy.HookimplMarker("vllm_hust_ext")


@hookspec
def vllm_hust_ext_hosts() -> Iterable[HostPackage]:  # type: ignore[empty-body]
    """Hosts that extensions may name, with the package by which a fork or another build is recognised."""


@hookspec
def vllm_hust_ext_check(manifest: Manifest, environment: Environment) -> Iterable[Reason]:  # type: ignore[empty-body]
    """Further reasons for or against running the extension of ``manifest`` in ``environment``."""


@hookspec
def vllm_hust_ext_doctor(environment: Environment) -> Iterable[Finding]:  # type: ignore[empty-body]
    """Further findings for ``vllm-hust-ext doctor``."""
