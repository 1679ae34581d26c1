"""The device build's limits: data, and two ways to ask."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from split_batch_kernels import (
    DEVICE_LIMITS,
    MERGE,
    STAGE1,
    DeviceLimitError,
    check_device_limits,
    limit_violations,
)

bf16 = torch.bfloat16


def stage1_arguments(dtype=bf16, head_size=128, page=128, heads=8, kv_heads=2):
    cache = torch.zeros(1, page, kv_heads, head_size, dtype=dtype)
    one = torch.ones(1, dtype=torch.int64)
    return torch.zeros(1, heads, head_size, dtype=dtype), cache, cache, torch.zeros(1, 1, dtype=torch.int32), one, one


def merge_arguments(o1, o2, head_size):
    return torch.zeros(2, head_size, dtype=o1), torch.zeros(2, head_size, dtype=o2), torch.zeros(2), torch.zeros(2)


def test_what_the_device_takes():
    check_device_limits(STAGE1, *stage1_arguments(), q_seqlen_value=1)
    for o1 in (bf16, torch.float32):
        for code in (0, 1, 2):
            check_device_limits(MERGE, *merge_arguments(o1, bf16, 128), code)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.float32}, "dtype of query is torch.float32, the device build takes bfloat16"),
        ({"dtype": torch.float16}, "dtype of value is torch.float16, the device build takes bfloat16"),
        ({"head_size": 64}, "head size is 64, the device build takes 128"),
        ({"page": 64}, "page size is 64, the device build takes 128"),
        ({"heads": 5}, "5 query heads are no multiple of 2 key-value heads"),
    ],
)
def test_stage1_limits(changes, message):
    with pytest.raises(DeviceLimitError, match=message):
        check_device_limits(STAGE1, *stage1_arguments(**changes))


def test_all_broken_limits_are_named():
    with pytest.raises(DeviceLimitError) as caught:
        check_device_limits(STAGE1, *stage1_arguments(dtype=torch.float16, head_size=64, page=16))
    message = str(caught.value)
    assert message.startswith("npu::fa_fp32_stage1: not taken by the device build: ")
    assert message.count(";") == 4


@pytest.mark.parametrize(
    ("o1", "o2", "head_size", "message"),
    [
        (torch.float16, bf16, 128, "dtype of o1 is torch.float16, the device build takes bfloat16 or float32"),
        (bf16, torch.float32, 128, "dtype of o2 is torch.float32, the device build takes bfloat16"),
        (bf16, bf16, 400, "head size is 400, the device build takes at most 384"),
    ],
)
def test_merge_limits(o1, o2, head_size, message):
    with pytest.raises(DeviceLimitError, match=message):
        check_device_limits(MERGE, *merge_arguments(o1, o2, head_size))


def test_facts_without_tensors():
    assert limit_violations(STAGE1) == ()
    assert limit_violations(STAGE1, head_size=128, scale=128**-0.5, num_heads=40, num_kv_heads=8) == ()
    (scale,) = limit_violations(STAGE1, head_size=128, scale=0.1)
    assert scale.startswith("softmax scale is 0.1, the device build has 1/sqrt(128)")
    assert limit_violations(STAGE1, head_size=128, scale=float("nan")) != ()
    assert limit_violations(STAGE1, dtypes={"query": "float16"}) != ()
    assert limit_violations(MERGE, head_size=24) == ("head size is 24, the device build takes multiples of 16",)


def test_unknown_questions_are_refused():
    with pytest.raises(TypeError, match="knows no fact named headsize"):
        limit_violations(STAGE1, headsize=128)
    with pytest.raises(TypeError, match="no dtype limit for 'output'"):
        limit_violations(STAGE1, dtypes={"output": "float32"})
    with pytest.raises(KeyError):
        limit_violations("npu::something", head_size=1)


def test_limits_cannot_be_changed():
    with pytest.raises(TypeError):
        DEVICE_LIMITS[STAGE1] = DEVICE_LIMITS[MERGE]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEVICE_LIMITS[STAGE1].page_sizes = ()  # type: ignore[misc]
