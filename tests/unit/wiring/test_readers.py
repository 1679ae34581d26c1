"""Readers of the rope buffers in made-up packages."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from vllm_ascend_split_batch.wiring.readers import find_in_model, reading_functions

HOST = "host_package.rope"


def module(name: str, source: str, **names) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(names)
    exec(source, made.__dict__)
    return made


ROPE = """
_cos_slice = _sin_slice = None
def update_cos_sin(positions):
    global _cos_slice, _sin_slice
    _cos_slice = _sin_slice = positions
def get_cos_and_sin_slice():
    return _cos_slice, _sin_slice
class Cached:
    def forward(self):
        return self.cache
"""


@pytest.fixture
def rope():
    return module(HOST, ROPE)


def readers(rope, *others):
    loaded = {each.__name__: each for each in (rope, *others)}
    return {function.__qualname__ for function in reading_functions(HOST, loaded)}


def model(*parts):
    return SimpleNamespace(modules=lambda: list(parts))


def test_the_keepers_themselves_are_no_readers(rope):
    assert readers(rope) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f():\n    return get_cos_and_sin_slice()", {"f"}),
        ("def f():\n    return rope.get_cos_and_sin_slice()", {"f"}),
        ("def f():\n    return rope._cos_slice", {"f"}),
        ("def f():\n    return [get_cos_and_sin_slice() for _ in range(2)]", {"f"}),
        ("def f():\n    return lambda: get_cos_and_sin_slice()", {"f"}),
        ("def f():\n    return get_cos_and_sin_slice()\ndef g():\n    return f()\ndef h():\n    g()", {"f", "g", "h"}),
        ("class A:\n    @staticmethod\n    def f():\n        return get_cos_and_sin_slice()", {"A.f"}),
        ("class A:\n    @property\n    def f(self):\n        return get_cos_and_sin_slice()", {"A.f"}),
        ("def f():\n    return update_cos_sin(1)", set()),
        ("def f(_cos_slice):\n    return _cos_slice", set()),
    ],
)
def test_readers_in_the_hosts_package(rope, source, found):
    other = module("host_package.other", source, rope=rope, get_cos_and_sin_slice=rope.get_cos_and_sin_slice)
    assert readers(rope, other) == found


def test_other_packages_are_searched_where_they_imported_the_accessor(rope):
    source = "def f():\n    return anything()"
    assert readers(rope, module("stranger", source, anything=rope.get_cos_and_sin_slice)) == {"f"}
    assert readers(rope, module("bystander", source, anything=print)) == set()


class TestModels:
    """In a model: by class, by base, by the object itself, by a wrapped function."""

    @pytest.fixture
    def loaded(self, rope):
        source = "def read(self):\n    return get_cos_and_sin_slice()"
        other = module("host_package.patch", source, get_cos_and_sin_slice=rope.get_cos_and_sin_slice)
        return {HOST: rope, other.__name__: other}

    @pytest.fixture
    def read(self, loaded):
        return loaded["host_package.patch"].read

    def test_by_class_and_base(self, loaded, read):
        base = type("Attention", (), {"forward": read})
        sub = type("Sub", (base,), {"forward": lambda self: super(sub, self).forward()})
        (found,) = find_in_model(model(base()), HOST, loaded)
        assert "Attention (" in found
        assert found.endswith(".read)")
        assert len(find_in_model(model(object(), base(), base()), HOST, loaded)) == 1
        assert "Sub" in find_in_model(model(sub()), HOST, loaded)[0]

    def test_by_the_object_itself(self, loaded, read):
        part = SimpleNamespace()
        part.forward = read.__get__(part)
        assert len(find_in_model(model(part), HOST, loaded)) == 1

    def test_through_wrappers(self, loaded, read):
        import functools

        @functools.wraps(read)
        def wrapped(self):
            return read(self)

        assert len(find_in_model(model(type("A", (), {"forward": wrapped})()), HOST, loaded)) == 1

    def test_none(self, loaded, rope):
        assert find_in_model(model(rope.Cached(), object()), HOST, loaded) == []

    def test_what_cannot_be_searched(self, loaded):
        with pytest.raises(TypeError, match="cannot be searched"):
            find_in_model(7, HOST, loaded)
