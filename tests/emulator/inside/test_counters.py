"""The counters against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
import torch_npu
from torch_npu.emulator import counters

CAUSAL = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1).npu()


def test_the_shape_of_a_snapshot():
    now = counters.snapshot()
    assert now["schema"] == "torch-npu-emulator.counters/1"
    assert set(now) == {
        "schema",
        "pid",
        "launches",
        "kv_bytes",
        "copies",
        "synchronizes",
        "implicit_synchronizes",
        "graphs",
        "memory",
    }


def test_launches_by_name():
    x, gamma = torch.ones(4, 8).npu(), torch.ones(8).npu()
    with counters.window() as counted:
        torch_npu.npu_rms_norm(x, gamma)
        torch_npu.npu_rms_norm(x, gamma)
        torch_npu.npu_swiglu(x)
        x.add_(1)
        x[1:].view(3, 2, 4).transpose(0, 1)  # views are no launches
    assert counted["launches"] == {"npu::npu_rms_norm": 2, "npu::npu_swiglu": 1, "aten::add_.Tensor": 1} or counted[
        "launches"
    ] == {"npu::npu_rms_norm": 2, "npu::npu_swiglu": 1, "aten::add.out": 1}


def test_a_refused_call_reads_nothing():
    with counters.window() as counted, pytest.raises(RuntimeError):
        torch_npu.npu_fused_infer_attention_score(
            *[torch.ones(2, 4, 64).half().npu()] * 3, num_heads=4, input_layout="TND"
        )
    assert counted["kv_bytes"] == {"token": 0, "page": 0}


def test_copies_by_direction():
    host = torch.arange(6, dtype=torch.int32)
    with counters.window() as counted:
        x = host.npu()  # 24 bytes to the device
        x.cpu()  # 24 back
        x.tolist()  # 24 back
        x[0].item()  # 4 back
        bool(x[1] > 0)  # 1 back
        y = torch.empty_like(x)
        y.copy_(x)  # 24 on the device
        y.copy_(host)  # 24 to the device
        x[torch.tensor([1, 2])]  # the host's index, 16 to the device
    assert counted["copies"] == {
        "device_to_host": 4,
        "device_to_host_bytes": 24 + 24 + 4 + 1,
        "host_to_device": 3,
        "host_to_device_bytes": 24 + 24 + 16,
        "device_to_device": 1,
        "device_to_device_bytes": 24,
    }


def test_synchronisations():
    x = torch.tensor([1.0, 0.0]).npu()
    with counters.window() as counted:
        torch.npu.synchronize()
        torch.accelerator.synchronize()
        torch.npu.current_stream().synchronize()
        torch.npu.Event().synchronize()
        torch.npu.current_stream().wait_stream(torch.npu.Stream())  # waits on the device, not on the host
        x + 1
    assert counted["synchronizes"] == 4
    assert counted["implicit_synchronizes"] == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: torch.unique(x),
        lambda x: torch.equal(x, x),
        lambda x: torch.repeat_interleave(x, torch.ones(2, dtype=torch.long).npu()),
    ],
)
def test_operators_that_wait_for_data(function):
    x = torch.tensor([1.0, 0.0]).npu()
    with counters.window() as counted:
        function(x)
    assert counted["implicit_synchronizes"] == 1


def attention(query_lengths, kv_lengths, mode, *, pre=2147483647, heads=4, kv_heads=2, size=64):
    tokens = sum(query_lengths)
    pages = [-(-n // 128) for n in kv_lengths]
    cache = torch.zeros(max(sum(pages), 1), 128, kv_heads * size, dtype=torch.bfloat16).npu()
    table = torch.zeros(len(kv_lengths), max(pages), dtype=torch.int32).npu()
    with counters.window() as counted:
        torch_npu.npu_fused_infer_attention_score(
            torch.zeros(tokens, heads, size, dtype=torch.bfloat16).npu(),
            cache,
            cache,
            atten_mask=CAUSAL if mode else None,
            block_table=table,
            actual_seq_lengths=torch.tensor(query_lengths).cumsum(0).tolist(),
            actual_seq_lengths_kv=kv_lengths,
            num_heads=heads,
            num_key_value_heads=kv_heads,
            sparse_mode=mode,
            pre_tokens=pre,
            next_tokens=0,
            input_layout="TND",
            block_size=128,
        )
    # key and value, 2 heads of 64 channels of 2 bytes
    return {kind: number / (2 * kv_heads * size * 2) for kind, number in counted["kv_bytes"].items()}


def test_attention_reads_each_sequences_keys_once():
    assert attention([1, 1, 1], [300, 128, 1], 3) == {"token": 429, "page": 384 + 128 + 128}


def test_one_sequence_of_many_rows_reads_the_prefix_once():
    assert attention([16], [2048], 0) == {"token": 2048, "page": 2048}


def test_a_sequence_without_queries_or_keys_reads_nothing():
    assert attention([1, 0, 1], [0, 500, 10], 3) == {"token": 10, "page": 128}


def test_a_window_reads_its_keys_only():
    # The query at position 999 sees keys 900 to 999: in pages 7 (896 ...).
    assert attention([1], [1000], 4, pre=99) == {"token": 100, "page": 128}
    # Queries 998 and 999 see keys 899 to 999.
    assert attention([2], [1000], 4, pre=99) == {"token": 101, "page": 128}
    assert attention([1], [1000], 4, pre=200) == {"token": 201, "page": 256}


def test_paged_attention_is_counted_too():
    cache = torch.zeros(4, 128, 2, 64, dtype=torch.float16).npu()
    query = torch.zeros(2, 4, 64, dtype=torch.float16).npu()
    table = torch.zeros(2, 2, dtype=torch.int32).npu()
    with counters.window() as counted:
        torch_npu._npu_paged_attention(
            query,
            cache,
            cache,
            2,
            4,
            0.1,
            table,
            torch.tensor([130, 5], dtype=torch.int32),
            torch.empty_like(query),
        )
    row = 2 * 2 * 64 * 2
    assert counted["kv_bytes"] == {"token": 135 * row, "page": 3 * 128 * row}
    assert counted["launches"] == {"npu::_npu_paged_attention": 1}
    assert counted["copies"]["host_to_device"] == 0  # the lengths are read on the host


def test_memory():
    with counters.window() as counted:
        x = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
    assert counted["memory"]["allocated"] >= 1 << 20
    assert counted["memory"]["peak"] >= counted["memory"]["allocated"]
    del x


def test_reset_sets_counts_to_zero_and_keeps_memory():
    x = torch.ones(4, device="npu") + 1
    torch.npu.synchronize()
    counters.add_kv_bytes(3, 4)
    allocated = counters.snapshot()["memory"]["allocated"]
    counters.reset()
    now = counters.snapshot()
    assert now["launches"] == {}
    assert now["kv_bytes"] == {"token": 0, "page": 0}
    assert not any(now["copies"].values())
    assert now["synchronizes"] == now["implicit_synchronizes"] == 0
    assert now["memory"]["allocated"] == allocated
    del x
