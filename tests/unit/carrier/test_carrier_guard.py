"""Fail open, latch, counters."""

from __future__ import annotations

import logging

import pytest

from vllm_ascend_split_batch.carrier import guard as guard_module
from vllm_ascend_split_batch.carrier.guard import NATIVE, Guard


class Body:
    """A body whose behaviour a test scripts."""

    def __init__(self, *script):
        self.script = list(script)

    def __call__(self, *args, **kwargs):
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


def native(*args, **kwargs):
    return "native", args, kwargs


def test_the_body_serves_the_call(lines):
    guard = Guard("x")
    assert guard.site("here").run(lambda a, *, b: (a, b), native, 1, b=2) == (1, 2)
    assert (guard.calls, guard.engaged, guard.failures, lines.records) == (1, 1, {}, [])


def test_a_none_is_an_answer():
    guard = Guard("x")
    assert guard.site("here").run(Body(None), native) is None
    assert guard.engaged == 1


def test_declining_is_counted_by_reason(lines):
    guard = Guard("x")
    site = guard.site("here")
    for reason in ("small", "small", "odd"):
        assert site.run(lambda *a, reason=reason: guard.decline(reason), native, 5) == ("native", (5,), {})
    assert (guard.calls, guard.engaged, guard.reasons, lines.records) == (3, 0, {"small": 2, "odd": 1}, [])


def test_a_failure_runs_the_native_path_and_is_logged_once_per_cause(lines):
    guard = Guard("x")
    site = guard.site("the door")

    def first():
        raise ValueError("one")

    def second():
        raise ValueError("two")

    def fine():
        return "fine"

    for body in (first, fine, first, fine, second, fine, first):
        assert site.run(body, native) == ("fine" if body is fine else ("native", (), {}))
    warnings = lines(logging.WARNING)
    assert len(warnings) == 2
    assert all("x: the door failed (ValueError at carrier/test_carrier_guard.py:" in line for line in warnings)
    assert all(record.exc_info[0] is ValueError for record in lines.records)
    assert sorted(guard.failures.values()) == [1, 3]
    assert guard.last_failure["where"] == "the door"
    assert guard.last_failure["cause"].endswith(": one")
    assert not guard.latched


def test_three_in_a_row_latch(lines):
    latches = []
    guard = Guard("x")
    guard.on_latch = latches.append
    site = guard.site("the door")
    one, two, three, four, five = (ValueError(str(number)) for number in range(1, 6))
    body = Body(one, two, "fine", three, four, five, "unreached")
    results = [site.run(body, native) for _ in range(7)]
    assert results[2] == "fine"
    assert results[6] == ("native", (), {})
    assert guard.latched
    assert body.script == ["unreached"]
    assert guard.reasons == {"latched": 1}
    (reason,) = latches
    assert reason.startswith("3 failures in a row in the door, the last: ValueError at ")
    assert sum("off for the rest of this process" in line for line in lines(logging.WARNING)) == 1


def test_another_sites_success_does_not_break_a_row():
    guard = Guard("x")
    decision, layer = guard.site("decision"), guard.site("layer", counted=False)
    assert layer.run(Body("fine"), native) == "fine"
    for _ in range(3):
        decision.run(Body("yes"), native)
        layer.run(Body(ValueError()), native)
    assert guard.latched
    assert (guard.calls, guard.engaged) == (3, 3)
    assert layer.run(Body("unreached"), native) == ("native", (), {})
    assert guard.reasons == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_process_passes_through(error):
    guard = Guard("x")
    with pytest.raises(error):
        guard.site("here").run(Body(error()), native)
    assert guard.failures == {}


def test_an_error_of_the_native_path_is_the_hosts_own():
    guard = Guard("x")

    def failing_native():
        raise OSError("the host's")

    with pytest.raises(OSError, match="the host's") as caught:
        guard.site("here").run(Body(ValueError()), failing_native)
    assert caught.value.__context__ is None
    assert [cause.partition(" ")[0] for cause in guard.failures] == ["ValueError"]


