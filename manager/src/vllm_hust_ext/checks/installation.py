"""What is installed: broken extensions, duplicate metadata, plugins outside the manager's sight, allowlists, extras."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator

from vllm_hust_ext import allowlist as plugin_list
from vllm_hust_ext import versions
from vllm_hust_ext.allowlist import Needed
from vllm_hust_ext.discovery import carriers_of
from vllm_hust_ext.distributions import Distribution, canonical_name
from vllm_hust_ext.findings import Finding, Severity
from vllm_hust_ext.intents import State
from vllm_hust_ext.session import Session


def _label(distribution: Distribution) -> str:
    return f"{distribution.name} {distribution.version or '(no version)'}"


def extensions(session: Session) -> Iterator[Finding]:
    """Broken registrations, registrations in a group that nobody reads, older revisions beside newer ones."""
    for extension_id, broken in sorted(session.inventory.broken.items()):
        for reason in broken.reasons:
            yield Finding("extensions", Severity.ERROR, f"{extension_id}: {reason}", broken.hint)
    for distribution, entry in session.inventory.mistaken:
        yield Finding(
            "extensions",
            Severity.WARNING,
            f"{_label(distribution)} registers {entry.name} in group {entry.group}, which nothing reads:"
            " it cannot be managed",
            f"tell the author of {distribution.name}: the group is vllm_hust.extension_bundles",
        )
    for bundle in session.inventory.bundles.values():
        for note in bundle.notes:
            yield Finding("extensions", Severity.NOTE, f"{bundle.extension_id}: {note}")
        if bundle.manifest.extension_version != bundle.distribution.version:
            yield Finding(
                "extensions",
                Severity.NOTE,
                f"{bundle.extension_id} says version {bundle.manifest.extension_version}, its distribution"
                f" {bundle.distribution.name} is {bundle.distribution.version}",
            )


def duplicates(session: Session) -> Iterator[Finding]:
    """Two metadata folders of one distribution: only the first counts, and that may be the stale one."""
    for distribution in session.inventory.shadowed:
        first = distribution.shadowed_by
        if first is None:
            continue
        differs = first.version != distribution.version or first.entry_points != distribution.entry_points
        relevant = any(
            e.group.startswith(("vllm.", "vllm_hust")) for e in (*first.entry_points, *distribution.entry_points)
        )
        if not (differs or relevant):
            continue
        stale = first if first.metadata_path.suffix == ".egg-info" else distribution
        yield Finding(
            "distributions",
            Severity.WARNING if relevant else Severity.NOTE,
            f"{_label(distribution)} in {distribution.metadata_path} is shadowed by {_label(first)} in"
            f" {first.metadata_path}: only the"
            " entry points of the first count",
            f"remove the stale one, probably {stale.metadata_path}",
        )


def plugins(session: Session) -> Iterator[Finding]:
    """Plugins without a manifest, two plugins of one name, extensions without a recognisable carrier."""
    inventory = session.inventory
    unmanaged = defaultdict(list)
    by_name = defaultdict(set)
    for plugin in inventory.plugins:
        by_name[(plugin.group, plugin.name)].add(plugin.distribution.name)
        if (plugin.distribution.key, plugin.name) not in inventory.owners:
            unmanaged[_label(plugin.distribution)].append(plugin.name)
    hosts = {h.distribution.name for h in session.hosts.found.values()}
    for label, names in sorted(unmanaged.items()):
        if label.split(" ")[0] not in hosts:
            yield Finding(
                "plugins",
                Severity.NOTE,
                f"{label} has plugins without a manifest: {', '.join(sorted(names))}; vLLM loads them in"
                " every process, and the manager"
                " cannot switch them off",
            )
    for (group, name), owners in sorted(by_name.items()):
        if len(owners) > 1:
            yield Finding(
                "plugins",
                Severity.WARNING,
                f"{' and '.join(sorted(owners))} both bring the plugin {name!r} of {group}; vLLM keeps"
                " only one of them",
                f"uninstall one: pip uninstall {sorted(owners)[-1]}",
            )
    for bundle in inventory.bundles.values():
        if bundle.manifest.implementation and carriers_of(bundle, inventory).source == "none":
            yield Finding(
                "plugins",
                Severity.NOTE,
                f"{bundle.extension_id}: no entry point of {bundle.distribution.name} is recognisable as its carrier",
            )


def allowlist(session: Session) -> Iterator[Finding]:
    """What an exported ``VLLM_PLUGINS`` leaves out."""
    current = os.environ.get(plugin_list.VARIABLE)
    if current is None:
        return
    needed = [
        Needed(plugin.name, plugin.group, extension_id)
        for extension_id in session.intents.in_state(State.ENABLED)
        if extension_id in session.inventory.bundles
        for plugin in carriers_of(session.inventory.bundles[extension_id], session.inventory).plugins
    ]
    hosts = {h.distribution.key: h.distribution.name for h in session.hosts.found.values()}
    answer = plugin_list.extend(current, needed, session.inventory.plugins, hosts)
    for level, text in answer.notes:
        yield Finding("allowlist", Severity.WARNING if level == "warning" else Severity.NOTE, text)
    for item in answer.added:
        yield Finding(
            "allowlist",
            Severity.WARNING,
            f"{plugin_list.VARIABLE} leaves out {item.name}, which carries the enabled {item.owner}",
            "launch with 'vllm-hust-ext run', which adds it to your list, or add it yourself",
        )


def optional_requirements(session: Session) -> Iterator[Finding]:
    """What extensions want beyond their hard requirements (extras such as ``kernels``), and whether it is there."""
    from packaging.requirements import Requirement

    quiet = {"test", "tests", "dev", "docs", "doc", "lint", "all"}
    for key in sorted({b.distribution.key for b in session.inventory.bundles.values()}):
        distribution = session.environment.active[key]
        for text in distribution.fields("Requires-Dist"):
            try:
                requirement = Requirement(text)
            except ValueError:
                continue
            extra = _extra_of(text)
            if extra is None or extra in quiet:
                continue
            installed = session.environment.active.get(canonical_name(requirement.name))
            wanted = f"{requirement.name}{requirement.specifier}"
            if installed is None:
                yield Finding(
                    "optional-requirements",
                    Severity.NOTE,
                    f"{distribution.name}[{extra}] wants {wanted}, which is not installed",
                    f"if you need that part: pip install '{distribution.name}[{extra}]' (see its README"
                    f" for where {requirement.name}"
                    " is published)",
                )
            elif versions.in_range(installed.version, str(requirement.specifier)).inside is False:
                yield Finding(
                    "optional-requirements",
                    Severity.WARNING,
                    f"{distribution.name}[{extra}] wants {wanted}; {_label(installed)} is installed",
                    f"pip install '{wanted}'",
                )
            else:
                yield Finding(
                    "optional-requirements", Severity.OK, (f"{_label(installed)} for {distribution.name}[{extra}]")
                )


def _extra_of(requirement: str) -> str | None:
    import re

    match = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", requirement)
    return match.group(1) if match else None


def providers(session: Session) -> Iterator[Finding]:
    """Providers of the manager that were left out."""
    for bundle in session.inventory.bundles.values():  # their hooks are called when hosts and verdicts are asked for
        session.verdict(bundle)
    for broken in session.providers.broken:
        yield Finding(
            "providers",
            Severity.WARNING,
            f"provider {broken.name} of {broken.distribution} is left out: {broken.reason}",
            f"update or uninstall {broken.distribution}",
        )
    for name, value, distribution in session.providers.registered:
        if all(b.name != name for b in session.providers.broken):
            yield Finding("providers", Severity.OK, f"{name} ({value}) of {distribution}")
