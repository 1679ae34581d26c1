"""The row-by-row ops (sampling, GeGLU) on npu tensors: the reference's results, without a copy or a wait."""

from __future__ import annotations

import pytest
import torch
from split_batch_kernels import row_ops
from torch_npu.emulator import counters

KEY = 0x1234_5678_9ABC


@pytest.mark.parametrize("op", row_ops.OPS)
def test_the_operators_are_there_for_the_device(op):
    assert row_ops.registered(op, "PrivateUse1")
    assert row_ops.ensure("npu") is None


def test_sampling_equals_the_reference_and_counts_in_place():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 64, generator=generator)
    top_k, top_p = torch.full((300,), 5, dtype=torch.int32), torch.full((300,), 0.9)
    capped = torch.zeros(300, dtype=torch.int32)
    on_device = [tensor.npu() for tensor in (rows, top_k, top_p, capped)]
    with counters.window() as counted:
        plain = torch.ops.split_batch.sample(on_device[0], KEY, 3)
        kept = torch.ops.split_batch.sample_top_k_top_p(*on_device, KEY, 3)
    assert counted["launches"] == {"split_batch::sample": 1, "split_batch::sample_top_k_top_p": 1}
    assert (counted["synchronizes"], sum(counted["copies"].values())) == (0, 0)
    assert (plain.device.type, kept.device.type) == ("npu", "npu")
    assert torch.equal(plain.cpu(), torch.ops.split_batch.sample(rows, KEY, 3))
    assert torch.equal(kept.cpu(), torch.ops.split_batch.sample_top_k_top_p(rows, top_k, top_p, capped, KEY, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_geglu_equals_the_reference(dtype):
    given = torch.randn(3, 5, 24).to(dtype)
    result = torch.ops.split_batch.geglu(given.npu())
    assert (result.device.type, result.dtype) == ("npu", dtype)
    assert torch.equal(result.cpu(), torch.ops.split_batch.geglu(given))
