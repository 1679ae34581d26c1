"""Small values: equal by their attributes, and unchangeable."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vllm_ascend_split_batch.carrier import Calls, Seam, SeamStatus


def test_equal_by_type_and_attributes():
    seam = Seam("a.b:c", parameters=["x"], why="because")
    assert seam == Seam("a.b:c", parameters=("x",), why="because")
    assert hash(seam) == hash(Seam("a.b:c", parameters=("x",), why="because"))
    assert seam != Seam("a.b:c", parameters=("y",), why="because")
    assert Calls("a", 1) != SeamStatus("a", "matched")
    assert repr(Calls("self.run", 2)) == "Calls(callee='self.run', count=2)"


def test_unchangeable():
    calls = Calls("self.run", 2)
    with pytest.raises(AttributeError, match=r"Calls\.count cannot be set"):
        calls.count = 3
    with pytest.raises(AttributeError, match=r"Calls\.count cannot be deleted"):
        del calls.count
    assert calls.count == 2


def test_front_doors_do_not_need_dataclasses():
    """Every vLLM process imports them, and `dataclasses` compiles code for each class."""
    code = (
        "import sys, importlib.metadata as m\n"
        "eps = [e for e in m.entry_points(group='vllm.general_plugins') if e.value.startswith('vllm_ascend_split')]\n"
        "assert len(eps) >= 8, eps\n"
        "[e.load() for e in eps]\n"
        "print([n for n in ('dataclasses', 'inspect', 'ast', 'torch') if n in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip().endswith("[]"), ran.stdout + ran.stderr
