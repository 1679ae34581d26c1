"""Patches: what is put in place, and that nothing of it is left behind."""

from __future__ import annotations

import inspect

import pytest

from vllm_ascend_split_batch.carrier import patches
from vllm_ascend_split_batch.carrier.patches import DictEntry, Patch, PatchSet
from vllm_ascend_split_batch.carrier.seams import Seam

SOURCE = """
    def greet(name, /, greeting="hello", *, loudly=False):
        "Say something."
        return f"{greeting} {name}{'!' if loudly else ''}"

    class Callable:
        def __call__(self, x):
            return ("called", x)

    class Base:
        def inherited(self, x):
            return ("base", x)

    class Door(Base):
        "A door."
        limit = 3
        ready = Callable()
        def __init__(self, colour="red"):
            self._colour = colour
        def open(self, guest, loudly=False):
            "Open for a guest."
            return (self._colour, guest, loudly)
        @staticmethod
        def static(a, b=2):
            return (a, b)
        @classmethod
        def made(cls, a):
            return (cls.__name__, a)
        @property
        def colour(self):
            "The colour."
            return self._colour
        @colour.setter
        def colour(self, value):
            self._colour = value
        other = 1

    class Heavy(Door):
        pass

    TABLE = {"a": 1}
"""


@pytest.fixture
def door(host):
    host.write("door", SOURCE)
    return host.load("door")


def seam(module, path, **more):
    return Seam(f"{module.__name__}:{path}", **more)


def around(tag):
    """A factory whose replacement shows that it ran, and what the original said."""
    return lambda original: lambda *args, **kwargs: (tag, original(*args, **kwargs))


def state(module):
    """Everything a patch could leave behind, by identity and in order."""
    return [
        [(name, id(value)) for name, value in vars(holder).items()]
        for holder in (module, module.Base, module.Door, module.Heavy)
    ] + [list(module.TABLE.items())]


def test_a_method(door):
    before = state(door)
    patch = PatchSet([Patch(seam(door, "Door.open"), around("A"))])
    patch.install()
    assert patch.installed
    assert door.Door().open("me") == ("A", ("red", "me", False))
    assert door.Door().open(guest="me", loudly=True) == ("A", ("red", "me", True))
    assert door.Heavy().open("me")[0] == "A"
    assert patch.uninstall() == {f"{door.__name__}:Door.open": "restored"}
    assert not patch.installed
    assert state(door) == before


def test_a_wrapper_looks_like_what_it_wraps(door):
    original = door.Door.open
    PatchSet([Patch(seam(door, "Door.open"), around("A"))]).install()
    wrapped = door.Door.open
    assert wrapped is not original
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(wrapped, name) == getattr(original, name)
    assert inspect.signature(wrapped) == inspect.signature(original)
    assert inspect.unwrap(wrapped) is original


def test_a_module_function(door):
    before = state(door)
    patch = PatchSet([Patch(seam(door, "greet"), around("A"))])
    patch.install()
    assert door.greet("you", loudly=True) == ("A", "hello you!")
    patch.uninstall()
    assert state(door) == before


def test_an_inherited_method_is_patched_on_the_named_class_only(door):
    before = state(door)
    patch = PatchSet([Patch(seam(door, "Door.inherited"), around("A"))])
    patch.install()
    assert door.Door().inherited(1) == ("A", ("base", 1))
    assert door.Base().inherited(1) == ("base", 1)
    patch.uninstall()
    assert "inherited" not in vars(door.Door)
    assert state(door) == before


def test_static_and_class_methods_and_properties_stay_what_they_are(door):
    before = state(door)
    patch = PatchSet([Patch(seam(door, f"Door.{name}"), around("A")) for name in ("static", "made", "colour", "ready")])
    patch.install()
    assert isinstance(vars(door.Door)["static"], staticmethod)
    assert isinstance(vars(door.Door)["made"], classmethod)
    assert door.Door.static(1) == door.Door().static(1) == ("A", (1, 2))
    assert door.Heavy.made(5) == ("A", ("Heavy", 5))
    assert door.Door().ready(4) == door.Door.ready(4) == ("A", ("called", 4))
    thing = door.Door()
    thing.colour = "blue"
    assert thing.colour == ("A", "blue")
    assert door.Door.colour.__doc__ == "The colour."
    patch.uninstall()
    assert state(door) == before


