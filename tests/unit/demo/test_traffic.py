"""KV traffic from attention calls: what counts as a decode step, and the ideal."""

from __future__ import annotations

import pytest

from demo import traffic

FUSED = "npu::npu_fused_infer_attention_score"


def call(lengths, *, queries=None, masked=True, lse=False, sequences=None, op=FUSED, paged=True):
    queries = queries or [1] * len(lengths)
    return {
        "op": op,
        "query_lengths": queries,
        "kv_lengths": lengths,
        "sequences": len(lengths) if sequences is None else sequences,
        "masked": masked,
        "lse": lse,
        "paged": paged,
        "kv_bytes_token": sum(lengths) * 10,
    }


def prefix(length, rows):
    return call([length], queries=[rows], masked=False, lse=True)


def test_a_two_stage_layer_is_one_decode_call():
    calls = traffic.decode_calls([prefix(256, 3), call([5, 6, 7], lse=True), call([261, 262, 263])])
    assert [(c.requests, c.prefix, c.lengths, c.bytes_read) for c in calls] == [
        (3, 256, (5, 6, 7), 2740),
        (3, 0, (261, 262, 263), 7860),
    ]


def test_prefill_is_no_decode_step():
    assert traffic.decode_calls([call([300], queries=[300]), call([300, 301], queries=[1, 40])]) == []
    assert traffic.decode_calls([call([300], paged=False)]) == []


def test_the_fp32_prefix_op_counts_as_prefix():
    (found,) = traffic.decode_calls(
        [prefix(128, 2) | {"op": "npu::fa_fp32_stage1", "lse": True}, call([1, 2], lse=True)]
    )
    assert found.prefix == 128


def test_averages_are_over_full_steps_and_all_layers():
    stock = traffic.decode_calls([call([260, 262])] * 2 + [call([261, 263])] * 2 + [call([261])] * 2)
    measured = traffic.traffic(stock, requests=2, layers=2)
    assert measured is not None
    assert measured.steps == 2
    assert measured.bytes_per_step == pytest.approx(2 * 10 * (522 + 524) / 2)
    assert traffic.ideal_bytes(stock, 2, 2, shared_tokens=256) == pytest.approx(2 * 10 * ((256 + 10) + (256 + 12)) / 2)
    assert traffic.traffic(stock, requests=3, layers=2) is None
    assert traffic.traffic(stock, requests=2, layers=2, two_stage=True) is None


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [([[1] * 300, [1] * 290 + [2]], 256), ([[1] * 256, [1] * 300], 256), ([[1, 2], [3, 2]], 0), ([[1] * 255], 128)],
)
def test_shared_pages_are_whole(prompts, shared):
    assert traffic.shared_pages(prompts, 128) == shared
