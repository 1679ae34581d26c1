"""What the device builds accept, at each bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_ascend_split_batch.cascade.device_limits import ModelShape, beyond_limits, scale_is_builtin

QWEN_14B = ModelShape("bfloat16", head_size=128, block_size=128, query_heads=40, kv_heads=8, scale=128**-0.5)


@pytest.mark.parametrize("fp32_prefix", [False, True])
def test_the_measured_model_is_within_limits(fp32_prefix):
    assert beyond_limits(QWEN_14B, fp32_prefix=fp32_prefix) is None


@pytest.mark.parametrize(
    ("change", "fp32_prefix", "says"),
    [
        ({"dtype": "float16"}, False, "float16"),
        ({"dtype": "float32"}, True, "float32"),
        ({"kv_heads": 7}, False, "no multiple of 7"),
        ({"kv_heads": 0}, False, "no multiple of 0"),
        ({"head_size": 72}, False, "72"),
        ({"head_size": 400}, False, "400"),
        ({"head_size": 64}, True, "head size 128, not 64"),
        ({"block_size": 64}, True, "pages of 128 tokens, not 64"),
        ({"block_size": 256}, True, "pages of 128 tokens, not 256"),
        ({"block_size": 64}, False, "not 64"),
        ({"block_size": 640}, False, "not 640"),
        ({"query_heads": 65, "kv_heads": 1}, False, "at most 64"),
    ],
)
def test_each_limit_is_named(change, fp32_prefix, says):
    assert says in (beyond_limits(replace(QWEN_14B, **change), fp32_prefix=fp32_prefix) or "within limits")


@pytest.mark.parametrize(
    ("change", "fp32_prefix"),
    [
        ({"head_size": 64}, False),
        ({"block_size": 256}, False),
        ({"query_heads": 64, "kv_heads": 1}, False),
        ({"query_heads": 65, "kv_heads": 1}, True),
    ],
)
def test_what_only_the_other_prefix_stage_refuses_is_accepted(change, fp32_prefix):
    assert beyond_limits(replace(QWEN_14B, **change), fp32_prefix=fp32_prefix) is None


def test_the_builtin_scale_is_one_over_root_head_size():
    assert scale_is_builtin(QWEN_14B)
    assert not scale_is_builtin(replace(QWEN_14B, scale=128**-0.5 * (1 + 1e-6)))
    assert not scale_is_builtin(replace(QWEN_14B, head_size=64))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"dtype": "float16"}, None),
        ({"head_size": 96}, None),
        ({"dtype": "float32"}, "fused attention takes bfloat16 and float16, the model computes in float32"),
        ({"head_size": 100}, "npu_attention_update takes head sizes"),
        ({"block_size": 64}, "fused attention over a shared prefix takes pages"),
    ],
)
def test_without_the_wheel_the_hosts_operators_limit(change, said):
    found = beyond_limits(replace(QWEN_14B, **change), fp32_prefix=False, wheel=False)
    assert found is None if said is None else said in found
