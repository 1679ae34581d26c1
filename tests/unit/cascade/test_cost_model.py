"""The cost model: its formulas against numbers worked out by hand, and its terms against its sums."""

from __future__ import annotations

import math

import pytest

from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.cascade import cost_model
from vllm_ascend_split_batch.cascade.cost_model import AttentionShape, Coefficients, CostModel

QWEN_14B = AttentionShape(query_heads=40, kv_heads=8, head_size=128, element_bytes=2, layers=48)
#: 4096 bytes a token: 1 GB/s reads one in 4.096 us. 20480 operations a row: at 0.02048 TFLOP/s one takes 1 us.
COEFFICIENTS = Coefficients(
    stock_launch_us=100,
    stock_request_us=2,
    cascade_launch_us=300,
    cascade_request_us=5,
    cascade_step_us=70,
    read_gb_s=4.096,
    reuse_gb_s=8.192,
    cache_mib=None,
    prefix_tflop_s=0.02048,
)


def test_bytes_and_operations_of_a_shape():
    assert QWEN_14B.kv_bytes == 4096
    assert QWEN_14B.row_flops == 4 * 40 * 128
    # Both partial results written and read with their LSE, the sum written: 64 requests move 4.8 MB without the
    # replicated LSE.
    assert QWEN_14B.merge_bytes == 2 * 40 * ((4 * 128 + 4) + (2 * 128 + 4)) + 40 * 2 * 128
    assert 64 * QWEN_14B.merge_bytes == pytest.approx(4.63e6, rel=0.01)


def by_hand() -> tuple[float, float]:
    """3 requests share 10 tokens and have 6 more in all; a token costs 1 us to read and 0.5 us to read again."""
    stock = 100 + 2 * 3 + (10 + 6) * 1.0 + 2 * 10 * 0.5
    merge = 3 * QWEN_14B.merge_bytes / 4096
    cascade = 300 + 5 * 3 + (10 + 6) * 1.0 + 3 * 10 * 1.0 + merge
    return 48 * stock, 70 + 48 * cascade


def worked_out(module) -> tuple[float, float]:
    model = module.CostModel(COEFFICIENTS, QWEN_14B)
    return model.stock_us(3, 10, 6), model.cascade_us(3, 10, 6)


def test_both_times_are_those_worked_out_by_hand():
    assert worked_out(cost_model) == pytest.approx(by_hand())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "+ (requests - 1) * self._again_us(prefix_tokens)\n        )",
            "+ requests * self._again_us(prefix_tokens)\n        )",
        ),
        ("return c.cascade_step_us + self.shape.layers * (", "return self.shape.layers * ("),
        ("self._token_us = shape.kv_bytes * self._read_us", "self._token_us = shape.kv_bytes / 2 * self._read_us"),
        ("c.cascade_request_us + self._merge_us +", "c.cascade_request_us +"),
    ],
)
def test_a_changed_formula_is_noticed(mutant, old, new):  # noqa: F811
    assert worked_out(mutant(cost_model, old, new)) != pytest.approx(by_hand())


def test_terms_add_up():
    model = CostModel(COEFFICIENTS, QWEN_14B)
    batch = (64, 4096, 16384)
    assert model.stock_us(*batch) == pytest.approx(48 * model.stock_terms(*batch).total)
    assert model.cascade_us(*batch) == pytest.approx(70 + 48 * model.cascade_terms(*batch).total)
    assert model.cascade_terms(*batch).reuse == 0
    assert model.stock_terms(*batch).prefix_rows == model.stock_terms(*batch).merge == 0


def test_shared_blocks_beyond_the_cache_are_read_from_memory_again():
    from dataclasses import replace

    token = QWEN_14B.kv_bytes
    small = CostModel(replace(COEFFICIENTS, cache_mib=100 * token / (1 << 20)), QWEN_14B)
    unlimited = CostModel(COEFFICIENTS, QWEN_14B)
    assert small.stock_us(8, 100, 8) == pytest.approx(unlimited.stock_us(8, 100, 8))
    # 200 tokens: half of them at 0.5 us, half at 1 us, for 7 requests and 48 layers.
    assert small.stock_us(8, 200, 8) - unlimited.stock_us(8, 200, 8) == pytest.approx(48 * 7 * 100 * 0.5)


def test_a_cost_too_small_to_be_measured_is_no_cost():
    free = Coefficients(0, 0, 0, 0, 0, None, None, None, None)
    model = CostModel(free, QWEN_14B)
    assert model.stock_us(64, 8192, 100) == model.cascade_us(64, 8192, 100) == 0


def test_break_even_is_the_first_winning_prefix():
    model = CostModel(COEFFICIENTS, AttentionShape(40, 8, 128, 2))
    fast = CostModel(Coefficients(100, 2, 300, 5, 70, 4.096, 8.192, None, 1.0), AttentionShape(40, 8, 128, 2))
    # A prefix row costs more than reading a token again: no prefix is long enough.
    assert model.break_even(64, 64) is None
    for margin in (0.0, 0.1):
        tokens = fast.break_even(64, 64, margin=margin)
        assert tokens is not None

        def saving(prefix: int) -> float:
            stock = fast.stock_us(64, prefix, 64)
            return (stock - fast.cascade_us(64, prefix, 64)) / stock

        assert saving(tokens - 1) <= margin < saving(tokens)
    assert fast.break_even(64, 64, limit=1) is None


def test_a_prediction_is_fast():
    import timeit

    model = CostModel(COEFFICIENTS, QWEN_14B)
    took = min(
        timeit.repeat(lambda: model.stock_us(64, 4096, 64) - model.cascade_us(64, 4096, 64), number=1000, repeat=5)
    )
    assert took / 1000 < 20e-6
    assert math.isfinite(model.stock_us(1, 1, 1))