def test_values_and_dictionary_entries(door):
    before = state(door)
    patch = PatchSet([
        Patch(seam(door, "Door.limit"), lambda limit: limit + 1),
        DictEntry(seam(door, "TABLE"), "a", lambda old: (old, "new")),
        DictEntry(seam(door, "TABLE"), "b", lambda old: (old, "new")),
    ])
    patch.install()
    assert door.Door.limit == 4
    assert door.TABLE == {"a": (1, "new"), "b": (None, "new")}
    assert set(patch.uninstall().values()) == {"restored"}
    assert state(door) == before


def test_an_absent_attribute_is_added_and_removed(door):
    before = state(door)
    patch = PatchSet([Patch(seam(door, "Door.helper", absent=True), lambda nothing: lambda self: (nothing, "helped"))])
    patch.install()
    assert door.Door().helper() == (None, "helped")
    with pytest.raises(LookupError, match="exists already"):
        PatchSet([Patch(seam(door, "Door.helper", absent=True), lambda _: 1)]).install()
    patch.uninstall()
    assert state(door) == before


@pytest.mark.parametrize("broken", ["factory", "missing", "not callable", "module", "read only"])
def test_all_or_none(door, broken):
    def failing(original):
        raise RuntimeError("no")

    last = {
        "factory": Patch(seam(door, "Door.static"), failing),
        "missing": Patch(seam(door, "Door.shut"), around("A")),
        "not callable": Patch(seam(door, "Door.static"), lambda original: None),
        "module": Patch(Seam("no_such_module:x"), around("A")),
        "read only": Patch(Seam("builtins:int.bit_length"), around("A")),
    }[broken]
    before = state(door)
    patch = PatchSet([
        Patch(seam(door, "Door.open"), around("A")),
        Patch(seam(door, "Door.inherited"), around("A")),
        DictEntry(seam(door, "TABLE"), "b", lambda old: 1),
        last,
    ])
    with pytest.raises((RuntimeError, LookupError, TypeError)):
        patch.install()
    assert not patch.installed
    assert state(door) == before
    assert patch.uninstall() == {}


def test_twice_is_once(door):
    before = state(door)
    patch = PatchSet([Patch(seam(door, "Door.open"), around("A"))])
    patch.install()
    patch.install()
    assert door.Door().open(1) == ("A", ("red", 1, False))
    patch.uninstall()
    assert patch.uninstall() == {}
    assert state(door) == before
    patch.install()
    assert door.Door().open(1)[0] == "A"


def test_a_set_is_extended_all_or_none_and_left_as_one(door):
    before = dict(vars(door.Door))
    laid = PatchSet([Patch(Seam(f"{door.__name__}:Door.open"), lambda original: lambda *args: "ours")])
    laid.install()
    good = Patch(Seam(f"{door.__name__}:Door.other"), lambda value: value + 1)
    missing = Patch(Seam(f"{door.__name__}:Door.nowhere"), lambda value: value)
    with pytest.raises(LookupError):
        laid.extend([good, missing])
    assert door.Door.other == 1
    laid.extend([good])
    assert (door.Door.other, len(laid.patches)) == (2, 2)
    assert set(laid.uninstall().values()) == {"restored"}
    assert dict(vars(door.Door)) == before


def test_the_first_to_come_leaves_first(door):
    before = state(door)
    first, second = (PatchSet([Patch(seam(door, "Door.open"), around(tag))]) for tag in "AB")
    first.install()
    second.install()
    assert door.Door().open(1) == ("B", ("A", ("red", 1, False)))
    assert set(first.uninstall().values()) == {"passing through"}
    assert door.Door().open(1) == ("B", ("red", 1, False))
    assert set(second.uninstall().values()) == {"restored"}
    assert state(door) == before


def test_values_leave_in_any_order(door):
    before = state(door)
    first, second = (PatchSet([Patch(seam(door, "Door.limit"), lambda limit: limit * 10)]) for _ in range(2))
    first.install()
    second.install()
    assert door.Door.limit == 300
    first.uninstall()
    second.uninstall()
    assert state(door) == before


