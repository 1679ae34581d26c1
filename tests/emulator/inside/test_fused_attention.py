"""The fused attention operators against dense float64 attention, in every layout and sparse mode they take."""

from __future__ import annotations

import math

import pytest
import torch
import torch_npu
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_npu import _backend
from torch_npu.emulator import settings as emulator_settings

from .attention_reference import attend, band, gather

UNLIMITED = 2147483647
# bfloat16 and float16: the rounding of weights and result; float32: that of float32 sums.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
CAUSAL = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1).npu()


def rand(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def visible(mode: int, queries: int, keys: int, pre: int, nxt: int) -> torch.Tensor | None:
    if mode == 0:
        return None
    if mode == 2:
        return band(queries, keys, at_end=False, after=0)
    if mode == 3:
        return band(queries, keys, at_end=True, after=0)
    return band(queries, keys, at_end=True, before=pre, after=nxt)


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, tolerance: float | None = None) -> None:
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    torch.testing.assert_close(actual.cpu().double(), expected.double(), atol=tolerance, rtol=0)


def close_lse(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Exactly the same rows are invalid; the others agree."""
    actual = actual.cpu().double()
    assert torch.equal(actual.isinf(), expected.isinf())
    finite = ~expected.isinf()
    torch.testing.assert_close(actual[finite], expected[finite], atol=2e-5, rtol=2e-6)


class Paged:
    """A paged cache with random block ids, and the sequences in it."""

    def __init__(
        self, lengths, kv_heads, size, block_size, dtype, *, heads_first=False, strided=False, share=0, seed=0
    ):
        generator = torch.Generator().manual_seed(seed)
        needed = [-(-length // block_size) for length in lengths]
        blocks = sum(needed) + 3
        order = torch.randperm(blocks, generator=generator).tolist()
        # The first `share` blocks of all sequences are the same ones.
        self.ids = [(order[:share] + order[share + i * 0 :])[:n] if share else [] for i, n in enumerate(needed)]
        at = share
        for i, n in enumerate(needed):
            own = n - min(share, n)
            self.ids[i] = order[: min(share, n)] + order[at : at + own]
            at += own
        columns = max([*needed, 1]) + 1
        # Unused entries hold what must never be read.
        self.table = torch.full((len(lengths), columns), -7, dtype=torch.int32)
        for i, ids in enumerate(self.ids):
            self.table[i, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        both = torch.randn(blocks, 2, block_size, kv_heads, size, generator=generator).to(dtype)
        self.dense = both[:, 0], both[:, 1]
        if strided:  # K and V interleaved in one tensor, as some hosts keep them
            on_npu = both.npu()
            caches = on_npu[:, 0], on_npu[:, 1]
        else:
            caches = both[:, 0].contiguous().npu(), both[:, 1].contiguous().npu()
        if heads_first:
            self.key, self.value = (c.transpose(1, 2).contiguous() for c in caches)
        else:
            self.key, self.value = (c.flatten(2) for c in caches)
            if strided:
                assert not self.key.is_contiguous()

    def rows(self, i: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = (gather(cache, self.ids[i], length) for cache in self.dense)
        return key, value


def tnd(
    query_lengths,
    kv_lengths,
    heads,
    kv_heads,
    size,
    dtype,
    mode,
    *,
    block_size=128,
    pre=UNLIMITED,
    nxt=UNLIMITED,
    version=1,
    out=False,
    scale=None,
    tolerance=None,
    **cache,
):
    """One paged TND call, compared with the reference sequence by sequence."""
    scale = size**-0.5 if scale is None else scale
    paged = Paged(kv_lengths, kv_heads, size, block_size, dtype, **cache)
    query = rand(sum(query_lengths), heads, size, dtype=dtype, seed=7)
    ends = torch.tensor(query_lengths).cumsum(0).tolist()
    arguments = {
        "atten_mask": None if mode == 0 else CAUSAL,
        "block_table": paged.table.npu(),
        "input_layout": "TND",
        "block_size": block_size,
        "num_key_value_heads": kv_heads,
        "sparse_mode": mode,
        "pre_tokens": pre,
        "next_tokens": nxt,
    }
    if version == 1:
        op = torch_npu.npu_fused_infer_attention_score
        arguments |= {"actual_seq_lengths": ends, "actual_seq_lengths_kv": kv_lengths, "num_heads": heads}
        arguments |= {"scale": scale, "softmax_lse_flag": True}
    else:
        op = torch_npu.npu_fused_infer_attention_score_v2
        arguments |= {"actual_seq_qlen": ends, "actual_seq_kvlen": kv_lengths, "num_query_heads": heads}
        arguments |= {"softmax_scale": scale, "return_softmax_lse": True}
    if out:
        attention = torch.full((len(query), heads, size), 9.0, device="npu", dtype=dtype)
        lse = torch.full((len(query), heads, 1), 9.0, device="npu")
        workspace = getattr(torch_npu, f"_{op.__name__}_get_max_workspace")(
            query.npu(), paged.key, paged.value, **arguments
        )
        for _ in range(2):  # the second time it needs no Python
            attention.fill_(9.0)
            lse.fill_(9.0)
            op.out(query.npu(), paged.key, paged.value, workspace=workspace, out=[attention, lse], **arguments)
    else:
        attention, lse = op(query.npu(), paged.key, paged.value, **arguments)
        # The same call again needs no Python, and differs in nothing.
        for first, again in zip((attention, lse), op(query.npu(), paged.key, paged.value, **arguments), strict=True):
            assert torch.equal(first, again)
            assert first.stride() == again.stride()
    assert attention.shape == (len(query), heads, size)
    assert attention.dtype == dtype
    assert lse.shape == (len(query), heads, 1)
    assert lse.dtype == torch.float32
    begin = 0
    for i, (queries, keys) in enumerate(zip(query_lengths, kv_lengths, strict=True)):
        rows = slice(begin, begin + queries)
        begin += queries
        expected, expected_lse = attend(
            query[rows], *paged.rows(i, keys), scale, visible(mode, queries, keys, pre, nxt)
        )
        close(attention[rows], expected, dtype, tolerance)
        close_lse(lse[rows, :, 0], expected_lse)


HEADS = [(9, 3, 64), (8, 8, 64), (8, 1, 128), (14, 2, 64), (32, 8, 128)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_paged_decode(heads, dtype):
    tnd([1] * 5, [1, 128, 129, 1000, 2047], *heads, dtype, 3)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mode", [0, 3])
def test_one_sequence_of_many_rows(mode, dtype):
    """The first stage of cascade attention: all rows over a shared prefix, without mask."""
    tnd([16], [2048], 9, 3, 64, dtype, mode)
    tnd([33], [640], 32, 8, 128, dtype, mode)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_chunked_prefill_beside_decode(dtype):
    tnd([1, 300, 17, 1], [400, 300, 200, 1], 4, 2, 64, dtype, 3)


def test_a_sequence_with_more_queries_than_keys_has_invalid_rows():
    tnd([5, 300, 2], [3, 20, 1], 4, 2, 64, torch.float32, 3)


def test_no_keys_gives_zeros_and_an_infinite_lse():
    tnd([1, 2, 1], [0, 0, 5], 4, 2, 64, torch.float32, 3)
    tnd([2], [0], 4, 2, 64, torch.bfloat16, 0)


def test_a_sequence_without_queries_is_nothing():
    tnd([1, 0, 2], [4, 9, 6], 4, 2, 64, torch.float32, 3)


@pytest.mark.parametrize(("pre", "nxt"), [(0, 0), (100, 0), (5, 7), (-2, 9), (UNLIMITED, 0)])
def test_band(pre, nxt):
    tnd([1, 40, 200], [500, 40, 300], 4, 2, 64, torch.float32, 4, pre=pre, nxt=nxt)


@pytest.mark.parametrize("options", [{"heads_first": True}, {"strided": True}, {"share": 3}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_layouts_and_shared_blocks(options, dtype):
    tnd([1, 1, 20], [500, 700, 600], 6, 2, 128, dtype, 3, **options)


@pytest.mark.parametrize("block_size", [16, 48, 128, 512])
def test_block_sizes(block_size):
    tnd([1, 1], [300, 75], 4, 2, 64, torch.bfloat16, 3, block_size=block_size)


@pytest.mark.parametrize("version", [1, 2])
def test_the_out_form_writes_both_results(version):
    tnd([1, 30], [500, 30], 4, 2, 64, torch.bfloat16, 3, version=version, out=True)


def test_the_second_version():
    tnd([1, 30], [500, 30], 4, 2, 64, torch.float32, 3, version=2)


def test_the_scale_is_the_callers():
    tnd([1, 30], [500, 30], 4, 2, 64, torch.float32, 3, scale=0.3)


def test_large_logits_do_not_overflow():
    # Logits of some hundreds: a float32 logit is right to 2e-5 of one there, and so are the weights.
    tnd([1, 30], [500, 30], 4, 2, 64, torch.float32, 3, scale=10.0, tolerance=1e-4)


@pytest.mark.parametrize("factor", [1e4, 1e9, 1e12, 1e16])
@pytest.mark.parametrize("heads", [(1, 1), (32, 1)], ids=str)
def test_of_huge_logits_one_key_takes_all(factor, heads):
    shapes = enumerate(decode_shapes(*heads, 600))
    query, key, value = (rand(*shape, dtype=torch.bfloat16, seed=seed) for seed, shape in shapes)
    query *= factor
    out, _ = decode(query, key, value)
    expected, _ = attend(query, key[:600], value[:600], 0.125)
    close(out, expected, torch.bfloat16)


NOT_FINITE = {
    "query": lambda query, key: query[0, :, 3].fill_(math.nan),
    "one key": lambda query, key: key[-1, :, 3].fill_(math.nan),
    "all keys": lambda query, key: key.fill_(math.nan),
    "infinite query": lambda query, key: query[0, :, 3].fill_(math.inf),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("keys", [1, 300, 2000])
@pytest.mark.parametrize("heads", [(2, 1), (40, 2)], ids=str)
@pytest.mark.parametrize("planted", NOT_FINITE.values(), ids=NOT_FINITE.keys())
def test_what_is_not_a_number_shows_in_the_result(planted, heads, keys, dtype):
    """It must not pass for a row without keys, whose zeros a merge leaves out: memory given up is poisoned with it."""
    query, key, value = (rand(*shape, dtype=dtype, seed=i) for i, shape in enumerate(decode_shapes(*heads, keys)))
    planted(query, key[:keys])
    if planted is NOT_FINITE["infinite query"] and keys == 1:
        return  # its only logit may be -inf: a key that is not seen
    out, lse = decode(query, key, value, keys)
    assert out.isnan().all()
    assert lse.isnan().all()


def decode_shapes(heads, kv_heads, keys):
    whole = -(-keys // 128) * 128
    return (1, heads, 64), (whole, kv_heads, 64), (whole, kv_heads, 64)


def decode(query, key, value, keys=None):
    """One query and its keys, in pages of 128; of the last page `keys` may leave some out."""
    pages, kv_heads = len(key) // 128, key.shape[1]
    out, lse = torch_npu.npu_fused_infer_attention_score(
        query.npu(),
        *(cache.view(pages, 128, -1).npu() for cache in (key, value)),
        block_table=torch.arange(pages, dtype=torch.int32).unsqueeze(0).npu(),
        input_layout="TND",
        block_size=128,
        actual_seq_lengths=[1],
        actual_seq_lengths_kv=[600 if keys is None else keys],
        num_key_value_heads=kv_heads,
        num_heads=query.shape[1],
        scale=0.125,
        softmax_lse_flag=True,
    )
    return out.cpu(), lse.cpu()


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_paged_batch(data):
    kv_heads = data.draw(st.sampled_from([1, 2, 3]))
    group = data.draw(st.sampled_from([2, 3, 8]))
    lengths = data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), min_size=1, max_size=6))
    if sum(q for q, _ in lengths) == 0:
        lengths.append((1, 3))
    tnd(
        [q for q, _ in lengths],
        [k for _, k in lengths],
        kv_heads * group,
        kv_heads,
        data.draw(st.sampled_from([16, 64, 80, 128])),
        data.draw(st.sampled_from(list(TOLERANCE))),
        data.draw(st.sampled_from([0, 3, 4])),
        pre=data.draw(st.integers(0, 50)),
        nxt=data.draw(st.integers(0, 50)),
        heads_first=data.draw(st.booleans()),
        strided=data.draw(st.booleans()),
        share=data.draw(st.sampled_from([0, 1])),
        seed=data.draw(st.integers(0, 99)),
    )


def test_unpaged_tnd_takes_cumulative_key_ends():
    query, key, value = (rand(60, n, 64, dtype=torch.float32, seed=n) for n in (4, 2, 2))
    out, lse = torch_npu.npu_fused_infer_attention_score(
        query.npu(),
        key.npu(),
        value.npu(),
        atten_mask=CAUSAL,
        actual_seq_lengths=[10, 60],
        actual_seq_lengths_kv=[15, 60],
        num_heads=4,
        num_key_value_heads=2,
        scale=0.125,
        sparse_mode=3,
        input_layout="TND",
        softmax_lse_flag=True,
    )
    for q, k in ((slice(0, 10), slice(0, 15)), (slice(10, 60), slice(15, 60))):
        queries, keys = q.stop - q.start, k.stop - k.start
        expected, expected_lse = attend(query[q], key[k], value[k], 0.125, band(queries, keys, at_end=True, after=0))
        close(out[q], expected, torch.float32)
        close_lse(lse[q, :, 0], expected_lse)


def test_values_may_be_narrower_than_keys():
    query, key, value = (
        rand(5, 4, 192, dtype=torch.bfloat16),
        *(rand(9, 4, n, dtype=torch.bfloat16) for n in (192, 128)),
    )
    out, _ = torch_npu.npu_fused_infer_attention_score(
        query.npu(),
        key.npu(),
        value.npu(),
        actual_seq_lengths=[5],
        actual_seq_lengths_kv=[9],
        num_heads=4,
        scale=0.07,
        input_layout="TND",
    )
    assert out.shape == (5, 4, 128)
    close(out, attend(query, key, value, 0.07)[0], torch.bfloat16)


# ---- layouts with a batch dimension ---------------------------------------------------------------------------------


def to_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """[B, S, N, D] to the layout's shape."""
    return {"BSND": x, "BSH": x.flatten(2)}[layout] if layout in ("BSND", "BSH") else x.transpose(1, 2).contiguous()


def from_output(x: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    if layout == "BSH":
        return x.unflatten(2, (heads, -1))
    return x.transpose(1, 2) if layout == "BNSD" else x


def batched(layout, mode, queries, keys, query_lengths, kv_lengths, dtype, *, pre=UNLIMITED, nxt=UNLIMITED, mask=None):
    batch, heads, kv_heads, size = 3, 4, 2, 64
    query = rand(batch, queries, heads, size, dtype=dtype, seed=1)
    key, value = (rand(batch, keys, kv_heads, size, dtype=dtype, seed=s) for s in (2, 3))
    given_mask = mask.npu() if mask is not None else None if mode in (0, 1) else CAUSAL
    out, lse = torch_npu.npu_fused_infer_attention_score(
        *(to_layout(x, layout).npu() for x in (query, key, value)),
        atten_mask=given_mask,
        actual_seq_lengths=query_lengths,
        actual_seq_lengths_kv=kv_lengths,
        num_heads=heads,
        num_key_value_heads=kv_heads,
        scale=0.125,
        sparse_mode=mode,
        pre_tokens=pre,
        next_tokens=nxt,
        input_layout=layout,
        softmax_lse_flag=True,
    )
    assert lse.shape == (batch, heads, queries, 1)
    out = from_output(out, layout, heads).cpu()
    for i in range(batch):
        own = queries if query_lengths is None or queries == 1 else query_lengths[i % len(query_lengths)]
        seen = keys if kv_lengths is None else kv_lengths[i % len(kv_lengths)]
        sees = None
        if mask is not None:
            rows = (
                mask
                if mask.dim() == 2 and queries > 1
                else mask.reshape(mask.shape[0], -1, mask.shape[-1])[i % len(mask)]
            )
            sees = ~rows.bool()[:own, :seen]
            if mode == 0 and queries > 1:
                sees = sees & band(own, seen, at_end=False, before=pre, after=nxt)
        elif mode >= 2 and queries > 1:
            sees = visible(mode, own, seen, pre, nxt)
        expected, expected_lse = attend(query[i, :own], key[i, :seen], value[i, :seen], 0.125, sees)
        close(out[i, :own], expected, dtype)
        close_lse(lse[i, :, :own, 0].t(), expected_lse)
        assert not out[i, own:].any()
        assert lse[i, :, own:].cpu().isinf().all()


BATCH_LAYOUTS = ["BSND", "BSH", "BNSD", "BNSD_BSND"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", [0, 2, 3, 4])
@pytest.mark.parametrize("layout", BATCH_LAYOUTS)
def test_batch_layouts(layout, mode, dtype):
    pre, nxt = (9, 4) if mode == 4 else (UNLIMITED, UNLIMITED)
    batched(layout, mode, 20, 50, None, None, dtype, pre=pre, nxt=nxt)
    batched(layout, mode, 20, 50, [20, 7, 13], [50, 31, 8], dtype, pre=pre, nxt=nxt)


@pytest.mark.parametrize("layout", BATCH_LAYOUTS)
def test_one_length_stands_for_the_whole_batch(layout):
    batched(layout, 3, 20, 50, [12], [33], torch.float32)


@pytest.mark.parametrize("mode", [0, 2, 3, 4])
@pytest.mark.parametrize("layout", ["BSND", "BSH", "BNSD"])
def test_with_one_query_the_sparse_mode_and_the_query_lengths_have_no_effect(layout, mode):
    batched(layout, mode, 1, 50, [0], [50, 31, 8], torch.float32, pre=1, nxt=0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8])
@pytest.mark.parametrize(
    "shape", [(20, 50), (3, 20, 50), (1, 20, 50), (3, 1, 20, 50), (1, 1, 20, 50), (32, 64)], ids=str
)
@pytest.mark.parametrize("mode", [0, 1])
def test_explicit_masks(mode, shape, dtype):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.5
    mask[..., 3, :] = True  # a row that sees nothing
    batched("BSND", mode, 20, 50, None, None, torch.float32, mask=mask.to(dtype))


def test_an_explicit_mask_is_cut_to_the_band_in_sparse_mode_0_and_not_in_1():
    mask = torch.zeros(20, 50, dtype=torch.bool)
    for mode in (0, 1):
        batched("BNSD", mode, 20, 50, None, None, torch.float32, mask=mask, pre=3, nxt=2 if mode == 0 else UNLIMITED)


@pytest.mark.parametrize("shape", [(3, 50), (3, 1, 50), (3, 1, 1, 50)], ids=str)
def test_explicit_masks_of_one_query(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.5
    batched("BNSD", 0, 1, 50, None, None, torch.float32, mask=mask)


@pytest.mark.parametrize("layout", ["BSND", "BSH", "BNSD"])
@pytest.mark.parametrize("queries", [1, 9])
def test_batch_layouts_over_a_paged_cache(layout, queries):
    lengths = [300, 128, 17]
    paged = Paged(lengths, 2, 64, 128, torch.float32, heads_first=layout == "BNSD")
    query = rand(3, queries, 4, 64, dtype=torch.float32)
    out, _ = torch_npu.npu_fused_infer_attention_score(
        to_layout(query, layout).npu(),
        paged.key,
        paged.value,
        atten_mask=CAUSAL,
        actual_seq_lengths_kv=lengths,
        block_table=paged.table.npu(),
        block_size=128,
        num_heads=4,
        num_key_value_heads=2,
        scale=0.125,
        sparse_mode=3,
        input_layout=layout,
    )
    for i, keys in enumerate(lengths):
        expected, _ = attend(query[i], *paged.rows(i, keys), 0.125, band(queries, keys, at_end=True, after=0))
        close(from_output(out, layout, 4)[i], expected, torch.float32)


def test_without_the_flag_the_lse_is_one_zero():
    q = rand(1, 4, 64, dtype=torch.bfloat16).npu()
    _, lse = torch_npu.npu_fused_infer_attention_score(
        q, q, q, actual_seq_lengths=[1], actual_seq_lengths_kv=[1], num_heads=4, input_layout="TND"
    )
    assert lse.shape == (1,)
    assert lse.tolist() == [0]
    assert lse.dtype == torch.float32


def test_without_the_flag_the_out_form_leaves_the_lse_alone():
    q = rand(1, 4, 64, dtype=torch.bfloat16).npu()
    out, lse = torch.empty_like(q), torch.full((1,), 5.0, device="npu")
    torch_npu.npu_fused_infer_attention_score.out(
        q, q, q, actual_seq_lengths=[1], actual_seq_lengths_kv=[1], num_heads=4, input_layout="TND", out=[out, lse]
    )
    assert lse.tolist() == [5]
    assert torch.equal(out.cpu(), q.cpu())  # one key: its value


def test_sinks_are_one_more_logit_without_a_value():
    query, key, value = rand(6, 4, 64, dtype=torch.bfloat16), *(rand(6, 2, 64, dtype=torch.bfloat16) for _ in range(2))
    sink = torch.tensor([-1.0, 0.0, 1.0, 3.0], dtype=torch.bfloat16)
    out, _ = torch_npu.npu_fused_infer_attention_score_v2(
        query.npu(),
        key.npu(),
        value.npu(),
        atten_mask=CAUSAL,
        actual_seq_qlen=[6],
        actual_seq_kvlen=[6],
        num_query_heads=4,
        num_key_value_heads=2,
        softmax_scale=0.125,
        sparse_mode=3,
        input_layout="TND",
        learnable_sink=sink.npu(),
    )
    expected, _ = attend(query, key, value, 0.125, band(6, 6, at_end=True, after=0), sink)
    close(out, expected, torch.bfloat16)
    without, _ = attend(query, key, value, 0.125, band(6, 6, at_end=True, after=0))
    assert (out.cpu().double() - without).abs().max() > 0.1  # the sink matters here


def test_shapes_can_be_traced_without_data():
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(5, 4, 64, device="npu", dtype=torch.bfloat16)
        cache = torch.empty(8, 128, 2 * 64, device="npu", dtype=torch.bfloat16)
        out, lse = torch_npu.npu_fused_infer_attention_score(
            q,
            cache,
            cache,
            block_table=torch.empty(5, 2, device="npu", dtype=torch.int32),
            actual_seq_lengths=[1, 2, 3, 4, 5],
            actual_seq_lengths_kv=[9] * 5,
            num_heads=4,
            num_key_value_heads=2,
            input_layout="TND",
            block_size=128,
            softmax_lse_flag=True,
        )
    assert (out.shape, out.dtype, out.device.type) == ((5, 4, 64), torch.bfloat16, "npu")
    assert (lse.shape, lse.dtype) == ((5, 4, 1), torch.float32)


# ---- faults: what the tests of others are shown to notice -----------------------------------------------------------


@pytest.fixture
def fault(monkeypatch):
    def switch_on(*names: str) -> None:
        _backend.forget_attention_plans()
        monkeypatch.setattr(emulator_settings, "ACTIVE_FAULTS", frozenset(names))

    return switch_on


@pytest.mark.parametrize(
    ("name", "mode"), [("lse_shift", 0), ("lse_base2", 3), ("kv_length_plus_one", 3), ("fia_uniform_average", 0)]
)
def test_the_reference_notices_each_fault(fault, name, mode):
    fault(name)
    with pytest.raises(AssertionError):
        tnd([4], [300], 4, 2, 64, torch.float32, mode)


def test_the_uniform_average_is_the_mean_of_the_values(fault):
    fault("fia_uniform_average")
    q, k, v = (rand(9, 4, 64, dtype=torch.float32, seed=s) for s in range(3))
    out, _ = torch_npu.npu_fused_infer_attention_score(
        q.npu(), k.npu(), v.npu(), actual_seq_lengths=[9], actual_seq_lengths_kv=[9], num_heads=4, input_layout="TND"
    )
    close(out, v.double().mean(0).expand(9, 4, 64), torch.float32)


def test_the_lse_shift_is_of_calls_without_mask_only(fault):
    fault("lse_shift")
    tnd([4], [300], 4, 2, 64, torch.float32, 3)


# ---- paged attention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_paged_attention(dtype, on_host):
    lengths = [300, 1, 128, 0]
    paged = Paged(lengths, 2, 64, 128, dtype)
    query = rand(4, 6, 64, dtype=dtype)
    out = torch.full_like(query, 9).npu()
    context = torch.tensor(lengths, dtype=torch.int32)
    caches = [cache.unflatten(2, (2, 64)) for cache in (paged.key, paged.value)]
    arguments = (query.npu(), *caches, 2, 6, 0.125, paged.table.npu(), context if on_host else context.npu())
    workspace = torch_npu._npu_paged_attention_get_workspace(*arguments, out)
    torch_npu._npu_paged_attention(*arguments, out, workspace=workspace)
    for i, keys in enumerate(lengths):
        expected, _ = attend(query[i : i + 1], *paged.rows(i, keys), 0.125)
        close(out[i : i + 1], expected, dtype)


def test_the_mean_error_of_bfloat16_is_that_of_rounding():
    """Sums are float32: the error must not grow with the number of keys."""
    errors = []
    for keys in (256, 4096):
        q, k, v = (rand(n, h, 64, dtype=torch.bfloat16, seed=n) for n, h in ((8, 4), (keys, 2), (keys, 2)))
        out, _ = torch_npu.npu_fused_infer_attention_score(
            q.npu(),
            k.npu(),
            v.npu(),
            actual_seq_lengths=[8],
            actual_seq_lengths_kv=[keys],
            num_heads=4,
            num_key_value_heads=2,
            scale=0.125,
            input_layout="TND",
        )
        expected, _ = attend(q, k, v, 0.125)
        errors.append(float((out.cpu().double() - expected).abs().mean() / expected.abs().mean()))
    assert max(errors) < 2**-8
    assert math.isclose(errors[0], errors[1], rel_tol=1.0)


# ---- what is remembered of accepted calls ---------------------------------------------------------------------------


def test_a_repeated_call_computes_with_its_own_tensors():
    """Plans are known by shapes and lengths; nothing of the tensors is kept."""
    for seed in range(3):
        tnd([1, 30], [500, 30], 4, 2, 64, torch.float32, 3, seed=seed)
    tnd([1, 30], [500, 31], 4, 2, 64, torch.float32, 3)
    tnd([1, 30], [500, 30], 4, 2, 64, torch.float32, 3, heads_first=True)
    tnd([1, 30], [500, 30], 4, 2, 64, torch.float32, 3, strided=True)
    tnd([1, 30], [500, 30], 4, 2, 64, torch.float32, 0)


def test_an_accepted_call_does_not_excuse_another(monkeypatch):
    good = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "TND", "block_size": 128}
    q, cache = torch.zeros(3, 4, 64).npu(), torch.zeros(4, 128, 128).npu()

    def call(ids=(0, 1, 2), **changes):
        return torch_npu.npu_fused_infer_attention_score(
            q,
            cache,
            cache,
            block_table=torch.tensor([ids], dtype=torch.int32).npu(),
            **{"actual_seq_lengths": [3], "actual_seq_lengths_kv": [300], **good, **changes},
        )

    call()
    with pytest.raises(RuntimeError, match="names block 9 as its number 2"):
        call(ids=(0, 1, 9))
    with pytest.raises(RuntimeError, match="sequence 0 has 400 keys"):
        call(actual_seq_lengths_kv=[400])
    with pytest.raises(RuntimeError, match="the last query end is 2"):
        call(actual_seq_lengths=[2])
    with pytest.raises(RuntimeError, match="needs atten_mask"):
        call(sparse_mode=3)
    _backend.forget_attention_plans()
    monkeypatch.setattr(emulator_settings, "FLOAT32_ATTENTION", False)
    with pytest.raises(RuntimeError, match="hardware takes float16 and bfloat16"):
        call()
