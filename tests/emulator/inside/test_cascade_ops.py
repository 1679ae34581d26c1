"""split_batch_kernels' own cascade on npu tensors: two launches a layer, counted and logged."""

from __future__ import annotations

import pytest
import split_batch_kernels
import torch
from torch_npu.emulator import counters, settings

from .attention_reference import attend

PREFIX, LENGTHS = 256, [257, 300, 384, 12]


def inputs(dtype=torch.bfloat16, size=128, page=128):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(4, 8, size, generator=generator).to(dtype)
    key, value = (torch.randn(8, page, 2, size, generator=generator).to(dtype) for _ in range(2))
    table = torch.tensor([[3, 1, 0], [3, 1, 5], [3, 1, 2], [3, 1, 7]], dtype=torch.int32)
    return query.npu(), key.npu(), value.npu(), table.npu()


def lengths():
    return torch.tensor(LENGTHS, dtype=torch.int32).npu(), torch.tensor([PREFIX], dtype=torch.int32).npu()


def cascade(query, key, value, table, splits=2):
    sequences, prefix = lengths()
    outs, lses = torch.ops.split_batch.cascade_prefix(query, key, value, table, prefix, 128**-0.5, splits)
    return torch.ops.split_batch.cascade_suffix(query, key, value, table, sequences, prefix, outs, lses, 128**-0.5)


def test_equals_attention_over_all_keys():
    query, key, value, table = inputs()
    out = cascade(query, key, value, table)
    assert (out.device.type, out.dtype) == ("npu", torch.bfloat16)
    for row, length in enumerate(LENGTHS):
        rows = [x.cpu()[table.cpu()[row].long()].flatten(0, 1)[: max(length, PREFIX)] for x in (key, value)]
        expected, _ = attend(query.cpu()[row : row + 1], *rows, 128**-0.5)
        torch.testing.assert_close(out.cpu()[row : row + 1].double(), expected, atol=4e-3, rtol=0)


def test_two_launches_and_every_shared_key_once():
    given = inputs()
    with counters.window() as counted:
        cascade(*given)
    launches = {name: count for name, count in counted["launches"].items() if name.startswith("split_batch")}
    assert launches == {"split_batch::cascade_prefix": 1, "split_batch::cascade_suffix": 1}
    own = sum(max(0, length - PREFIX) for length in LENGTHS)
    row_bytes = 2 * 2 * 128 * 2
    assert counted["kv_bytes"] == {"token": (PREFIX + own) * row_bytes, "page": (PREFIX + 3 * 128) * row_bytes}
    assert counted["copies"]["device_to_host"] == 0
    assert counted["synchronizes"] == counted["implicit_synchronizes"] == 0


def test_results_go_into_given_tensors():
    query, key, value, table = inputs()
    sequences, prefix = lengths()
    outs = torch.empty(1, 2, 16, 128, dtype=torch.float32, device="npu")
    lses = torch.empty(1, 2, 16, dtype=torch.float32, device="npu")
    out = torch.zeros_like(query)
    torch.ops.split_batch.cascade_prefix.out(
        query, key, value, table, prefix, 128**-0.5, 1, outs=outs, lses=lses
    )
    torch.ops.split_batch.cascade_suffix.out(
        query, key, value, table, sequences, prefix, outs, lses, 128**-0.5, out=out
    )
    assert torch.equal(out.cpu(), cascade(query, key, value, table, splits=1).cpu())


def test_the_device_limits_are_enforced_by_their_switch(monkeypatch):
    cascade(*inputs(torch.float32))
    monkeypatch.setattr(settings, "DEVICE_LIMITS", True)
    cascade(*inputs())
    with pytest.raises(split_batch_kernels.DeviceLimitError, match=r"dtype of query is torch\.float32"):
        cascade(*inputs(torch.float32))


def test_a_device_with_implementations_is_told_apart():
    assert split_batch_kernels.registered("PrivateUse1", split_batch_kernels.OWN_SCHEMAS)
    assert not split_batch_kernels.registered("XPU", split_batch_kernels.OWN_SCHEMAS)
