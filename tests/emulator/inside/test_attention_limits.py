"""Calls outside the documented limits raise, and say what is wrong."""

from __future__ import annotations

import pytest
import torch
import torch_npu
from torch_npu import _backend
from torch_npu.emulator import settings

CAUSAL = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1).npu()
Q = torch.zeros(6, 4, 64, dtype=torch.bfloat16)
CACHE = torch.zeros(5, 128, 128, dtype=torch.bfloat16)
GOOD = {
    "query": Q,
    "key": CACHE,
    "value": CACHE,
    "atten_mask": CAUSAL,
    "block_table": torch.zeros(2, 2, dtype=torch.int32),
    "actual_seq_lengths": [2, 6],
    "actual_seq_lengths_kv": [200, 256],
    "num_heads": 4,
    "num_key_value_heads": 2,
    "scale": 0.125,
    "sparse_mode": 3,
    "input_layout": "TND",
    "block_size": 128,
}


def call(**changes):
    arguments = {**GOOD, **changes}
    arguments = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    return torch_npu.npu_fused_infer_attention_score(
        arguments.pop("query"), arguments.pop("key"), arguments.pop("value"), **arguments
    )


def test_the_unchanged_call_is_accepted():
    call()


def cache(*shape):
    return {"key": torch.zeros(*shape, dtype=torch.bfloat16), "value": torch.zeros(*shape, dtype=torch.bfloat16)}


def unpaged(**changes):
    return {
        "key": torch.zeros(9, 2, 64, dtype=torch.bfloat16),
        "value": torch.zeros(9, 2, 64, dtype=torch.bfloat16),
        "block_table": None,
        "actual_seq_lengths_kv": [4, 9],
        **changes,
    }


