"""A carrier from its load to its uninstallation."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import vllm_ascend_split_batch
from vllm_ascend_split_batch.carrier import Carrier, Choice, Flag, Integer, Seam, engine_report

SOURCE = Path(vllm_ascend_split_batch.__file__).parents[1]
LINE = "cascade plugin loaded (gate={VLLM_HUST_TEST:d}, least={VLLM_HUST_TEST_MIN})"

HOST = """
    class Door:
        def open(self, guest, loudly=False):
            return ("opened", guest, loudly)
        def shut(self):
            return "shut"
"""
BINDING = """
    from vllm_ascend_split_batch.carrier import Refused

    def patches(context):
        site = context.guard.site("Door.open")
        def body(door, guest, *args, **kwargs):
            if guest < context.settings["VLLM_HUST_TEST_MIN"]:
                return context.guard.decline("small")
            if guest == 13:
                raise ValueError("unlucky")
            return ("ours", guest)
        return [context.patch(PLACE + ":Door.open", site.around(body)),
                context.patch(PLACE + ":Door.shut", lambda original: lambda self: "ours " + original(self))]
"""


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    monkeypatch.delenv(engine_report.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(engine_report, "_report", None)


@pytest.fixture
def place(host):
    return host.write("place", HOST)


@pytest.fixture
def make(host, place, environ):
    made = []

    def build(binding=BINDING, seams=None, **more):
        name = host.write("binding", f"PLACE = {place!r}\n" + textwrap.dedent(binding))
        more.setdefault("gates", (Flag("VLLM_HUST_TEST"), Integer("VLLM_HUST_TEST_MIN", 3, minimum=1)))
        carrier = Carrier(
            "test-carrier",
            seams=seams or (Seam(f"{place}:Door.open", parameters=("guest", "loudly")), Seam(f"{place}:Door.shut")),
            binding=more.pop("binding_name", name),
            **more,
        )
        made.append(carrier)
        return carrier

    environ(VLLM_HUST_TEST="1")
    yield build
    for carrier in made:
        carrier.uninstall()


def test_closed(make, host, place, environ, lines):
    environ(VLLM_HUST_TEST="0")
    carrier = make(load_line=LINE)
    path_before, modules_before = list(sys.meta_path), set(sys.modules)
    carrier.load()
    carrier.load()
    assert carrier.state == "closed"
    assert (sys.meta_path, set(sys.modules)) == (path_before, modules_before)
    assert [(r.levelno, r.getMessage()) for r in lines.records] == [
        (logging.INFO, "cascade plugin loaded (gate=0, least=3)")
    ]
    door = host.load("place").Door()
    assert door.open(5) == ("opened", 5, False)


def test_a_carrier_without_a_line_is_quiet(make, environ, lines):
    environ(VLLM_HUST_TEST="0")
    make().load()
    assert [r.levelno for r in lines.records] == [logging.DEBUG]
    assert lines.records[0].name.startswith("vllm.")


def test_open_arms_then_binds_when_the_host_imports(make, host, place, lines):
    carrier = make(load_line=LINE)
    carrier.load()
    assert carrier.state == "armed"
    assert place in carrier.state_reason
    assert not any(name.startswith(host.package) for name in sys.modules)
    door = host.load("place").Door()
    assert carrier.state == "installed"
    assert door.open(5) == ("ours", 5)
    assert door.open(1, loudly=True) == ("opened", 1, True)
    assert door.open(13) == ("opened", 13, False)
    assert door.shut() == "ours shut"
    assert lines(logging.INFO) == [
        "cascade plugin loaded (gate=1, least=3)",
        f"test-carrier: installed ({place}:Door.open, {place}:Door.shut)",
    ]
    report = carrier.report()
    assert (report["calls"], report["engaged"], report["reasons"]) == (3, 1, {"small": 1})
    assert [seam["status"] for seam in report["seams"]] == ["matched", "matched"]
    assert sum(report["failures"].values()) == 1


def test_open_binds_at_once_when_the_host_is_there(make, host):
    door = host.load("place").Door()
    carrier = make()
    carrier.load()
    carrier.load()
    assert carrier.state == "installed"
    assert door.open(5) == ("ours", 5)


def test_uninstall_and_load_again(make, host, lines):
    Door = host.load("place").Door
    before = dict(vars(Door))
    carrier = make()
    carrier.load()
    outcomes = carrier.uninstall()
    assert set(outcomes.values()) == {"restored"}
    assert dict(vars(Door)) == before
    assert (carrier.state, carrier.state_reason) == ("uninstalled", "everything restored")
    carrier.load()
    assert Door().open(5) == ("ours", 5)


LATER = """
    def patches(context):
        def shut(door):
            context.add([context.patch(PLACE + ":Door.open", lambda original: lambda *args: "added later")])
            return "ours"
        return [context.patch(PLACE + ":Door.shut", lambda original: shut)]
