"""Every broken rule raises, names the op and the argument, says what it got and what it expected."""

from __future__ import annotations

import pytest
import torch
from split_batch_kernels import OpContractError

i32, i64 = torch.int32, torch.int64


def stage1_arguments(**changes):
    arguments = {
        "query": torch.zeros(4, 4, 32),
        "key": torch.zeros(3, 16, 2, 32),
        "value": torch.zeros(3, 16, 2, 32),
        "block_table": torch.tensor([[0, 1], [2, 0]], dtype=i32),
        "actual_q_seqlens": torch.tensor([2, 2]),
        "actual_kv_seqlens": torch.tensor([32, 5]),
        "q_seqlen_value": 0,
    }
    arguments.update(changes)
    return arguments


def to_device(arguments, device):
    return {
        name: torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=device)
        if isinstance(a, torch.Tensor) and device == "meta" else a
        for name, a in arguments.items()
    }


# (changes, what the message must contain)
BY_METADATA = {
    "query rank": ({"query": torch.zeros(4, 128)}, ("rank of query is 2", "expected 3")),
    "key rank": ({"key": torch.zeros(3, 16, 64)}, ("rank of key is 3", "expected 4")),
    "table rank": ({"block_table": torch.zeros(2, dtype=i32)}, ("rank of block_table is 1", "expected 2")),
    "lengths rank": ({"actual_q_seqlens": torch.ones(2, 1, dtype=i64)}, ("rank of actual_q_seqlens is 2",)),
    "query dtype": ({"query": torch.zeros(4, 4, 32, dtype=torch.float64)},
                    ("dtype of query is torch.float64", "torch.bfloat16, torch.float16 or torch.float32")),
    "cache dtype": ({"key": torch.zeros(3, 16, 2, 32, dtype=torch.float16)},
                    ("dtype of key is torch.float16", "torch.float32, the dtype of query")),
    "value dtype": ({"value": torch.zeros(3, 16, 2, 32, dtype=torch.int8)}, ("dtype of value is torch.int8",)),
    "table dtype": ({"block_table": torch.zeros(2, 2, dtype=i64)}, ("dtype of block_table is torch.int64", "int32")),
    "length dtype": ({"actual_kv_seqlens": torch.ones(2, dtype=i32)},
                     ("dtype of actual_kv_seqlens is torch.int32", "int64")),
    "strided query": ({"query": torch.zeros(4, 8, 32)[:, ::2]}, ("query is not contiguous",)),
    "strided cache": ({"key": torch.zeros(3, 2, 16, 32).transpose(1, 2)}, ("key is not contiguous",)),
    "strided table": ({"block_table": torch.zeros(2, 4, dtype=i32)[:, :2]}, ("block_table is not contiguous",)),
    "value shape": ({"value": torch.zeros(3, 16, 1, 32)},
                    ("shape of value is (3, 16, 1, 32)", "(3, 16, 2, 32), the shape of key")),
    "head size": ({"query": torch.zeros(4, 4, 40),
                   "key": torch.zeros(3, 16, 2, 40), "value": torch.zeros(3, 16, 2, 40)},
                  ("head size of query is 40", "a multiple of 16")),
    "head sizes differ": ({"query": torch.zeros(4, 4, 64)}, ("head size of key and value is 32", "64")),
    "page size": ({"key": torch.zeros(3, 24, 2, 32), "value": torch.zeros(3, 24, 2, 32)},
                  ("page size of key and value is 24", "a multiple of 16")),
    "heads": ({"query": torch.zeros(4, 5, 32)}, ("number of query heads is 5", "multiple of the 2 key-value heads")),
    "count of q lengths": ({"actual_q_seqlens": torch.tensor([2, 1, 1])},
                           ("length of actual_q_seqlens is 3", "2, the rows of block_table")),
    "count of kv lengths": ({"actual_kv_seqlens": torch.tensor([2])}, ("length of actual_kv_seqlens is 1",)),
    "negative value": ({"q_seqlen_value": -1}, ("q_seqlen_value is -1",)),
    "uniform rows": ({"q_seqlen_value": 3}, ("number of query rows is 4", "6: 2 sequences of q_seqlen_value 3")),
    "rows without sequences": (
        {"block_table": torch.zeros(0, 1, dtype=i32), "actual_q_seqlens": torch.zeros(0, dtype=i64),
         "actual_kv_seqlens": torch.zeros(0, dtype=i64)},
        ("number of sequences in block_table is 0", "at least 1 for 4 query rows")),
    "no columns": ({"block_table": torch.zeros(2, 0, dtype=i32)}, ("columns of block_table is 0",)),
}