BSND = {
    "query": torch.zeros(2, 3, 4, 64, dtype=torch.bfloat16),
    "key": torch.zeros(2, 9, 2, 64, dtype=torch.bfloat16),
    "value": torch.zeros(2, 9, 2, 64, dtype=torch.bfloat16),
    "block_table": None,
    "input_layout": "BSND",
    "sparse_mode": 0,
    "atten_mask": None,
    "actual_seq_lengths": None,
    "actual_seq_lengths_kv": None,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # lengths
        ({"actual_seq_lengths": None}, "layout TND needs the query lengths"),
        ({"actual_seq_lengths": [4, 2]}, "query ends must not decrease: number 1 is 2 after 4"),
        ({"actual_seq_lengths": [2, 5]}, "the last query end is 5, the query has 6 tokens"),
        ({"actual_seq_lengths": [2, 7]}, "the last query end is 7, the query has 6 tokens"),
        ({"actual_seq_lengths_kv": None}, "as many key lengths as query lengths: 2, got none"),
        ({"actual_seq_lengths_kv": [1, 2, 3]}, "as many key lengths as query lengths: 2, got 3"),
        ({"actual_seq_lengths_kv": [1, -1]}, "key lengths: number 1 is -1"),
        ({"actual_seq_lengths_kv": [1, 257]}, "sequence 1 has 257 keys, its row of block_table holds 2 blocks of 128"),
        # block table
        ({"block_table": torch.zeros(2, 2, dtype=torch.int64)}, "must be two-dimensional int32"),
        ({"block_table": torch.zeros(4, dtype=torch.int32)}, "must be two-dimensional int32"),
        ({"block_table": torch.zeros(3, 2, dtype=torch.int32)}, "has 3 rows for 2 sequences"),
        (
            {"block_table": torch.tensor([[0, 1], [0, 5]], dtype=torch.int32)},
            "sequence 1 names block 5 as its number 1",
        ),
        ({"block_table": torch.tensor([[0, -1], [0, 1]], dtype=torch.int32)}, "sequence 0 names block -1"),
        ({"block_size": 64}, "block_size=64, but the cache has 128 tokens in a block"),
        ({"block_size": 0}, "block_size=0, but the cache has 128"),
        (
            {**cache(5, 64, 128), "block_size": 64, "actual_seq_lengths_kv": [9, 9]},
            "must be a multiple of 128, at most 512",
        ),
        ({**cache(5, 640, 128), "block_size": 640}, "must be a multiple of 128, at most 512"),
        (
            {**cache(5, 24, 128), "block_size": 24, "actual_seq_lengths": [3, 6], "actual_seq_lengths_kv": [9, 9]},
            "must be a multiple of 128",
        ),
        # cache
        (cache(5, 128, 129), "does not divide into 2 heads"),
        (cache(5, 2, 64, 128, 16), "NZ format .* is not modelled"),
        (cache(5, 4, 128, 64), "must be .blocks, heads, block_size, D. with 2 heads"),
        ({"value": torch.zeros(6, 128, 128, dtype=torch.bfloat16)}, "must be alike"),
        (
            {
                **cache(1, 128, 65536),
                "query": torch.zeros(6, 256, 256, dtype=torch.bfloat16),
                "num_key_value_heads": 256,
                "num_heads": 256,
            },
            "takes heads . D up to 65535, got 65536",
        ),
        # heads
        ({"num_heads": 3}, "must have 3 heads"),
        ({"num_heads": 4, "num_key_value_heads": 3, **cache(5, 128, 192)}, "4 query heads are no multiple of 3"),
        (
            {
                "query": torch.zeros(6, 65, 64, dtype=torch.bfloat16),
                "num_heads": 65,
                "num_key_value_heads": 1,
                **cache(5, 128, 64),
            },
            "at most 64 may share one",
        ),
        (
            {"query": torch.zeros(6, 4, 24, dtype=torch.bfloat16), **cache(5, 128, 48)},
            "head size 24 .* must be a multiple of 16",
        ),
        (
            {"query": torch.zeros(6, 4, 272, dtype=torch.bfloat16), **cache(5, 128, 544)},
            "grouped heads: head size 272 must be at most 256",
        ),
        (
            {"query": torch.zeros(6, 2, 32, dtype=torch.bfloat16), "num_heads": 2, **cache(5, 128, 64)},
            "without grouped heads: head size 32 must be 64, 128 or 192",
        ),
        (
            {"query": torch.zeros(6, 4, 512, dtype=torch.bfloat16), **cache(5, 128, 1024)},
            "head size 512 .MLA. is not modelled",
        ),
        # masks and modes
        ({"atten_mask": None}, "sparse_mode=3 needs atten_mask of 2048 x 2048"),
        ({"atten_mask": None, "sparse_mode": 4}, "sparse_mode=4 needs atten_mask of 2048 x 2048"),
        ({"atten_mask": torch.ones(256, 256, dtype=torch.bool)}, "needs atten_mask of 2048 x 2048, got .256, 256."),
        ({"atten_mask": torch.zeros(2048, 2048)}, "atten_mask of torch.float32: accepted are bool, int8, uint8"),
        ({"sparse_mode": 0}, "layout TND with sparse_mode=0 takes no atten_mask"),
        ({"sparse_mode": 1}, "sparse_mode=1: layout TND takes 0, 3 and 4"),
        ({"sparse_mode": 2}, "sparse_mode=2: layout TND takes 0, 3 and 4"),
        ({"sparse_mode": 5}, "sparse_mode=5: accepted are 0 to 4"),
        ({"sparse_mode": 4, "pre_tokens": -3, "next_tokens": 2}, "-3 . next_tokens 2 is negative"),
        ({"inner_precise": 4}, "inner_precise=4: accepted are 0 to 3"),
        ({"inner_precise": 1}, "inner_precise=1: layout TND takes 0"),
        # layouts and dtypes
        ({"input_layout": "NTD_TND"}, "input_layout='NTD_TND' is not modelled"),
        ({"input_layout": "made up"}, "is not modelled; modelled are TND"),
        ({"query": Q.half()}, "key of torch.bfloat16 with a query of torch.float16 is not modelled"),
        ({"query": Q.double(), **{k: CACHE.double() for k in ("key", "value")}}, "accepted are float16 and bfloat16"),
        ({"query": Q.view(6, 256)}, "layout TND takes a query of 3 dimensions"),
        # what is not modelled names itself
        ({"pse_shift": torch.zeros(1)}, "the argument pse_shift is not modelled"),
        ({"key_shared_prefix": CACHE}, "the argument key_shared_prefix is not modelled"),
        ({"query_rope": Q}, "the argument query_rope is not modelled"),
        ({"antiquant_mode": 1}, "the argument antiquant_mode is not modelled"),
        ({"scale": 0.0}, "a scale of 0.0 is not modelled"),
        # unpaged
        (unpaged(actual_seq_lengths_kv=[5, 4]), "key ends must not decrease: number 1 is 4 after 5"),
        (unpaged(actual_seq_lengths_kv=[4, 10]), "the last key end is 10, there are 9 keys"),
        (unpaged(key=torch.zeros(9, 4, 64, dtype=torch.bfloat16)), "must have 2 heads"),
        (unpaged(key=torch.zeros(9, 2, 80, dtype=torch.bfloat16)), "64 channels with key heads of 80"),
        # batch layouts
        ({**BSND, "actual_seq_lengths": [4]}, "query lengths: number 0 is 4, must be from 0 to 3"),
        ({**BSND, "actual_seq_lengths_kv": [1, 10]}, "key lengths: number 1 is 10, must be from 0 to 9"),
        ({**BSND, "sparse_mode": 1}, "sparse_mode=1 needs atten_mask"),
        ({**BSND, "sparse_mode": 2}, "sparse_mode=2 needs atten_mask"),
        ({**BSND, "atten_mask": torch.zeros(3, 8, dtype=torch.bool)}, "does not cover a batch of 2, 3 queries, 9 keys"),
        ({**BSND, "atten_mask": torch.zeros(2, 4, 3, 9, dtype=torch.bool)}, "must have 1 as its second dimension"),
        (
            {
                **BSND,
                "key": torch.zeros(3, 9, 2, 64, dtype=torch.bfloat16),
                "value": torch.zeros(3, 9, 2, 64, dtype=torch.bfloat16),
            },
            "keys of batch 3 with a query of batch 2",
        ),
        (
            {
                **BSND,
                "input_layout": "BNSD_BSND",
                "query": torch.zeros(2, 4, 1, 64, dtype=torch.bfloat16),
                **{k: torch.zeros(2, 2, 9, 64, dtype=torch.bfloat16) for k in ("key", "value")},
            },
            "BNSD_BSND takes query lengths above 1",
        ),
        (
            {**BSND, "block_table": torch.zeros(2, 2, dtype=torch.int32), **cache(5, 2, 128, 64)},
            "layout BSND takes a cache of .blocks, block_size",
        ),
        (
            {**BSND, "block_table": torch.zeros(2, 2, dtype=torch.int32), **cache(5, 128, 128)},
            "a paged cache needs the key lengths",
        ),
    ],
)
def test_refused(changes, message):
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        call(**changes)