"""


def test_patches_of_places_that_come_later_leave_with_the_others(make, host):
    carrier = make(LATER)
    carrier.load()
    door = host.load("place").Door
    before = door.open
    assert door().shut() == "ours"
    assert door().open(1) == "added later"
    assert carrier.state_reason == "2 patches in place"
    carrier.uninstall()
    assert door.open is before
    assert door().shut() == "shut"
    with pytest.raises(RuntimeError, match="patches can be added while it is installed"):
        carrier.extend([])


def test_uninstall_while_armed(make, host):
    carrier = make()
    path_before = list(sys.meta_path)
    carrier.load()
    assert sys.meta_path != path_before
    carrier.uninstall()
    assert sys.meta_path == path_before
    assert host.load("place").Door().open(5) == ("opened", 5, False)
    assert carrier.state == "uninstalled"


def test_uninstall_under_a_foreign_wrapper_says_so(make, host, place):
    Door = host.load("place").Door
    carrier = make()
    carrier.load()
    ours = Door.open
    Door.open = lambda self, guest: ("foreign", ours(self, guest))
    assert carrier.uninstall() == {f"{place}:Door.open": "passing through", f"{place}:Door.shut": "restored"}
    assert carrier.state_reason == f"passing through under another wrapper: {place}:Door.open"
    assert Door().open(5) == ("foreign", ("opened", 5, False))


def test_a_differing_seam_refuses_and_touches_nothing(make, host, place, lines):
    carrier = make(seams=(
        Seam(f"{place}:Door.shut"),
        Seam(f"{place}:Door.open", parameters=("guest",)),
        Seam(f"{place}:Door.lock"),
    ))
    carrier.load()
    module = host.load("place")
    assert module.Door().shut() == "shut"
    assert carrier.state == "refused"
    assert f"{host.package}.binding" not in sys.modules
    (warning,) = lines(logging.WARNING)
    assert warning == (
        "test-carrier: not installed, the host runs its own path: "
        f"{place}:Door.open: differs, parameters are (guest, loudly), expected (guest); "
        f"{place}:Door.lock: missing, {place}.Door has no lock"
    )
    assert [seam["status"] for seam in carrier.report()["seams"]] == ["matched", "differs", "missing"]


REFUSING = {
    "refused": ("""
        from vllm_ascend_split_batch.carrier import Refused
        def patches(context): raise Refused('no kernel here')""", "no kernel here"),
    "raises": ("def patches(context): raise OSError('disk')", "binding failed: OSError: disk"),
    "import fails": ("import no_such_module_at_all", "binding failed: ModuleNotFoundError"),
    "no function": ("x = 1", "binding failed: AttributeError"),
    "no list": ("def patches(context): return None", "binding failed: TypeError"),
    "undeclared": ("def patches(context): return [context.patch('a:b', None)]", "a:b is not among the declared seams"),
    "second patch": (
        """
        def patches(context):
            def fail(original): raise RuntimeError('late')
            return [context.patch(PLACE + ':Door.open', lambda original: lambda *a: 1),
                    context.patch(PLACE + ':Door.shut', fail)]""", "binding failed: RuntimeError: late"),
}


@pytest.mark.parametrize(("binding", "message"), REFUSING.values(), ids=REFUSING.keys())
def test_a_binding_that_cannot_serve(make, host, lines, binding, message):
    carrier = make(binding=binding)
    carrier.load()
    Door = host.load("place").Door
    assert Door().open(5) == ("opened", 5, False)
    assert Door().shut() == "shut"
    assert carrier.state == "refused"
    (warning,) = lines(logging.WARNING)
    assert message in warning
    assert message in carrier.state_reason
    traceback_shown = bool(lines.records[-1].exc_info)
    assert traceback_shown == (message != "no kernel here")


def test_a_named_function_of_the_binding(make, host):
    carrier = make(binding=BINDING.replace("def patches", "def others"), binding_name=f"{host.package}.binding:others")
    carrier.load()
    assert host.load("place").Door().open(5) == ("ours", 5)


def test_latch(make, host, lines):
    carrier = make()
    carrier.load()
    door = host.load("place").Door()
    for _ in range(3):
        assert door.open(13) == ("opened", 13, False)
    assert carrier.state == "latched"
    assert door.open(5) == ("opened", 5, False)
    assert carrier.report()["reasons"] == {"latched": 1}
    assert carrier.report()["last_failure"]["cause"].endswith(": unlucky")
    carrier.uninstall()
    assert carrier.state == "uninstalled"


def test_unreadable_and_misspelt_variables_are_said_once(make, environ, lines):
    environ(VLLM_HUST_TEST="maybe", VLLM_HUST_TEST_MIN="-4", VLLM_HUST_FI_GELUU="1")
    for _ in range(2):
        make().load()
    assert sorted(lines(logging.WARNING)) == [
        "VLLM_HUST_FI_GELUU is set, but there is no such variable: did you mean VLLM_HUST_FI_GELU?",
        "VLLM_HUST_TEST is 'maybe', accepted: 1 true yes on / 0 false no off; the default off counts",
        "VLLM_HUST_TEST_MIN is '-4', accepted: an integer of at least 1; the default 3 counts",
    ]


def test_load_survives_a_broken_declaration(make, lines):
    carrier = make(load_line="{NO_SUCH_SETTING}")
    carrier.load()
    assert (carrier.state, carrier.state_reason) == ("refused", "loading failed")
    assert [record.exc_info[0] for record in lines.records] == [KeyError]


WITHDRAWING = """
    def patches(context):
        def body(door, guest, *args, **kwargs):
            context.withdraw("the door is a window")
            return ("ours", guest)
        site = context.guard.site("Door.open")
        return [context.patch(PLACE + ":Door.open", site.around(body)),
                context.patch(PLACE + ":Door.shut", lambda original: lambda self: "ours " + original(self))]
