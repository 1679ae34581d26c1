"""Verification of seams on live objects."""

from __future__ import annotations

import pytest

from vllm_ascend_split_batch.carrier import seams
from vllm_ascend_split_batch.carrier.seams import Calls, Seam, verify

SOURCE = """
    import functools

    def module_function(a, b=1, *rest, c, d=2, **options):
        helper(a); lib.deep.helper(b)
        def inner():
            return other.helper(c)
        return [helper(x) for x in rest], inner, helpers(d)

    def decorated(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)
        return wrapper

    class Base:
        def inherited(self, x, y): ...
        limit = 3

    class Door(Base):
        def open(self, guest, loudly=False): return "opened"
        @decorated
        def wrapped(self, p, q): ...
        @staticmethod
        def static(a, b): ...
        @classmethod
        def made(cls, a): ...
        @property
        def colour(self): return "red"
        def anything(*args, **kwargs): ...
        class Handle:
            def turn(self, degrees): ...
    VALUE = {"a": 1}
"""


@pytest.fixture
def door(host):
    name = host.write("door", SOURCE)
    host.load("door")
    return name


def status(seam):
    return verify(seam).status


@pytest.mark.parametrize(
    ("path", "parameters", "kind"),
    [
        ("module_function", ("a", "b", "*rest", "c", "d", "**options"), None),
        ("Door.open", ("guest", "loudly"), None),
        ("Door.open", ("guest", "loudly"), "function"),
        ("Door.inherited", ("x", "y"), None),
        ("Door.wrapped", ("p", "q"), None),
        ("Door.static", ("a", "b"), "staticmethod"),
        ("Door.made", ("a",), "classmethod"),
        ("Door.anything", ("*args", "**kwargs"), None),
        ("Door.Handle.turn", ("degrees",), None),
        ("Door.colour", (), "property"),
    ],
)
def test_parameters(door, path, parameters, kind):
    assert verify(Seam(f"{door}:{path}", parameters=parameters, kind=kind)) == seams.SeamStatus(
        f"{door}:{path}", "matched"
    )
    assert status(Seam(f"{door}:{path}", parameters=(*parameters, "extra"), kind=kind)) == "differs"
    if len(parameters) > 1:
        assert status(Seam(f"{door}:{path}", parameters=tuple(reversed(parameters)), kind=kind)) == "differs"
        assert status(Seam(f"{door}:{path}", parameters=parameters[:-1], kind=kind)) == "differs"
        assert status(Seam(f"{door}:{path}", parameters=(*parameters[:-1], "..."), kind=kind)) == "matched"
        assert status(Seam(f"{door}:{path}", parameters=(*parameters[1:], "..."), kind=kind)) == "differs"
    assert status(Seam(f"{door}:{path}", parameters=(*parameters, "..."), kind=kind)) == "matched"


def test_what_differs_is_said(door):
    found = verify(Seam(f"{door}:Door.open", parameters=("guest",)))
    assert found.detail == "parameters are (guest, loudly), expected (guest)"
    found = verify(Seam(f"{door}:Door.static", parameters=("a", "b")))
    assert found.detail == "is a staticmethod, expected a function"
    found = verify(Seam(f"{door}:Door.open", kind="property"))
    assert found.detail == "is a function, expected a property"


@pytest.mark.parametrize("path", ["module_function", "Door.open", "Door.inherited", "Door.limit", "VALUE", "Door"])
def test_exists_and_absent(door, path):
    assert status(Seam(f"{door}:{path}")) == "matched"
    found = verify(Seam(f"{door}:{path}", absent=True))
    assert found.status == "differs"
    assert found.detail.startswith("exists (")


@pytest.mark.parametrize("path", ["nothing", "Door.shut", "Window.open", "Door.Knob.turn"])
def test_missing_and_absent(door, path):
    found = verify(Seam(f"{door}:{path}"))
    assert found.status == "missing"
    assert "has no" in found.detail
    assert status(Seam(f"{door}:{path}", absent=True)) == "matched"


def test_a_module_that_is_not_imported(host):
    name = host.write("later", "x = 1")
    for absent in (False, True):
        found = verify(Seam(f"{name}:x", absent=absent))
        assert (found.status, found.detail) == ("missing", f"module {name} is not imported")


@pytest.mark.parametrize(
    ("callee", "count"),
    [("helper", 4), ("lib.deep.helper", 1), ("deep.helper", 1), ("other.helper", 1), ("helpers", 1), ("print", 0)],
)
def test_call_count(door, callee, count):
    assert status(Seam(f"{door}:module_function", calls=Calls(callee, count))) == "matched"
    found = verify(Seam(f"{door}:module_function", calls=Calls(callee, count + 1)))
    assert (found.status, found.detail) == ("differs", f"calls {callee} {count} times, expected {count + 1}")


def test_calls_of_something_without_source():
    found = verify(Seam("math:cos", calls=Calls("x", 0)))
    assert found.status == "differs"
    assert found.detail.startswith("could not be examined: TypeError")


def test_a_host_object_that_raises_when_looked_at(host):
    name = host.write("trap", """
        class Meta(type):
            def __getattr__(cls, name):
                raise RuntimeError("do not touch")
        class Trap(metaclass=Meta):
            pass
    """)
    host.load("trap")
    found = verify(Seam(f"{name}:Trap.inner.method"))
    assert (found.status, found.detail) == ("differs", "could not be examined: RuntimeError: do not touch")


@pytest.mark.parametrize("target", ["module", ":x", "module:", "a.b:c d", "a:b.", "a:1x"])
def test_targets_are_checked_when_declared(target):
    with pytest.raises(ValueError, match=r"is not of the form 'package\.module:Class\.attribute'"):
        Seam(target)


def test_one_statement_a_seam():
    with pytest.raises(ValueError, match="one statement a seam"):
        Seam("a:b", parameters=("x",), absent=True)
    assert [Seam("a:b", **more).check for more in (
        {}, {"parameters": ()}, {"absent": True}, {"calls": Calls("x", 1)}
    )] == ["exists", "parameters", "absent", "call_count"]


MUTANTS = {
    "self is a parameter": ("parameters = parameters[1:]", "parameters = parameters[0:]"),
    "no stars": ('stars.get(p.kind, "") + p.name', "p.name"),
    "a set of parameters": ("return found == stated", "return set(found) == set(stated)"),
    "a prefix of parameters": ("return found == stated", "return found[:len(stated)] == stated"),
    "kinds do not matter": ("if wanted is not None and kind != wanted:", "if False:"),
    "any ending counts": ('name.endswith("." + callee)', "name.endswith(callee)"),
}


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_noticed(door, mutant, change):
    broken = mutant(seams, *change)

    def answers(module):
        cases = [
            module.Seam(f"{door}:Door.open", parameters=("guest", "loudly")),
            module.Seam(f"{door}:Door.open", parameters=("loudly", "guest")),
            module.Seam(f"{door}:Door.open", parameters=("guest",)),
            module.Seam(f"{door}:Door.anything", parameters=("*args", "**kwargs")),
            module.Seam(f"{door}:Door.static", parameters=("a", "b")),
            module.Seam(f"{door}:module_function", calls=module.Calls("elper", 0)),
        ]
        return [module.verify(case).status for case in cases]

    assert answers(seams) == ["matched", "differs", "differs", "matched", "differs", "matched"]
    assert answers(broken) != answers(seams)