def test_block_sizes_of_16_are_for_single_queries():
    changes = {**cache(5, 16, 128), "block_size": 16, "actual_seq_lengths": [1, 2], "actual_seq_lengths_kv": [9, 9]}
    call(query=Q[:2], **changes)
    with pytest.raises(RuntimeError, match="for a query length of more than 1"):
        call(query=Q[:3], **{**changes, "actual_seq_lengths": [1, 3]})


def test_float32_is_refused_unless_the_extension_is_on(monkeypatch):
    changes = {"query": Q.float(), "key": CACHE.float(), "value": CACHE.float()}
    assert settings.FLOAT32_ATTENTION  # how these tests are started
    call(**changes)
    monkeypatch.setattr(settings, "FLOAT32_ATTENTION", False)
    _backend.forget_attention_plans()  # what was accepted before needs no second look
    with pytest.raises(RuntimeError, match=r"hardware takes float16 and bfloat16 .NPU_EMU_FLOAT32_ATTENTION=1"):
        call(**changes)


def test_a_host_block_table_is_refused():
    arguments = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in GOOD.items()}
    arguments["block_table"] = GOOD["block_table"]
    with pytest.raises(RuntimeError, match="got a host tensor as argument 'block_table'"):
        torch_npu.npu_fused_infer_attention_score(
            arguments.pop("query"), arguments.pop("key"), arguments.pop("value"), **arguments
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learnable_sink": torch.zeros(3, dtype=torch.bfloat16)}, "learnable_sink .3,. must be .4."),
        ({"learnable_sink": torch.zeros(4, dtype=torch.float32)}, "learnable_sink of torch.float32"),
        (
            {"learnable_sink": torch.zeros(4, dtype=torch.bfloat16), "return_softmax_lse": True},
            "not documented and not modelled",
        ),
        ({"query_quant_mode": 3}, "the argument query_quant_mode is not modelled"),
        ({"query_rope": Q}, "the argument query_rope is not modelled"),
        ({"out_dtype": 1}, "the argument out_dtype is not modelled"),
    ],
)
def test_refused_by_the_second_version(changes, message):
    arguments = {
        "actual_seq_qlen": [6],
        "actual_seq_kvlen": [9],
        "num_query_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "TND",
        **{k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in changes.items()},
    }
    key = torch.zeros(9, 2, 64, dtype=torch.bfloat16).npu()
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.npu_fused_infer_attention_score_v2(Q.npu(), key, key, **arguments)


