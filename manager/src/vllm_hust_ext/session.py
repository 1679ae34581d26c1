"""What one run of the manager looks at, read lazily and once: environment, hosts, inventory, intents, verdicts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cached_property

from vllm_hust_ext import environment as environments
from vllm_hust_ext.compatibility import Outcome, Reason, Verdict, assess
from vllm_hust_ext.discovery import Bundle, Inventory, discover
from vllm_hust_ext.environment import Environment
from vllm_hust_ext.errors import BrokenState, Negative
from vllm_hust_ext.hosts import Hosts, find_hosts
from vllm_hust_ext.intents import Intents, IntentStore, Origin, State, origin_of
from vllm_hust_ext.providers import Providers, load_providers


class Session:
    """Lazy views of one environment.

    Args:
        python: another interpreter whose environment is meant, or None for the manager's own.
    """

    def __init__(self, python: str | None = None) -> None:
        self._python = python
        self._verdicts: dict[str, Verdict] = {}

    @cached_property
    def environment(self) -> Environment:
        return environments.current() if self._python is None else environments.of(self._python)

    @cached_property
    def hosts(self) -> Hosts:
        return find_hosts(self.environment, self.providers.host_packages)

    @cached_property
    def providers(self) -> Providers:
        return load_providers(self.environment)

    @cached_property
    def inventory(self) -> Inventory:
        return discover(self.environment)

    @cached_property
    def origin(self) -> Origin:
        return origin_of(self.environment)

    @cached_property
    def store(self) -> IntentStore:
        return IntentStore(self.origin)

    @cached_property
    def intents(self) -> Intents:
        return self.store.read()

    def configuration(self, extension_id: str) -> Mapping[str, object]:
        """The stored configuration; an unreadable file has none (verdicts and the commands that need it say so)."""
        return {} if self._intents_fault is not None else self.intents.configuration(extension_id)

    @cached_property
    def _intents_fault(self) -> BrokenState | None:
        try:
            _ = self.intents
        except BrokenState as error:
            return error
        return None

    def _without_configuration(self) -> list[Reason]:
        fault = self._intents_fault
        if fault is None:
            return []
        said = f"its stored configuration is not known and left out of this verdict: {fault.where}: {fault.message}"
        return [Reason("configuration", Outcome.NOTE, said, fault.hint)]

    def verdict(self, bundle: Bundle) -> Verdict:
        if bundle.extension_id not in self._verdicts:
            self._verdicts[bundle.extension_id] = assess(
                bundle,
                self.environment,
                self.hosts,
                configuration=self.configuration(bundle.extension_id),
                extra_reasons=[
                    *self._without_configuration(),
                    *self.providers.extra_reasons(bundle, self.environment),
                ],
            )
        return self._verdicts[bundle.extension_id]

    def state(self, extension_id: str) -> State:
        """The stored state; an extension that nothing is stored for is disabled."""
        return self.intents.state(extension_id) or State.DISABLED

    def bundle(self, extension_id: str) -> Bundle:
        """The installed, valid bundle of that id.

        Raises:
            BrokenState: it is registered and broken.
            Negative: it is not installed.
        """
        found = self.inventory.bundles.get(extension_id)
        if found is not None:
            return found
        broken = self.inventory.broken.get(extension_id)
        if broken is not None:
            raise BrokenState(
                f"{extension_id} is registered by {broken.distribution.name} and cannot be used",
                name="extension-broken",
                where=str(broken.manifest_path or broken.distribution.metadata_path),
                hint=broken.hint,
                reasons=broken.reasons,
            )
        raise self.not_installed(extension_id)

    def not_installed(self, extension_id: str) -> Negative:
        known = self.inventory.known_ids()
        near = difflib.get_close_matches(extension_id, known, n=3, cutoff=0.6)
        if not near:
            near = [i for i in known if extension_id.lower() in i]
        hint = (
            f"did you mean {' or '.join(near)}?" if near else "'vllm-hust-ext extension list' shows what is installed"
        )
        plugins = [p for p in self.inventory.plugins if p.name == extension_id]
        if plugins:
            hint = (
                f"{extension_id} is a plugin of {plugins[0].distribution.name} without a manifest:"
                " vLLM loads it by itself"
            )
        return Negative(
            f"no extension {extension_id!r} is installed",
            name="not-installed",
            where=str(self.environment.prefix),
            hint=hint,
        )
