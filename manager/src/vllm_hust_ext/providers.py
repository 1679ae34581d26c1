"""Plugins of the manager itself: host providers and extra checks of other distributions, through pluggy.

Entry-point group ``vllm_hust_ext.providers``; the value names a module or object with hook implementations (see
:mod:`vllm_hust_ext.hookspecs`). This is the one place where the manager imports code of others, and only of
distributions that register there. A provider that fails is left out and reported; it never stops a command.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vllm_hust_ext.hosts import BUILTIN_HOSTS, HostPackage

if TYPE_CHECKING:
    from vllm_hust_ext.compatibility import Reason
    from vllm_hust_ext.discovery import Bundle
    from vllm_hust_ext.environment import Environment

GROUP = "vllm_hust_ext.providers"
PROJECT = "vllm_hust_ext"


@dataclass(frozen=True)
class BrokenProvider:
    """A provider that was left out, and why."""

    name: str
    distribution: str
    reason: str


@dataclass
class Providers:
    """All providers of one environment. Without third-party providers pluggy is not even imported."""

    registered: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, value, distribution) of every registration."""
    importable: bool = True
    broken: list[BrokenProvider] = field(default_factory=list)

    @cached_property
    def _manager(self) -> Any:
        if not self.registered:
            return None
        if not self.importable:
            for name, _, distribution in self.registered:
                self._leave_out(name, distribution, "it belongs to another interpreter and is not loaded from here")
            return None
        import pluggy

        from vllm_hust_ext import hookspecs

        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(hookspecs)
        for name, value, distribution in sorted(self.registered):
            try:
                manager.register(_load(value), name=name)
                manager.check_pending()
            except (Exception, SystemExit) as error:
                if manager.has_plugin(name):
                    manager.unregister(name=name)
                self._leave_out(name, distribution, f"it cannot be loaded: {type(error).__name__}: {error}")
        return manager

    def _leave_out(self, name: str, distribution: str, reason: str) -> None:
        item = BrokenProvider(name, distribution, reason)
        if item not in self.broken:
            self.broken.append(item)

    def _call(self, hook: str, **arguments: Any) -> list[Any]:
        """Call each provider's implementation on its own: one that fails does not take the others with it."""
        manager = self._manager
        if manager is None:
            return []
        results = []
        for implementation in reversed(getattr(manager.hook, hook).get_hookimpls()):
            wanted = {key: value for key, value in arguments.items() if key in implementation.argnames}
            function: Callable[..., Any] = implementation.function
            try:
                answer = function(**wanted)
                results.append([] if answer is None else list(answer))
            except (Exception, SystemExit) as error:
                owner = next((d for n, _, d in self.registered if n == implementation.plugin_name), "?")
                self._leave_out(implementation.plugin_name, owner, f"{hook} failed: {type(error).__name__}: {error}")
        return results

    @cached_property
    def host_packages(self) -> tuple[HostPackage, ...]:
        """Hosts that are known: the built-in ones first, then those of providers, which cannot replace them."""
        found = list(BUILTIN_HOSTS)
        for answer in self._call("vllm_hust_ext_hosts"):
            for package in answer:
                if isinstance(package, HostPackage) and all(package.distribution != p.distribution for p in found):
                    found.append(package)
        return tuple(found)

    def extra_reasons(self, bundle: Bundle, environment: Environment) -> list[Reason]:
        """Reasons that providers add to a verdict."""
        from vllm_hust_ext.compatibility import Reason

        answers = self._call("vllm_hust_ext_check", manifest=bundle.manifest, environment=environment)
        return [reason for answer in answers for reason in answer if isinstance(reason, Reason)]

    def doctor_findings(self, environment: Environment) -> list[Any]:
        """Findings that providers add to ``doctor``."""
        from vllm_hust_ext.findings import Finding

        answers = self._call("vllm_hust_ext_doctor", environment=environment)
        return [finding for answer in answers for finding in answer if isinstance(finding, Finding)]


def _load(value: str) -> Any:
    module, _, attribute = value.partition(":")
    loaded: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        loaded = getattr(loaded, part)
    return loaded


def load_providers(environment: Environment) -> Providers:
    """The providers registered in ``environment``. Nothing is imported before a hook is first called."""
    registered = [
        (entry.name, entry.value, d.name)
        for d in environment.active.values()
        for entry in d.entry_points
        if entry.group == GROUP
    ]
    return Providers(registered, importable=environment.own and sys.version_info[:2] == environment.version[:2])