"""


def test_a_body_withdraws_the_carrier(make, host, lines):
    carrier = make(WITHDRAWING)
    carrier.load()
    module = host.load("place")
    own = dict(vars(module.Door))
    door = module.Door()
    assert carrier.state == "installed"
    assert door.open(5) == ("ours", 5)  # the call in progress ends as it began
    assert (carrier.state, carrier.state_reason) == ("refused", "the door is a window")
    assert (door.open(5), door.shut()) == (("opened", 5, False), "shut")
    assert all(vars(module.Door)[name] is not own[name] for name in ("open", "shut"))
    assert [r.getMessage() for r in lines.records if r.levelno == logging.WARNING] == [
        "test-carrier: not installed, the host runs its own path: the door is a window"
    ]
    assert carrier.uninstall() == {}


def test_a_gate_of_another_kind(make, environ, place):
    gates = (Choice("VLLM_HUST_TEST_MODE", ("off", "fast"), "off"),)
    with pytest.raises(ValueError, match="the first gate must be a Flag"):
        make(gates=gates)
    carrier = make(gates=gates, is_open=lambda settings: settings["VLLM_HUST_TEST_MODE"] != "off")
    carrier.load()
    assert carrier.state == "closed"
    environ(VLLM_HUST_TEST_MODE="FAST")
    carrier.load()
    assert carrier.state == "armed"


def run(code: str, **environment: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.host
def test_an_open_carriers_variables_are_known_to_vllm():
    """With the installed vLLM. No platform plugin is loaded, so that it can be imported without a device."""
    out = run("""
        import vllm.envs as envs
        from vllm_ascend_split_batch.carrier import Carrier, Flag, Integer
        before = list(envs.environment_variables.items())

        def carrier(*gates):
            made = Carrier("x", gates=gates, seams=(), binding="no_such_module")
            made.load()
            return made

        try:
            envs.validate_environ(hard_fail=True)
        except ValueError as error:
            print("VLLM_HUST_TEST" in str(error))
        first = carrier(Flag("VLLM_HUST_TEST"), Integer("VLLM_HUST_TEST_MIN", 3), Flag("NOT_VLLMS", True))
        print(envs.validate_environ(hard_fail=True))
        print(envs.VLLM_HUST_TEST, envs.VLLM_HUST_TEST_MIN)
        factors = envs.compile_factors()
        print(factors["VLLM_HUST_TEST"], factors["VLLM_HUST_TEST_MIN"], "NOT_VLLMS" in factors)
        first.uninstall()
        print(list(envs.environment_variables.items()) == before)

        # A name that vLLM knows itself keeps vLLM's meaning.
        second = carrier(Flag("VLLM_HUST_TEST"), Flag("VLLM_LOGGING_LEVEL"))
        print(envs.environment_variables["VLLM_LOGGING_LEVEL"] is dict(before)["VLLM_LOGGING_LEVEL"])
        second.uninstall()
        print(list(envs.environment_variables.items()) == before)
    """, VLLM_HUST_TEST="1", VLLM_PLUGINS="", VLLM_LOGGING_LEVEL="ERROR")
    assert out.splitlines() == ["True", "None", "True 3", "True 3 False", "True", "True", "True"]


def test_two_carriers_share_a_seam_and_leave_in_the_other_order(make, host, place):
    Door = host.load("place").Door
    before = dict(vars(Door))
    simple = """
        def patches(context):
            return [context.patch(PLACE + ':Door.shut', lambda original: lambda self: 'NAME ' + original(self))]"""
    first = make(binding=simple.replace("NAME", "first"))
    first.load()
    del sys.modules[f"{host.package}.binding"]
    second = make(binding=simple.replace("NAME", "second "))
    second.load()
    assert Door().shut() == "second  first shut"
    first.uninstall()
    assert Door().shut() == "second  shut"
    second.uninstall()
    assert dict(vars(Door)) == before


PURE = """
    import sys
    before = set(sys.modules)
    from vllm_ascend_split_batch.carrier import Carrier, Flag, Seam
    carrier = Carrier("x", gates=(Flag("VLLM_HUST_TEST"),), seams=(Seam("torch:zeros"),), binding="torch")
    carrier.load()
    added = {name.partition(".")[0] for name in set(sys.modules) - before}
    print(carrier.state, sorted(added - set(sys.stdlib_module_names)))
