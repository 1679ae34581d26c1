"""Whatever the environment holds, a gate and a load() have an answer."""

from __future__ import annotations

import json
import logging
import os

from hypothesis import example, given, settings
from hypothesis import strategies as st

from vllm_ascend_split_batch.carrier import Carrier, Choice, Flag, Integer, Number, Seam, engine_report, near_misses
from vllm_ascend_split_batch.carrier.gates import OFF, ON

GATES = (
    Flag("VLLM_HUST_TEST_FLAG"),
    Flag("VLLM_HUST_TEST_FLAG_ON", True),
    Integer("VLLM_HUST_TEST_INT", 8192, minimum=1),
    Integer("VLLM_HUST_TEST_RANGE", 5, minimum=-10, maximum=10),
    Number("VLLM_HUST_TEST_NUMBER", 0.25, minimum=0.0, maximum=1.0),
    Choice("VLLM_HUST_TEST_CHOICE", ("bf16", "fp32"), "bf16"),
)

# Anything that can be in an environment: bytes without NUL, as Python decodes them.
anything = st.one_of(
    st.binary(max_size=40).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
    st.text(max_size=40).map(lambda text: text.replace("\0", "")),
    st.sampled_from([*ON, *OFF, "", " ", "1e999", "nan", "9" * 5000, "-0", "+1", "1_0", "٣", "{x}", "%s"]),
    st.integers().map(str),
    st.floats().map(str),
)
quick = settings(max_examples=200)


@quick
@given(text=anything)
@example(text="\udcff")
def test_every_gate_has_an_answer_of_its_own_kind(text):
    for gate in GATES:
        reading = gate.read({gate.name: text})
        assert reading.raw == text
        assert type(reading.value) is type(gate.default)
        if isinstance(gate, Integer | Number):
            assert gate.minimum <= reading.value
            assert gate.maximum is None or reading.value <= gate.maximum
        if isinstance(gate, Choice):
            assert reading.value in gate.values
        assert (reading.source == "invalid") == (reading.problem is not None)
        if reading.problem is not None:
            assert reading.value == gate.default
            assert gate.name in reading.problem
            assert gate.accepted in reading.problem
            reading.problem.encode()  # can be written to any stream
            assert len(reading.problem) < 700


@quick
@given(value=st.integers(-10, 10), blanks=st.sampled_from(["", " ", "\t", "\n "]))
def test_integers_within_bounds_are_themselves(value, blanks):
    assert GATES[3].read({GATES[3].name: f"{blanks}{value}{blanks}"}).value == value


@quick
@given(value=st.floats(0.0, 1.0))
def test_numbers_within_bounds_are_themselves(value):
    assert GATES[4].read({GATES[4].name: repr(value)}).value == value


@quick
@given(word=st.sampled_from(ON + OFF), flips=st.lists(st.booleans(), min_size=5, max_size=5))
def test_flags_in_any_case(word, flips):
    text = "".join(c.upper() if flip else c for c, flip in zip(word, flips, strict=False))
    for gate in GATES[:2]:
        assert gate.read({gate.name: text}).value is (word in ON)


names = st.one_of(
    st.sampled_from([gate.name for gate in GATES]),
    st.sampled_from([*near_misses.PUBLISHED, *near_misses.RETIRED]),
    st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", max_size=12).map(lambda end: f"VLLM_ASCEND_CASCADE{end}"),
    st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", max_size=12).map(lambda end: f"VLLM_HUST_{end}"),
)


@settings(max_examples=60)
@given(environment=st.dictionaries(names, anything, max_size=8))
def test_load_never_raises(environment):
    logger = logging.getLogger("vllm.split_batch")
    ours = {name: value for name, value in os.environ.items() if name.startswith("VLLM_")}
    for name in ours:
        del os.environ[name]
    report, engine_report._report = engine_report._report, None
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.CRITICAL)
    try:
        os.environ.update(environment)
        carrier = Carrier(
            "x", gates=GATES, seams=(Seam("no_such_host.module:Class.method"),), binding="no_such_binding",
            load_line="gate={VLLM_HUST_TEST_FLAG:d} number={VLLM_HUST_TEST_NUMBER} choice={VLLM_HUST_TEST_CHOICE}",
        )
        carrier.load()
        open_ = environment.get("VLLM_HUST_TEST_FLAG", "").strip().lower() in ON
        assert carrier.state == ("armed" if open_ else "closed")
        json.loads(json.dumps(carrier.report()))
        carrier.uninstall()
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        engine_report._report = report
        for name in environment:
            del os.environ[name]
        os.environ.update(ours)
