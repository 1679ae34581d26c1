"""Each kind of gate: what it accepts, what it says about the rest."""

from __future__ import annotations

import pytest

from vllm_ascend_split_batch.carrier.gates import Choice, Flag, Integer, Number, Settings


def read(gate, text):
    return gate.read({} if text is None else {gate.name: text})


@pytest.mark.parametrize("text", ["1", "true", "yes", "on", "TRUE", "Yes", " on ", "\t1\n"])
def test_flag_on(text):
    reading = read(Flag("X"), text)
    assert (reading.value, reading.source, reading.raw, reading.problem) == (True, "environment", text, None)


@pytest.mark.parametrize("text", ["0", "false", "no", "off", "OFF", " No ", "", "   "])
@pytest.mark.parametrize("default", [False, True])
def test_flag_off(text, default):
    reading = read(Flag("X", default), text)
    assert (reading.value, reading.source, reading.problem) == (False, "environment", None)


@pytest.mark.parametrize("text", ["2", "-1", "01", "enabled", "y", "tru", "1 0", "None", "\udc80"])
@pytest.mark.parametrize("default", [False, True])
def test_flag_unreadable(text, default):
    reading = read(Flag("SOME_FLAG", default), text)
    assert (reading.value, reading.source) == (default, "invalid")
    counts = "on" if default else "off"
    assert reading.problem == (
        f"SOME_FLAG is {text!r}, accepted: 1 true yes on / 0 false no off; the default {counts} counts"
    )


@pytest.mark.parametrize(("text", "value"), [("7", 7), (" 12 ", 12), ("+3", 3), ("0007", 7), ("1", 1), ("99", 99)])
def test_integer(text, value):
    reading = read(Integer("X", 5, minimum=1, maximum=99), text)
    assert (reading.value, reading.source) == (value, "environment")


@pytest.mark.parametrize("text", ["0", "100", "-7", "1.5", "1e3", "0x10", "1_0", "eight", "٣", "9" * 5000, "1 2", "+"])
def test_integer_unreadable(text):
    reading = read(Integer("SOME_INT", 5, minimum=1, maximum=99), text)
    assert (reading.value, reading.source) == (5, "invalid")
    assert reading.problem.startswith("SOME_INT is ")
    assert reading.problem.endswith(", accepted: an integer from 1 to 99; the default 5 counts")
    assert len(reading.problem) < 250


@pytest.mark.parametrize("gate", [Integer("X", 5), Number("X", 0.5), Choice("X", ("a", "b"), "a")], ids=repr)
@pytest.mark.parametrize("text", [None, "", "  "])
def test_unset_and_blank_are_the_default(gate, text):
    reading = read(gate, text)
    assert (reading.value, reading.source, reading.problem) == (gate.default, "default", None)


@pytest.mark.parametrize(
    ("gate", "accepted"),
    [
        (Integer("X", 5), "an integer"),
        (Integer("X", 5, minimum=2), "an integer of at least 2"),
        (Integer("X", 5, maximum=9), "an integer of at most 9"),
        (Number("X", 0.5, minimum=0.0, maximum=1.0), "a number from 0.0 to 1.0"),
        (Choice("X", ("bf16", "fp32"), "bf16"), "bf16 or fp32"),
    ],
    ids=repr,
)
def test_what_is_accepted(gate, accepted):
    assert read(gate, "?").problem == f"X is '?', accepted: {accepted}; the default {gate.default} counts"


@pytest.mark.parametrize(("text", "value"), [("0.25", 0.25), (".5", 0.5), ("1.", 1.0), ("1e-2", 0.01), (" 0 ", 0.0)])
def test_number(text, value):
    assert read(Number("X", 0.9, minimum=0, maximum=1), text).value == value


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "1.01", "-0.1", "1_0", "half", "0x1p3"])
def test_number_unreadable(text):
    reading = read(Number("X", 0.9, minimum=0, maximum=1), text)
    assert (reading.value, reading.source) == (0.9, "invalid")


def test_choice():
    gate = Choice("X", ("bf16", "FP32"), "bf16")
    assert read(gate, "fp32").value == "FP32"
    assert read(gate, " BF16 ").value == "bf16"
    assert read(gate, "fp16").source == "invalid"
    with pytest.raises(ValueError, match="default 'c' is none of the values"):
        Choice("X", ("a", "b"), "c")


def test_settings_are_values_by_variable():
    settings = Settings.read([Flag("A"), Integer("B", 3)], {"A": "on", "B": "many"})
    assert dict(settings) == {"A": True, "B": 3}
    assert settings.problems == ["B is 'many', accepted: an integer; the default 3 counts"]
    assert "{A:d} {B}".format_map(settings) == "1 3"
    with pytest.raises(KeyError):
        settings["C"]
