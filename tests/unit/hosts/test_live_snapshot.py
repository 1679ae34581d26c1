"""The comparison of the host before and after: whatever is left over is named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tools.hosts.live_child import Snapshot


@pytest.fixture
def host() -> Iterator[ModuleType]:
    module = ModuleType("vllm.some_room")
    content = {"__module__": module.__name__, "open": lambda self: None, "registry": {}, "kinds": []}
    module.Door = type("Door", (), content)  # type: ignore[attr-defined]
    module.table = {"a": object()}  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def replace_method(module: Any) -> None:
    module.Door.open = lambda self: None


def remove_method(module: Any) -> None:
    del module.Door.open


def add_attribute(module: Any) -> None:
    module.Door.marker = True


def add_entry(module: Any) -> None:
    module.table["b"] = 1


def replace_entry(module: Any) -> None:
    module.table["a"] = object()


def fill_class_registry(module: Any) -> None:
    module.Door.registry["x"] = object()


def append(module: Any) -> None:
    module.Door.kinds.append(object())


CHANGES = {
    replace_method: "vllm.some_room.Door.open replaced",
    remove_method: "vllm.some_room.Door.open removed",
    add_attribute: "vllm.some_room.Door.marker added",
    add_entry: "vllm.some_room.table.b added",
    replace_entry: "vllm.some_room.table.a replaced",
    fill_class_registry: "vllm.some_room.Door.registry.x added",
    append: "vllm.some_room.Door.kinds['0'] added",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_named(host: ModuleType, change: Any) -> None:
    before = Snapshot(())
    assert before.differences() == []
    change(host)
    assert before.differences() == [CHANGES[change]]


def test_a_change_that_is_taken_back_is_none(host: Any) -> None:
    before, original = Snapshot(()), host.Door.open
    host.Door.open = lambda self: None
    host.Door.open = original
    assert before.differences() == []


def test_a_module_imported_meanwhile_is_no_change(host: Any) -> None:
    before = Snapshot(())
    host.submodule = ModuleType("vllm.some_room.submodule")
    assert before.differences() == []


def test_modules_of_seams_elsewhere_are_looked_at_too() -> None:
    module: Any = ModuleType("somewhere_else")
    module.value = 1
    sys.modules[module.__name__] = module
    try:
        blind, seeing = Snapshot(()), Snapshot({module.__name__})
        module.value = 2
        assert blind.differences() == []
        assert seeing.differences() == ["somewhere_else.value replaced"]
    finally:
        del sys.modules[module.__name__]