def test_a_wrapper_of_somebody_else_on_top_is_respected(door):
    before = state(door)
    original = door.Door.open
    patch = PatchSet([Patch(seam(door, "Door.open"), around("A"))])
    patch.install()
    ours = door.Door.open

    def foreign(self, *args, **kwargs):
        return ("F", ours(self, *args, **kwargs))

    door.Door.open = foreign
    assert patch.uninstall() == {f"{door.__name__}:Door.open": "passing through"}
    assert door.Door.open is foreign
    assert door.Door().open(1) == ("F", ("red", 1, False))
    # A second set comes and goes above the foreign wrapper.
    above = PatchSet([Patch(seam(door, "Door.open"), around("B"))])
    above.install()
    assert door.Door().open(1) == ("B", ("F", ("red", 1, False)))
    assert set(above.uninstall().values()) == {"restored"}
    assert door.Door.open is foreign
    # The foreign wrapper leaves; the next of ours to come and go takes the dead entry along.
    door.Door.open = ours
    assert door.Door().open(1) == ("red", 1, False)
    above.install()
    above.uninstall()
    assert door.Door.open is original
    assert state(door) == before


def test_a_wrapper_of_somebody_else_underneath_is_respected(door):
    def foreign(self, *args, **kwargs):
        return "foreign"

    door.Door.open = foreign
    patch = PatchSet([Patch(seam(door, "Door.open"), around("A"))])
    patch.install()
    assert door.Door().open(1) == ("A", "foreign")
    patch.uninstall()
    assert door.Door.open is foreign


def test_a_bound_method_kept_from_before_passes_through_afterwards(door):
    patch = PatchSet([Patch(seam(door, "Door.open"), around("A"))])
    patch.install()
    kept = door.Door().open
    assert kept(1)[0] == "A"
    patch.uninstall()
    assert kept(1) == ("red", 1, False)


def test_a_copy_of_our_marks_by_functools_wraps_is_not_taken_for_ours(door):
    import functools

    patch = PatchSet([Patch(seam(door, "Door.open"), around("A"))])
    patch.install()
    ours = door.Door.open
    door.Door.open = functools.wraps(ours)(lambda self, *args: ("F", ours(self, *args)))
    patch.uninstall()
    assert door.Door().open(1) == ("F", ("red", 1, False))


MUTANTS = {
    "inherited attributes stay": (
        "        if value is ABSENT:\n            delattr(self.holder, self.name)\n        else:",
        "        if value is not ABSENT:"),
    "added entries stay": (
        "        if value is ABSENT:\n            del self.holder[self.name]\n        else:",
        "        if value is not ABSENT:"),
    "entries do not pass through": ("        target = original\n", "        pass\n"),
    "the top is restored although another lies on it": (
        "while layers and layers[-1].left and place.own() is layers[-1].installed:",
        "while layers and layers[-1].left:"),
    "only one layer is uncovered": (
        "while layers and layers[-1].left and place.own() is layers[-1].installed:",
        "if layers and layers[-1].left and place.own() is layers[-1].installed:"),
    "a failed set stays half installed": ("for _, layer in reversed(laid):", "for _, layer in ():"),
    "static methods become plain": ('    if kind == "staticmethod" or unbound:', "    if False:"),
    "no name is kept": ("    @functools.wraps(original)\n", ""),
}

CHECKS = [
    test_a_method,
    test_a_wrapper_looks_like_what_it_wraps,
    test_an_inherited_method_is_patched_on_the_named_class_only,
    test_static_and_class_methods_and_properties_stay_what_they_are,
    test_values_and_dictionary_entries,
    lambda door: test_all_or_none(door, "factory"),
    test_the_first_to_come_leaves_first,
    test_a_wrapper_of_somebody_else_on_top_is_respected,
]


def failures(door_source, host, numbers):
    failed = []
    for check in CHECKS:
        name = f"door_{next(numbers)}"
        host.write(name, door_source)
        try:
            check(host.load(name))
        except AssertionError:
            failed.append(check)
    return failed


@pytest.mark.parametrize("change", [None, *MUTANTS.values()], ids=["unchanged", *MUTANTS.keys()])
def test_mutants_are_noticed(host, mutant, monkeypatch, change):
    import itertools

    if change is not None:
        broken = mutant(patches, *change)
        for name in ("Patch", "DictEntry", "PatchSet"):
            monkeypatch.setitem(globals(), name, getattr(broken, name))
    assert bool(failures(SOURCE, host, itertools.count())) == (change is not None)