@pytest.mark.parametrize(
    ("attention", "lse", "message"),
    [
        (
            torch.zeros(5, 4, 64, dtype=torch.bfloat16),
            torch.zeros(6, 4, 1),
            "out.0. .5, 4, 64. of torch.bfloat16 must be",
        ),
        (
            torch.zeros(6, 4, 64),
            torch.zeros(6, 4, 1),
            "out.0. .* of torch.float32 must be contiguous .* torch.bfloat16",
        ),
        (
            torch.zeros(6, 4, 64, dtype=torch.bfloat16),
            torch.zeros(1),
            "out.1. .1,. of torch.float32 must be contiguous",
        ),
    ],
)
def test_results_that_do_not_fit(attention, lse, message):
    key = torch.zeros(9, 2, 64, dtype=torch.bfloat16).npu()
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_fused_infer_attention_score.out(
            Q.npu(),
            key,
            key,
            actual_seq_lengths=[6],
            actual_seq_lengths_kv=[9],
            num_heads=4,
            num_key_value_heads=2,
            input_layout="TND",
            softmax_lse_flag=True,
            out=[attention.npu(), lse.npu()],
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": torch.tensor([3, 4], dtype=torch.int64)}, "context_lens .2,. of torch.int64 must be .2. of int32"),
        ({"context": torch.tensor([3], dtype=torch.int32)}, "context_lens .1,. .* must be .2."),
        ({"context": torch.tensor([3, -4], dtype=torch.int32)}, "must not be negative"),
        ({"context": torch.tensor([3, 257], dtype=torch.int32)}, "sequence 1 has 257 keys"),
        ({"out": torch.zeros(3, 4, 64, dtype=torch.bfloat16)}, "out .3, 4, 64. .* must be like the query"),
        ({"kv_heads": 4}, "must be .blocks, block_size, 4, D."),
        ({"heads": 2}, "query .2, 4, 64. must be .tokens, 2, D."),
    ],
)
def test_refused_by_paged_attention(changes, message):
    arguments = {
        "heads": 4,
        "kv_heads": 2,
        "context": torch.tensor([3, 4], dtype=torch.int32),
        "out": torch.zeros(2, 4, 64, dtype=torch.bfloat16),
        **changes,
    }
    pages = torch.zeros(5, 128, 2, 64, dtype=torch.bfloat16).npu()
    with pytest.raises(RuntimeError, match=message):
        torch_npu._npu_paged_attention(
            Q[:2].npu(),
            pages,
            pages,
            arguments["kv_heads"],
            arguments["heads"],
            0.125,
            torch.zeros(2, 2, dtype=torch.int32).npu(),
            arguments["context"],
            arguments["out"].npu(),
        )
