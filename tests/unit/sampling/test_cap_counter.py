"""Rows out of rounds: seen a while later, without anybody waiting."""

from __future__ import annotations

import pytest

from vllm_ascend_split_batch.sampling import cap_counter

torch = pytest.importorskip("torch")


def test_counts_are_seen_after_an_interval(monkeypatch):
    monkeypatch.setattr(cap_counter, "INTERVAL", 4)
    counter = cap_counter.CapCounter()
    seen = []
    for _ in range(9):
        counter.rows(3, torch.device("cpu"))[1] += 1
        seen.append(counter.step_done())
    assert seen == [0, 0, 0, 0, 4, 4, 4, 4, 8]


def test_a_larger_batch_keeps_what_was_seen(monkeypatch):
    monkeypatch.setattr(cap_counter, "INTERVAL", 1)
    counter = cap_counter.CapCounter()
    counter.rows(3, torch.device("cpu"))[0] += 5
    counter.step_done()
    counter.rows(3, torch.device("cpu"))
    assert counter.step_done() == 5
    rows = counter.rows(1000, torch.device("cpu"))
    assert len(rows) == 1000
    rows[999] += 2
    counter.step_done()
    assert counter.step_done() == 7


def test_nothing_is_copied_before_the_interval():
    counter = cap_counter.CapCounter()
    for _ in range(cap_counter.INTERVAL - 1):
        counter.rows(2, torch.device("cpu"))
        assert counter.step_done() == 0
    assert counter._copy is None