def test_a_failed_body_holds_nothing(lines):
    """What a failed body had allocated must be free when the native path runs, or an out-of-memory error repeats."""
    import weakref

    class Big:
        pass

    seen = []

    def body():
        big = Big()
        seen.append(weakref.ref(big))
        raise MemoryError

    guard = Guard("x")
    guard.site("here").run(body, lambda: lines.records.clear())
    guard.site("here").run(body, lambda: seen.append(seen[1]() is None))
    assert seen[2] is True


def test_a_body_with_other_parameters_than_the_host_calls(lines):
    guard = Guard("x")
    assert guard.site("here").run(lambda a: a, native, 1, new_argument=2) == ("native", (1,), {"new_argument": 2})
    assert sum(guard.failures.values()) == 1


def test_an_exception_without_a_message(lines):
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError

    guard = Guard("x")
    assert guard.site("here").run(Body(Odd()), native) == ("native", (), {})
    assert guard.last_failure["cause"].endswith("(no message)")


def test_around_makes_a_patch_factory():
    guard = Guard("x")
    replacement = guard.site("here").around(lambda self, a: guard.decline("odd") if a % 2 else ("ours", a))(native)
    assert replacement("self", 2) == ("ours", 2)
    assert replacement("self", a=3) == ("native", ("self",), {"a": 3})


def test_counters_and_a_new_start():
    guard = Guard("x")
    guard.count("bytes", 10)
    guard.count("bytes")
    guard.decline("odd")
    guard.site("here").run(Body(ValueError()), native)
    assert guard.counters == {"bytes": 11}
    guard.reset()
    assert (guard.calls, guard.engaged, guard.counters, guard.reasons, guard.failures, guard.last_failure) == (
        0, 0, {}, {}, {}, None)


def test_native_has_a_name():
    assert repr(NATIVE) == "NATIVE"


CHECKS = [
    test_a_none_is_an_answer,
    test_another_sites_success_does_not_break_a_row,
    test_an_error_of_the_native_path_is_the_hosts_own,
    lambda: test_what_ends_a_process_passes_through(SystemExit),
    test_counters_and_a_new_start,
    lambda: test_three_in_a_row_latch(Silent()),
]


class Silent(list):
    records = ()

    def __call__(self, level):
        return ["off for the rest of this process"]


MUTANTS = {
    "everything is caught": (
        "except Exception as error:\n            self.failed",
        "except BaseException as error:\n            self.failed"),
    "a success does not end a row": ("            self.in_a_row = 0\n", "            pass\n"),
    "latching takes four": ("LATCH_AFTER = 3", "LATCH_AFTER = 4"),
    "latching takes two": ("LATCH_AFTER = 3", "LATCH_AFTER = 2"),
    "a latch does nothing": ("        if guard.latched:", "        if False:"),
    "none is no answer": ("if result is NATIVE:", "if result is NATIVE or result is None:"),
    "uncounted sites count": (
        "        if self._counted:\n            guard.engaged", "        if True:\n            guard.engaged"),
    "counts survive a reset": ("self.counters: dict[str, int] = {}", "self.counters = getattr(self, 'counters', {})"),
}


@pytest.mark.parametrize("change", [None, *MUTANTS.values()], ids=["unchanged", *MUTANTS.keys()])
def test_mutants_are_noticed(mutant, monkeypatch, change):
    if change is not None:
        broken = mutant(guard_module, *change)
        monkeypatch.setitem(globals(), "Guard", broken.Guard)
        monkeypatch.setitem(globals(), "NATIVE", broken.NATIVE)
    failed = []
    for check in CHECKS:
        try:
            check()
        except (AssertionError, IndexError, pytest.fail.Exception):
            failed.append(check)
    assert bool(failed) == (change is not None)
