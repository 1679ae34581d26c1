"""The compiled form of the fused attention: what Python has checked for one call holds for all calls of its kind."""

from __future__ import annotations

import pytest
import torch
import torch_npu
from torch_npu import _backend
from torch_npu.emulator import counters, settings
from torch_npu.ops import fused_attention

CAUSAL = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1).npu()
PAGED = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "TND", "block_size": 128}


@pytest.fixture
def checked(monkeypatch):
    """The calls that Python was asked to check, from a state in which no plan is known."""
    calls = []
    check = fused_attention.arguments_of.prepare

    def noting(op, *args, **kwargs):
        calls.append(op)
        return check(op, *args, **kwargs)

    monkeypatch.setattr(fused_attention.arguments_of, "prepare", noting)
    _backend.forget_attention_plans()
    return calls


def decode(lengths=(300, 20), **changes):
    """A decode call of the form in which a model's layers read a paged cache."""
    rows = len(lengths)
    q, cache = torch.randn(rows, 4, 64).npu(), torch.randn(4, 128, 128).npu()
    arguments = {
        "block_table": torch.tensor([[0, 1, 2]] * rows, dtype=torch.int32).npu(),
        "actual_seq_lengths": list(range(1, rows + 1)),
        "actual_seq_lengths_kv": list(lengths),
        **PAGED,
        **changes,
    }
    return torch_npu.npu_fused_infer_attention_score(q, cache, cache, **arguments)


def test_a_kind_of_call_is_checked_once_and_counted_every_time(checked):
    for _ in range(3):
        with counters.window() as counted:
            decode()
        # Two heads of 64 float32 numbers, keys and values: a token is 1 KiB. Pages of 128: three and one.
        assert counted["kv_bytes"] == {"token": 320 * 1024, "page": 4 * 128 * 1024}
        assert counted["launches"] == {"npu::npu_fused_infer_attention_score": 1}
    assert len(checked) == 1
    for changes in (
        {"lengths": (301, 20)},
        {"softmax_lse_flag": True},
        {"scale": 0.5},
        {"sparse_mode": 3, "atten_mask": CAUSAL},
    ):
        decode(**changes)
        decode(**changes)
    assert len(checked) == 5
    assert _backend.forget_attention_plans() == 5
    decode()
    assert len(checked) == 6


def test_what_depends_on_values_is_checked_every_time(checked):
    q, cache = torch.zeros(1, 4, 128).bfloat16().npu(), torch.zeros(1, 128, 256).bfloat16().npu()
    arguments = {
        "block_table": torch.zeros(1, 1, dtype=torch.int32).npu(),
        "actual_seq_qlen": [1],
        "actual_seq_kvlen": [9],
        "num_query_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "TND",
        "block_size": 128,
    }
    for sink in (None, None, 1.0, 2.0):
        arguments["learnable_sink"] = None if sink is None else torch.full((4,), sink).bfloat16().npu()
        torch_npu.npu_fused_infer_attention_score_v2(q, cache, cache, **arguments)
    assert len(checked) == 3  # once without a sink, and twice with one
    assert _backend.forget_attention_plans() == 1


def test_what_was_refused_is_refused_again(checked):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the last query end is 1"):
            decode(actual_seq_lengths=[1, 1])
    assert len(checked) == 2
    assert _backend.forget_attention_plans() == 0


def test_a_plan_that_comes_after_its_call_has_failed_belongs_to_none(checked):
    with pytest.raises(RuntimeError, match="the last query end is 1"):
        decode(actual_seq_lengths=[1, 1])
    torch.ops.npu_emulator.plan_attention([0, 0, 1, 0, 0, 1], 4, 2, 64, 64, 1.0, False, 0, 0, False, 0, 0)
    assert _backend.forget_attention_plans() == 0


@pytest.mark.parametrize(("name", "value"), [("ACTIVE_FAULTS", frozenset({"lse_shift"})), ("OPLOG_PATH", "unused")])
def test_faults_and_the_log_are_made_in_python(checked, monkeypatch, name, value):
    monkeypatch.setattr(settings, name, value)
    decode()
    decode()
    assert len(checked) == 2


def test_what_is_remembered_is_bounded():
    _backend.forget_attention_plans()
    for keys in range(1, 200):
        decode((keys, keys))
    assert 1 <= _backend.forget_attention_plans() <= 64