BY_VALUE = {
    "rows": ({"actual_q_seqlens": torch.tensor([2, 1])}, ("number of query rows is 4", "3, the sum")),
    "empty query": ({"actual_q_seqlens": torch.tensor([4, 0])}, ("actual_q_seqlens[1] is 0", "at least 1")),
    "not uniform": ({"actual_q_seqlens": torch.tensor([3, 1]), "q_seqlen_value": 2},
                    ("actual_q_seqlens[0] is 3", "2, the q_seqlen_value")),
    "no keys": ({"actual_kv_seqlens": torch.tensor([32, 0])}, ("actual_kv_seqlens[1] is 0", "at least 1")),
    "narrow table": ({"actual_kv_seqlens": torch.tensor([32, 33])},
                     ("columns of block_table is 2", "at least 3 for the 33 keys of sequence 1 in pages of 16")),
    "block id": ({"block_table": torch.tensor([[0, 1], [3, 9]], dtype=i32)},
                 ("a block id in row 1 of block_table is 3", "0 to 2")),
    "negative block id": ({"block_table": torch.tensor([[0, -1], [2, 9]], dtype=i32)},
                          ("a block id in row 0 of block_table is -1",)),
}


@pytest.mark.parametrize(("changes", "parts"), [*BY_METADATA.values(), *BY_VALUE.values()],
                         ids=[*BY_METADATA, *BY_VALUE])
def test_stage1_says_what_is_wrong(changes, parts):
    with pytest.raises(OpContractError) as caught:
        torch.ops.npu.fa_fp32_stage1(**stage1_arguments(**changes))
    message = str(caught.value)
    assert message.startswith("npu::fa_fp32_stage1: ")
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(("changes", "parts"), BY_METADATA.values(), ids=BY_METADATA)
def test_stage1_meta_checks_the_same_metadata(changes, parts):
    with pytest.raises(OpContractError) as caught:
        torch.ops.npu.fa_fp32_stage1(**to_device(stage1_arguments(**changes), "meta"))
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_stage1_unbroken_arguments_pass():
    torch.ops.npu.fa_fp32_stage1(**stage1_arguments())
    torch.ops.npu.fa_fp32_stage1(**stage1_arguments(q_seqlen_value=2))


def test_stage1_devices_do_not_mix():
    arguments = stage1_arguments(block_table=torch.zeros(2, 2, dtype=i32, device="meta"))
    with pytest.raises(OpContractError, match="device of block_table is meta, expected cpu, the device of query"):
        torch.ops.npu.fa_fp32_stage1(**arguments)


def merge_arguments(**changes):
    arguments = {
        "o1": torch.zeros(4, 2, 32), "o2": torch.zeros(4, 2, 32),
        "lse1": torch.zeros(8), "lse2": torch.zeros(64), "out_code": 0,
    }
    arguments.update(changes)
    return arguments


MERGE = {
    "scalar": ({"o1": torch.zeros(())}, ("rank of o1 is 0",)),
    "o1 dtype": ({"o1": torch.zeros(4, 2, 32, dtype=torch.float64)}, ("dtype of o1 is torch.float64",)),
    "o2 dtype": ({"o2": torch.zeros(4, 2, 32, dtype=torch.int32)}, ("dtype of o2 is torch.int32",)),
    "lse dtype": ({"lse2": torch.zeros(8, dtype=torch.bfloat16)}, ("dtype of lse2 is torch.bfloat16", "float32")),
    "strided o2": ({"o2": torch.zeros(2, 4, 32).transpose(0, 1)}, ("o2 is not contiguous",)),
    "strided lse": ({"lse1": torch.zeros(64)[::8]}, ("lse1 is not contiguous",)),
    "head size": ({"o1": torch.zeros(4, 2, 24), "o2": torch.zeros(4, 2, 24)},
                  ("head size of o1 is 24", "a multiple of 16")),
    "head sizes differ": ({"o2": torch.zeros(4, 4, 16)}, ("head size of o2 is 16", "32, the head size of o1")),
    "rows differ": ({"o2": torch.zeros(4, 3, 32)}, ("number of rows of o2 is 12", "8, the rows of o1")),
    "lse count": ({"lse1": torch.zeros(16)}, ("number of values in lse1 is 16", "8 (one per row) or 64")),
    "lse of too few rows": ({"lse2": torch.zeros(7)}, ("number of values in lse2 is 7",)),
    "out_code": ({"out_code": 3}, ("out_code is 3", "0 (the dtype of o1), 1 (torch.bfloat16) or 2 (torch.float32)")),
    "negative out_code": ({"out_code": -1}, ("out_code is -1",)),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("changes", "parts"), MERGE.values(), ids=MERGE)
def test_merge_says_what_is_wrong(changes, parts, device):
    with pytest.raises(OpContractError) as caught:
        torch.ops.npu.lse_merge(**to_device(merge_arguments(**changes), device))
    message = str(caught.value)
    assert message.startswith("npu::lse_merge: ")
    assert all(part in message for part in parts), message


def test_merge_devices_do_not_mix():
    with pytest.raises(OpContractError, match="device of lse1 is meta, expected cpu"):
        torch.ops.npu.lse_merge(**merge_arguments(lse1=torch.zeros(8, device="meta")))


def test_an_error_is_a_runtime_error_as_a_compiled_library_raises_it():
    assert issubclass(OpContractError, RuntimeError)