"""


@pytest.mark.parametrize(("value", "state"), [("", "closed"), ("0", "closed"), ("1", "armed")])
def test_loading_imports_the_standard_library_only(value, state):
    assert run(PURE, VLLM_HUST_TEST=value) == f"{state} ['vllm_ascend_split_batch']"


def test_loading_while_off_registers_nothing_with_the_interpreter():
    out = run("""
        import atexit, os, sys, threading
        calls = []
        os.register_at_fork = lambda **k: calls.append(k)
        atexit.register = lambda *a: calls.append(a)
        meta_path = list(sys.meta_path)
        from vllm_ascend_split_batch.carrier import Carrier, Flag
        import logging  # the standard library's own registrations are not counted
        calls.clear()
        Carrier("x", gates=(Flag("VLLM_HUST_TEST"),), seams=(), binding="x").load()
        print(calls, threading.active_count(), sys.meta_path == meta_path)
    """)
    assert out == "[] 1 True"


def test_a_forked_child_binds_and_counts_from_zero():
    out = run("""
        import json.decoder, os, sys, types
        from vllm_ascend_split_batch.carrier import Carrier, Flag, Seam
        binding = types.ModuleType("binding")
        binding.patches = lambda context: [
            context.patch("colorsys:rgb_to_hsv", context.guard.site("x").around(lambda *a: a))]
        sys.modules["binding"] = binding
        carrier = Carrier("x", gates=(Flag("VLLM_HUST_TEST"),), seams=(Seam("colorsys:rgb_to_hsv"),), binding="binding")
        carrier.load()
        print(carrier.state, flush=True)
        if os.fork() == 0:
            import colorsys
            colorsys.rgb_to_hsv(1, 2, 3)
            print(carrier.state, carrier.guard.engaged, flush=True)
            os._exit(0)
        os.wait()
        print(carrier.state, "colorsys" in sys.modules)
    """, VLLM_HUST_TEST="1")
    assert out.splitlines() == ["armed", "installed 1", "armed False"]


def test_report_entry_is_json(make):
    carrier = make(extension_id="org.example.x")
    carrier.load()
    entry = json.loads(json.dumps(carrier.report()))
    assert entry["extension_id"] == "org.example.x"
    assert entry["gates"][0] == {"name": "VLLM_HUST_TEST", "value": True, "raw": "1", "source": "environment"}
    assert [seam["status"] for seam in entry["seams"]] == ["pending", "pending"]


MUTANTS = {
    "seams are not verified": (
        "if status.status != MATCHED]", "if False]",
        lambda f: test_a_differing_seam_refuses_and_touches_nothing(f.make, f.host, f.place, f.lines)),
    "one matching seam is enough": (
        "        if wrong:\n", "        if len(wrong) == len(self.seams):\n",
        lambda f: test_a_differing_seam_refuses_and_touches_nothing(f.make, f.host, f.place, f.lines)),
    "a closed gate does not matter": (
        "        if not is_open:\n", "        if False:\n",
        lambda f: test_closed(f.make, f.host, f.place, f.environ, f.lines)),
    "the line is logged at every call": (
        "        if line != self._line_logged:\n", "        if True:\n",
        lambda f: test_closed(f.make, f.host, f.place, f.environ, f.lines)),
    "nothing is taken back": (
        "outcomes |= installed.uninstall()", "pass",
        lambda f: test_uninstall_while_armed(f.make, f.host) or test_uninstall_and_load_again(f.make, f.host, f.lines)),
    "a withdrawn carrier stays in place": (
        "        self._patches.uninstall()\n        self._refuse(reason)", "        self._refuse(reason)",
        lambda f: test_a_body_withdraws_the_carrier(f.make, f.host, f.lines)),
    "waiting goes on": (
        "            waiter.cancel()\n", "            pass\n",
        lambda f: test_uninstall_while_armed(f.make, f.host)),
    "a latch is not seen": (
        "        self._become(LATCHED, reason)\n", "        pass\n", lambda f: test_latch(f.make, f.host, f.lines)),
}


@pytest.mark.parametrize(("old", "new", "check"), MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_are_noticed(make, host, place, lines, environ, mutant, monkeypatch, old, new, check):
    import types

    from vllm_ascend_split_batch.carrier import carrier as carrier_module

    monkeypatch.setitem(globals(), "Carrier", mutant(carrier_module, old, new).Carrier)
    fixtures = types.SimpleNamespace(make=make, host=host, place=place, lines=lines, environ=environ)
    with pytest.raises((AssertionError, ValueError)):
        check(fixtures)
