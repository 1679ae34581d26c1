"""Extensions x their intents x the user's own environment and command -> a launch plan. Pure: it reads and starts
nothing.

Every item of the plan says who contributed it; everything that was left as the user had it says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_hust_ext.discovery import carriers_of
from vllm_hust_ext.launch_arguments import compose_arguments
from vllm_hust_ext.launch_environment import LaunchEnvironment, means_on
from vllm_hust_ext.launch_model import Conflict, LaunchPlan, Member, Note, Request, leave_out

__all__ = ["LaunchPlan", "Member", "Request", "make_plan"]


def make_plan(request: Request) -> LaunchPlan:
    """Compose a launch. Conflicts are part of the plan, so that a dry run can show it whole."""
    conflicts: list[Conflict] = []
    notes: list[Note] = []
    environment = LaunchEnvironment(request, conflicts, notes)
    environment.extensions()
    environment.manager()
    environment.plugins()
    environment.ray()
    command, arguments = compose_arguments(request, conflicts, notes)
    conflicts += _claims(request.members)
    conflicts += _plugin_names(request)
    notes += _exported_gates(request)
    return LaunchPlan(
        tuple(m.bundle.extension_id for m in request.members),
        tuple(command),
        tuple(request.command),
        tuple(sorted(environment.items, key=lambda i: i.name)),
        tuple(arguments),
        tuple(dict.fromkeys(notes)),
        tuple(conflicts),
    )


def _claims(members: Sequence[Member]) -> list[Conflict]:
    found: list[Conflict] = []
    taken: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for member in members:
        for claim in member.manifest.resource_claims:
            owner = member.bundle.extension_id
            for other, mode in taken.get((claim.scope, claim.resource), []):
                if other != owner and "exclusive" in (mode, claim.mode):
                    found.append(
                        Conflict(
                            claim.resource,
                            f"{other} claims {claim.resource} in {claim.scope} ({mode}), and so does"
                            f" {owner} ({claim.mode})",
                            leave_out(other, owner),
                        )
                    )
            taken.setdefault((claim.scope, claim.resource), []).append((owner, claim.mode))
    return list(dict.fromkeys(found))


def _plugin_names(request: Request) -> list[Conflict]:
    """Two distributions with a plugin of one name: vLLM keeps only one of them."""
    found: list[Conflict] = []
    for member in request.members:
        for plugin in carriers_of(member.bundle, request.inventory).plugins:
            for other in request.inventory.plugins:
                if (other.group, other.name) == (
                    plugin.group,
                    plugin.name,
                ) and other.distribution.key != plugin.distribution.key:
                    owners = request.inventory.owners.get((other.distribution.key, other.name), ())
                    who = f"{', '.join(owners)} ({other.distribution.name})" if owners else other.distribution.name
                    first, second = sorted([f"{member.bundle.extension_id} ({plugin.distribution.name})", who])
                    found.append(
                        Conflict(
                            plugin.name,
                            f"{first} and {second} both bring the vLLM plugin {plugin.name!r}, and vLLM"
                            " keeps only one of them",
                            (f"pip uninstall {other.distribution.name}", *leave_out(member.bundle.extension_id)),
                        )
                    )
    unique: dict[str, Conflict] = {}
    for conflict in found:
        unique.setdefault(conflict.text, conflict)
    return list(unique.values())


def _exported_gates(request: Request) -> list[Note]:
    """Extensions outside this launch whose own variables the user exported: they would run all the same."""
    launched = {name for m in request.members for name in m.manifest.activation.environment}
    notes = []
    for extension_id, word in sorted(request.excluded.items()):
        bundle = request.inventory.bundles.get(extension_id)
        if bundle is None:
            continue
        for name in bundle.manifest.activation.environment:
            value = request.variables.get(name)
            if name not in launched and means_on(value):
                notes.append(
                    Note(
                        "warning",
                        f"{extension_id} is {word}, but you exported {name}={value}, which may switch it"
                        " on; unset it to keep it off",
                    )
                )
    return notes
