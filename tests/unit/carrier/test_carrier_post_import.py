"""Callbacks after imports."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import threading
import types

import pytest

from vllm_ascend_split_batch.carrier import post_import
from vllm_ascend_split_batch.carrier.post_import import when_imported


@pytest.fixture
def calls():
    return []


def awaiting():
    return post_import._finder in sys.meta_path


def test_after_the_import_not_before(host, calls):
    name = host.write("late", "state = 'half'\nstate = 'whole'")
    when_imported([name], lambda: calls.append(sys.modules[name].state))
    assert calls == []
    assert name not in sys.modules
    assert awaiting()
    host.load("late")
    assert calls == ["whole"]
    assert not awaiting()
    importlib.reload(sys.modules[name])
    assert calls == ["whole"]


def test_at_once_when_imported_already(host, calls):
    name = host.write("early", "")
    host.load("early")
    when_imported([name], lambda: calls.append(1))
    assert calls == [1]
    assert not awaiting()


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_all_of_several(host, calls, order):
    names = [host.write(letter, "") for letter in "ab"]
    when_imported(names, lambda: calls.append(1))
    host.load(order[0])
    assert calls == []
    host.load(order[1])
    assert calls == [1]


def test_modules_that_import_each_other(host, calls):
    """The inner module ends while the outer one is half imported: only the end of the outer one counts."""
    outer = host.write("outer", f"from {host.package} import inner\nready = True")
    inner = host.write("inner", f"import {host.package}.outer")
    when_imported([outer, inner], lambda: calls.append(hasattr(sys.modules[outer], "ready")))
    host.load("outer")
    assert calls == [True]


def test_a_module_that_fails_half_way_does_not_count(host, calls):
    name = host.write("frail", """
        import os
        if "FRAIL" in os.environ:
            raise ValueError("not today")
    """)
    when_imported([name], lambda: calls.append(1))
    os.environ["FRAIL"] = "1"
    try:
        with pytest.raises(ValueError, match="not today"):
            host.load("frail")
    finally:
        del os.environ["FRAIL"]
    assert calls == []
    assert name not in sys.modules
    host.load("frail")
    assert calls == [1]


def test_awaited_in_the_middle_of_its_import(host, calls):
    hook = host.write("hook", "")
    name = host.write("middle", f"import {hook}\n{hook}.arm()\ndone = True")
    host.write("next_one", "")
    host.load("hook").arm = lambda: when_imported([name], lambda: calls.append(sys.modules[name].done))
    host.load("middle")
    assert calls == []  # its loader had started before anybody awaited it
    host.load("next_one")
    assert calls == [True]


def test_a_module_put_there_by_hand(host, calls, monkeypatch):
    when_imported(["made_by_hand"], lambda: calls.append(1))
    monkeypatch.setitem(sys.modules, "made_by_hand", types.ModuleType("made_by_hand"))
    host.write("another", "")
    host.load("another")
    assert calls == [1]


def test_cancel(host, calls):
    name = host.write("late", "")
    waiter = when_imported([name], lambda: calls.append(1))
    waiter.cancel()
    waiter.cancel()
    assert not awaiting()
    host.load("late")
    assert calls == []


def test_an_error_of_the_callback_does_not_reach_the_import(host, lines):
    name = host.write("late", "value = 7")

    def fail():
        raise RuntimeError("ours")

    when_imported([name], fail)
    assert host.load("late").value == 7
    (record,) = lines.records
    assert record.exc_info[0] is RuntimeError


def test_several_waiters_of_one_module(host, calls):
    name = host.write("late", "")
    for number in range(3):
        when_imported([name], lambda number=number: calls.append(number))
    host.load("late")
    assert calls == [0, 1, 2]


def test_the_module_sees_its_real_loader(host):
    name = host.write("late", "loader_seen = __loader__, __spec__.loader")
    when_imported([name], lambda: None)
    probed = importlib.util.find_spec(name)
    assert probed.loader.get_source(name).startswith("loader_seen")
    module = host.load("late")
    real = importlib.machinery.SourceFileLoader
    assert [type(loader) for loader in (*module.loader_seen, module.__loader__, module.__spec__.loader)] == [real] * 4
    assert inspect.getsource(module).startswith("loader_seen")


def test_names_that_do_not_exist(host):
    when_imported([f"{host.package}.nowhere"], lambda: None)
    with pytest.raises(ModuleNotFoundError):
        host.load("nowhere")
    assert importlib.util.find_spec(f"{host.package}.nowhere") is None


def test_two_threads(host, calls):
    names = [host.write(f"module_{n}", "import time; time.sleep(0.02)") for n in range(2)]
    when_imported(names, lambda: calls.append(1))
    threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    host.write("one_more", "")
    host.load("one_more")  # both may have ended at the same moment; the next import notices at the latest
    assert calls == [1]


def test_a_forked_child_still_waits(host, calls):
    name = host.write("late", "")
    when_imported([name], lambda: calls.append(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            host.load("late")
            code = 0 if calls == [1] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert calls == []


HALF = 'return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)'
MUTANTS = {
    "half imported counts": (HALF, "return module is not None", test_awaited_in_the_middle_of_its_import),
    "any of several": ("if all(name == just", "if any(name == just", lambda h, c: test_all_of_several(h, c, "ab")),
    "before instead of after": (
        "        self._loader.exec_module(module)\n        _finder.check(just_executed=module.__name__)",
        "        _finder.check(just_executed=module.__name__)\n        self._loader.exec_module(module)",
        test_after_the_import_not_before,
    ),
    "failed imports count": (
        "        self._loader.exec_module(module)\n        _finder.check(just_executed=module.__name__)",
        "        try: self._loader.exec_module(module)\n        finally: _finder.check(just_executed=module.__name__)",
        test_a_module_that_fails_half_way_does_not_count,
    ),
    "the finder stays": (
        "if not self.waiters and self in sys.meta_path:", "if False:", test_after_the_import_not_before),
    "the loader stays wrapped": (
        "            module.__spec__.loader = self._loader\n        module.__loader__ = self._loader\n",
        "            pass\n", lambda h, c: test_the_module_sees_its_real_loader(h),
    ),
    "cancelling does nothing": (
        "        _finder.remove(self)\n\n", "        pass\n\n", test_cancel),
}


@pytest.mark.parametrize(("old", "new", "check"), MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_noticed(host, calls, mutant, monkeypatch, old, new, check):
    broken = mutant(post_import, old, new)
    monkeypatch.setitem(globals(), "post_import", broken)
    monkeypatch.setitem(globals(), "when_imported", broken.when_imported)
    with pytest.raises(AssertionError):
        check(host, calls)
