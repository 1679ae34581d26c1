"""Which extensions a launch has: stored intents and one-launch flags, checked against verdicts and each other's
needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_hust_ext import versions
from vllm_hust_ext.errors import Refused, UsageFault
from vllm_hust_ext.intents import State
from vllm_hust_ext.launch_model import Member

if TYPE_CHECKING:
    from vllm_hust_ext.discovery import Bundle
    from vllm_hust_ext.session import Session


@dataclass(frozen=True)
class Flags:
    """Wishes for one launch."""

    with_: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    no_extensions: bool = False
    allow: tuple[str, ...] = ()
    skip_incompatible: bool = False


@dataclass(frozen=True)
class Refusal:
    """Why one extension cannot be launched, with every reason and the ways out."""

    extension_id: str
    reasons: tuple[str, ...]
    ways_out: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"extension_id": self.extension_id, "reasons": list(self.reasons), "ways_out": list(self.ways_out)}


@dataclass(frozen=True)
class Selection:
    """The extensions of a launch, in the order of their ids, and where each comes from."""

    members: tuple[Member, ...]
    sources: Mapping[str, str]
    excluded: Mapping[str, str]
    skipped: tuple[Refusal, ...] = ()
    allowed: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class _Collected:
    refused: list[Refusal] = field(default_factory=list)
    skipped: list[Refusal] = field(default_factory=list)
    allowed: list[Refusal] = field(default_factory=list)


def select(session: Session, flags: Flags) -> Selection:
    """Choose the extensions of a launch.

    Raises:
        UsageFault: flags that do not go together or name nothing.
        Refused: an enabled extension does not fit, is broken or lacks what it needs; all of them are named.
    """
    sources, notes = _wanted(session, flags)
    members: dict[str, Member] = {}
    collected = _Collected()
    for extension_id in sorted(sources):
        refusal = _judge(session, extension_id)
        if refusal is not None:
            if extension_id in flags.allow and extension_id in session.inventory.bundles:
                collected.allowed.append(refusal)
            elif flags.skip_incompatible:
                collected.skipped.append(refusal)
                continue
            else:
                collected.refused.append(refusal)
                continue
        bundle = session.inventory.bundles[extension_id]
        members[extension_id] = Member(bundle, session.configuration(extension_id))
    _dependencies(session, members, flags, collected)
    if collected.refused:
        raise _refuse(collected.refused)
    excluded = _excluded(session, members, flags, {r.extension_id for r in collected.skipped})
    return Selection(
        tuple(members[i] for i in sorted(members)),
        {i: sources[i] for i in sorted(members)},
        excluded,
        tuple(collected.skipped),
        tuple(collected.allowed),
        tuple(notes),
    )


def _wanted(session: Session, flags: Flags) -> tuple[dict[str, str], list[str]]:
    if flags.no_extensions:
        if flags.with_:
            raise UsageFault("--no-extensions and --with do not go together", hint="leave one out")
        return {}, []
    both = sorted(set(flags.with_) & set(flags.without))
    if both:
        raise UsageFault(f"{', '.join(both)} is named by --with and by --without", hint="leave one out")
    notes: list[str] = []
    stored = session.intents
    sources = dict.fromkeys(stored.in_state(State.ENABLED), f"enabled in {session.origin.path}")
    for extension_id in flags.with_:
        if stored.state(extension_id) is State.MASKED:
            raise Refused(
                f"{extension_id} is masked, and a mask always wins",
                name="masked",
                where=session.origin.describe(),
                hint=f"take the mask away first: vllm-hust-ext extension disable {extension_id}",
            )
        session.bundle(extension_id)  # a name that is not installed is said as such
        sources.setdefault(extension_id, "--with")
    for extension_id in flags.without:
        if sources.pop(extension_id, None) is None:
            notes.append(f"--without {extension_id}: it would not have been launched anyway")
    for extension_id in flags.allow:
        if extension_id not in sources:
            notes.append(f"--allow {extension_id}: it is not in this launch")
    return sources, notes


def _ways_out(extension_id: str, *, can_allow: bool) -> tuple[str, ...]:
    ways = [f"--without {extension_id}", f"vllm-hust-ext extension disable {extension_id}"]
    return (
        (f"--allow {extension_id} to launch it all the same", *ways, "--skip-incompatible to start with the rest")
        if can_allow
        else (
            *ways,
            "--skip-incompatible to start with the rest",
        )
    )


def _judge(session: Session, extension_id: str) -> Refusal | None:
    """Why this extension on its own cannot be launched, or None."""
    broken = session.inventory.broken.get(extension_id)
    if broken is not None:
        return Refusal(extension_id, broken.reasons, (broken.hint, *_ways_out(extension_id, can_allow=False)))
    bundle = session.inventory.bundles.get(extension_id)
    if bundle is None:
        return Refusal(
            extension_id,
            (f"it is enabled, but no longer installed in {session.environment.prefix}",),
            (f"vllm-hust-ext extension forget {extension_id}", *_ways_out(extension_id, can_allow=False)),
        )
    blocker = bundle.manifest.activation_blocker
    if blocker is not None:
        return Refusal(extension_id, (blocker,), _ways_out(extension_id, can_allow=False))
    verdict = session.verdict(bundle)
    if verdict.fits:
        return None
    reasons = tuple(r.message for r in verdict.against)
    fixes = tuple(dict.fromkeys(r.fix for r in verdict.against if r.fix))
    return Refusal(extension_id, reasons, (*fixes, *_ways_out(extension_id, can_allow=True)))


def _refuse(refused: Sequence[Refusal]) -> Refused:
    names = ", ".join(r.extension_id for r in refused)
    reasons = [f"{r.extension_id}: {reason}" for r in refused for reason in r.reasons]
    ways = list(dict.fromkeys(way for r in refused for way in r.ways_out))
    return Refused(f"not launched: {names}", name="launch-refused", reasons=reasons, hint="; or ".join(ways))


def missing_dependencies(bundle: Bundle, members: Mapping[str, Any], session: Session) -> list[str]:
    """What ``bundle`` needs of other extensions and does not get from ``members``, one sentence each."""
    lacking: list[str] = []
    for requirement in bundle.manifest.requires_extensions:
        other = session.inventory.bundles.get(requirement.extension_id)
        if other is None:
            lacking.append(
                f"it needs {requirement.extension_id} {requirement.version_range}, which is not installed or broken"
            )
            continue
        answer = versions.in_range(other.manifest.extension_version, requirement.version_range)
        if not answer.inside:
            lacking.append(f"it needs {requirement.extension_id} {requirement.version_range}: {answer.explanation}")
        elif requirement.extension_id not in members:
            lacking.append(f"it needs {requirement.extension_id}, which is not enabled")
    return lacking


def cycle_through(extension_id: str, session: Session) -> list[str] | None:
    """A circle of requirements that contains ``extension_id``, or None."""
    path: list[str] = []

    def walk(current: str) -> list[str] | None:
        if current in path:
            return [*path[path.index(current) :], current] if current == extension_id else None
        bundle = session.inventory.bundles.get(current)
        if bundle is None:
            return None
        path.append(current)
        for requirement in bundle.manifest.requires_extensions:
            found = walk(requirement.extension_id)
            if found:
                return found
        path.pop()
        return None

    return walk(extension_id)


def _dependencies(session: Session, members: dict[str, Member], flags: Flags, collected: _Collected) -> None:
    """Take out, or refuse, what lacks a required extension; again until nothing changes."""
    changed = True
    while changed:
        changed = False
        for extension_id in sorted(members):
            lacking = missing_dependencies(members[extension_id].bundle, members, session)
            circle = cycle_through(extension_id, session)
            if circle:
                lacking.append(f"its requirements go in a circle: {' -> '.join(circle)}")
            if not lacking:
                continue
            refusal = Refusal(
                extension_id,
                tuple(lacking),
                (
                    *(
                        f"vllm-hust-ext extension enable {r.extension_id}"
                        for r in members[extension_id].manifest.requires_extensions
                        if r.extension_id not in members and r.extension_id in session.inventory.bundles
                    ),
                    *_ways_out(extension_id, can_allow=False),
                ),
            )
            del members[extension_id]
            (collected.skipped if flags.skip_incompatible else collected.refused).append(refusal)
            changed = True


def _excluded(session: Session, members: Mapping[str, Any], flags: Flags, skipped: set[str]) -> dict[str, str]:
    words: dict[str, str] = {}
    for extension_id in session.inventory.bundles:
        if extension_id in members:
            continue
        if flags.no_extensions:
            words[extension_id] = "left out by --no-extensions"
        elif extension_id in flags.without:
            words[extension_id] = "left out by --without"
        elif extension_id in skipped:
            words[extension_id] = "skipped as incompatible"
        else:
            words[extension_id] = session.state(extension_id).value
    return words
