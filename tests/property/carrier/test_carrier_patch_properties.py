"""Patches of several carriers and of strangers, coming and going in any order."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.mutants import mutant as mutant
from vllm_ascend_split_batch.carrier import patches
from vllm_ascend_split_batch.carrier.seams import Seam

MODULE = "fake_host_of_patch_properties"
PLACES = ("function", "Door.method", "Door.inherited", "Door.static", "Door.made", "Door.colour")


def fresh_host() -> types.ModuleType:
    module = types.ModuleType(MODULE)

    def function(x: Any) -> Any:
        return [x]

    class Base:
        def inherited(self, x: Any) -> Any:
            return [x]

    class Door(Base):
        def method(self, x: Any) -> Any:
            return [x]

        @staticmethod
        def static(x: Any) -> Any:
            return [x]

        @classmethod
        def made(cls, x: Any) -> Any:
            return [x]

        @property
        def colour(self) -> Any:
            return [7]

    module.function, module.Base, module.Door, module.TABLE = function, Base, Door, {"a": 1}  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
    return module


def state(module: Any) -> Any:
    return [
        {name: id(value) for name, value in vars(holder).items()} for holder in (module, module.Base, module.Door)
    ] + [dict(module.TABLE)]


def observe(module: Any, place: str) -> Any:
    """What the host does at a place: the tags of the live wrappers, outermost first, then the argument."""
    if place == "function":
        return module.function(7)
    name = place.partition(".")[2]
    door = module.Door()
    return door.colour if name == "colour" else getattr(door, name)(7)


def tagging(tag: str) -> Any:
    return lambda original: lambda *args, **kwargs: [tag, *original(*args, **kwargs)]


class Stranger:
    """Somebody else's wrapper of a plain function or method, put in and taken out by plain assignment."""

    def __init__(self, module: Any, place: str, tag: str) -> None:
        self.holder = module if place == "function" else module.Door
        self.name = place.rpartition(".")[2]
        self.below = vars(self.holder).get(self.name)
        visible = getattr(self.holder, self.name)
        self.wrapper = lambda *args, **kwargs: [tag, *visible(*args, **kwargs)]
        setattr(self.holder, self.name, self.wrapper)

    def on_top(self) -> bool:
        return vars(self.holder).get(self.name) is self.wrapper

    def leave(self) -> None:
        if self.below is None:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, self.below)


def play(module: Any, moves: list[tuple[int, tuple[str, ...]]], set_class: Any, patch_class: Any) -> None:
    """Each move toggles one actor: 0 to 3 are patch sets over some places, 4 and 5 strangers over the first of them."""
    before = state(module)
    expected: dict[str, list[str]] = {place: [] for place in PLACES}
    sets: dict[int, Any] = {}
    strangers: dict[int, tuple[Stranger, str]] = {}

    def check() -> None:
        for place in PLACES:
            assert observe(module, place) == [*reversed(expected[place]), 7], (place, expected[place])

    def leave(actor: int) -> None:
        tag = str(actor)
        if actor in sets:
            outcome = sets.pop(actor).uninstall()
            for label in outcome:
                expected[label.partition(":")[2]].remove(tag)
        elif actor in strangers and strangers[actor][0].on_top():
            stranger, place = strangers.pop(actor)
            stranger.leave()
            expected[place].remove(tag)

    for actor, places in moves:
        tag = str(actor)
        if actor in sets or actor in strangers:
            leave(actor)
        elif actor < 4:
            # What a stranger put above an entry of ours hides what lies below it; its tag is then at the end.
            made = set_class([patch_class(Seam(f"{MODULE}:{place}"), tagging(tag)) for place in dict.fromkeys(places)])
            made.install()
            sets[actor] = made
            for place in dict.fromkeys(places):
                expected[place].append(tag)
        elif places[0] in ("function", "Door.method", "Door.inherited"):
            strangers[actor] = (Stranger(module, places[0], tag), places[0])
            expected[places[0]].append(tag)
        check()
    def come_and_leave() -> dict[str, str]:
        """A dead entry that a stranger had covered goes with the next set that comes and leaves."""
        made = set_class([patch_class(Seam(f"{MODULE}:{place}"), tagging("last")) for place in PLACES])
        made.install()
        return dict(made.uninstall())

    swept = False
    while sets or strangers:
        present = len(sets) + len(strangers)
        for actor in [*sets, *strangers]:
            leave(actor)
            check()
        if len(sets) + len(strangers) == present:
            assert not swept, "a stranger is covered for good"
            come_and_leave()
            check()
        swept = len(sets) + len(strangers) == present
    assert set(come_and_leave().values()) == {"restored"}
    assert state(module) == before


moves = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.sampled_from(PLACES), min_size=1, max_size=4).map(tuple)), max_size=14
)


def with_known_orders(test: Any) -> Any:
    """Orders that each of the mutants below fails, and a dead entry that remains between two strangers."""
    sets = [(number, ("function", "Door.inherited")) for number in range(4)]
    for order in (sets, [sets[0], (4, ("function",)), sets[0]], [(4, ("function",)), sets[0], (5, ("function",))]):
        test = example(moves=order)(test)
    return test


@settings(max_examples=200)
@with_known_orders
@given(moves=moves)
def test_any_order_of_coming_and_going(moves):
    play(fresh_host(), moves, patches.PatchSet, patches.Patch)


@settings(max_examples=60)
@given(order=st.permutations(range(5)), keys=st.lists(st.sampled_from("ab"), min_size=5, max_size=5))
def test_dictionary_entries_in_any_order(order, keys):
    module = fresh_host()
    seam = Seam(f"{MODULE}:TABLE")
    before = dict(module.TABLE)
    sets = []
    for number, key in enumerate(keys):
        made = patches.PatchSet([patches.DictEntry(seam, key, lambda old, number=number: (number, old))])
        made.install()
        sets.append(made)
    for number in order:
        sets[number].uninstall()
    assert before == module.TABLE


MUTANTS = {
    "only one layer is uncovered": (
        "while layers and layers[-1].left and place.own() is layers[-1].installed:",
        "if layers and layers[-1].left and place.own() is layers[-1].installed:",
    ),
    "strangers are overwritten": (
        "while layers and layers[-1].left and place.own() is layers[-1].installed:", "while layers and layers[-1].left:"
    ),
    "entries do not pass through": ("        target = original\n", "        pass\n"),
    "the original is what lies there itself": (
        "installed, pass_through = _replacement(patch, place, visible)",
        "installed, pass_through = _replacement(patch, place, below)",
    ),
}


def fails(module):
    @settings(max_examples=200, database=None, report_multiple_bugs=False)
    @with_known_orders
    @given(moves=moves)
    def attempt(moves):
        play(fresh_host(), moves, module.PatchSet, module.Patch)

    try:
        attempt()
    except Exception:  # a wrong answer or a crash: either is noticed
        return True
    return False


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_noticed(mutant, change):
    assert fails(mutant(patches, *change))


def test_an_unchanged_copy_passes(mutant):
    assert not fails(mutant(patches, "class PatchSet:", "class PatchSet:  # the same"))
