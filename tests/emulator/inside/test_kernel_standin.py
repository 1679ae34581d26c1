"""The stand-in for the kernel wheel: the operators of split_batch_kernels on npu tensors."""

from __future__ import annotations

import importlib

import ascend_kernel
import pytest
import split_batch_kernels
import torch
from torch_npu.emulator import counters, settings

from .attention_reference import attend


def arguments(dtype=torch.bfloat16, size=128, page=128):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(6, 8, size, generator=generator).to(dtype)
    key, value = (torch.randn(4, page, 2, size, generator=generator).to(dtype) for _ in range(2))
    return [
        query.npu(),
        key.npu(),
        value.npu(),
        torch.tensor([[3, 1]], dtype=torch.int32).npu(),
        torch.tensor([6]).npu(),
        torch.tensor([2 * page]).npu(),
        6,
    ]


def test_says_that_it_is_emulated():
    assert ascend_kernel.__emulated__ is True


@pytest.mark.parametrize("op", [split_batch_kernels.STAGE1, split_batch_kernels.MERGE])
def test_the_operators_are_there_for_the_device(op):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(op, "PrivateUse1")


def test_stage_1_on_npu_tensors():
    given = arguments()
    out, lse = torch.ops.npu.fa_fp32_stage1(*given)
    assert (out.device.type, out.dtype, lse.device.type) == ("npu", torch.float32, "npu")
    query, key, value = (x.cpu() for x in given[:3])
    rows = [x[[3, 1]].flatten(0, 1) for x in (key, value)]
    expected, expected_lse = attend(query, *rows, 128**-0.5)
    torch.testing.assert_close(out.cpu().double(), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(lse.cpu().view(6, 8, -1)[..., 0].double(), expected_lse, atol=1e-4, rtol=0)


def test_merge_on_npu_tensors():
    out, lse = torch.ops.npu.fa_fp32_stage1(*arguments())
    low = out.to(torch.bfloat16)
    merged = torch.ops.npu.lse_merge(out, low, lse, lse, 2)
    assert merged.device.type == "npu"
    torch.testing.assert_close(merged.cpu(), (out.cpu() + low.cpu().float()) / 2, atol=1e-5, rtol=0)


def test_calls_are_counted():
    given = arguments()
    with counters.window() as counted:
        torch.ops.npu.fa_fp32_stage1(*given)
    assert counted["launches"] == {"npu::fa_fp32_stage1": 1}
    assert counted["kv_bytes"]["token"] == 256 * 2 * 2 * 128 * 2
    assert counted["synchronizes"] == 0
    with counters.window() as counted:
        torch.ops.npu.fa_fp32_stage1(*given[:-1], 0)
    assert counted["synchronizes"] == 2  # the device build pulls both lengths to the host then


def test_the_device_limits_are_enforced_by_their_switch(monkeypatch):
    torch.ops.npu.fa_fp32_stage1(*arguments(torch.float16, 64, 16))
    monkeypatch.setattr(settings, "DEVICE_LIMITS", True)
    torch.ops.npu.fa_fp32_stage1(*arguments())
    for given in (arguments(torch.float16), arguments(size=64), arguments(page=16)):
        with pytest.raises(split_batch_kernels.DeviceLimitError):
            torch.ops.npu.fa_fp32_stage1(*given)


def test_the_lse_fault_reaches_it(monkeypatch):
    _, right = torch.ops.npu.fa_fp32_stage1(*arguments())
    monkeypatch.setattr(settings, "ACTIVE_FAULTS", frozenset({"lse_shift"}))
    _, wrong = torch.ops.npu.fa_fp32_stage1(*arguments())
    assert torch.equal(wrong.cpu(), right.cpu() + 3)


def test_it_can_be_left_out(monkeypatch):
    monkeypatch.setenv("NPU_EMU_KERNELS", "none")
    with pytest.raises(ModuleNotFoundError, match="No module named 'ascend_kernel'") as caught:
        importlib.reload(ascend_kernel)
    assert caught.value.name == "ascend_kernel"
