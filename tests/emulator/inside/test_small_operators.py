"""Norms, activations, rotary embeddings, cache writes, sampling, quantising, merging: by their documented formulas.

The references here are written in float64 from the formulas, and do not share code with the operators.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch_npu
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(TOLERANCE)


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual, expected, dtype):
    """Within a rounding or two of the dtype, relative to the size of the values."""
    actual, expected = actual.cpu().double(), expected.double()
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


class TestNorms:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("gamma_shape", [(8,), (4, 8)])
    def test_rms_norm(self, dtype, gamma_shape):
        x, gamma = rand(2, 3, 4, 8, dtype=dtype), rand(*gamma_shape, dtype=dtype, seed=1)
        y, rstd = torch_npu.npu_rms_norm(x.npu(), gamma.npu(), 1e-5)
        dims = tuple(range(-len(gamma_shape), 0))
        expected = 1 / torch.sqrt(x.double().pow(2).mean(dims, keepdim=True) + 1e-5)
        close(y, x.double() * expected * gamma.double(), dtype)
        close(rstd, expected, torch.float32)
        assert (y.dtype, rstd.dtype) == (dtype, torch.float32)
        assert rstd.shape == ((2, 3, 4, 1) if len(gamma_shape) == 1 else (2, 3, 1, 1))

    def test_epsilon_matters(self):
        x = torch.full((1, 4), 1e-3)
        y, _ = torch_npu.npu_rms_norm(x.npu(), torch.ones(4).npu(), 1.0)
        close(y, x.double() / math.sqrt(1e-6 + 1), torch.float32)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_add_rms_norm(self, dtype):
        x1, x2, gamma = rand(5, 16, dtype=dtype), rand(5, 16, dtype=dtype, seed=1), rand(16, dtype=dtype, seed=2)
        y, rstd, x = torch_npu.npu_add_rms_norm(x1.npu(), x2.npu(), gamma.npu(), 1e-6)
        total = (x1.double() + x2.double()).to(dtype)
        assert torch.equal(x.cpu(), total)
        expected = 1 / torch.sqrt(total.double().pow(2).mean(-1, keepdim=True) + 1e-6)
        close(rstd, expected, torch.float32)
        close(y, total.double() * expected * gamma.double(), dtype)

    def test_shapes_that_do_not_fit(self):
        with pytest.raises(RuntimeError, match=r"gamma \(3,\) must be the last dimensions of x \(2, 4\)"):
            torch_npu.npu_rms_norm(torch.ones(2, 4).npu(), torch.ones(3).npu())
        with pytest.raises(RuntimeError, match="must be alike"):
            torch_npu.npu_add_rms_norm(torch.ones(2, 4).npu(), torch.ones(4).npu(), torch.ones(4).npu())

    def test_the_hosts_own_norm(self):
        from torch_npu.ops import host_custom

        host_custom.define()
        x1, x2, gamma, beta = rand(5, 16), rand(5, 16, seed=1), rand(16, seed=2), rand(16, seed=3)
        y, _, x = torch.ops._C_ascend.npu_add_rms_norm_bias(x1.npu(), x2.npu(), gamma.npu(), beta.npu(), 1e-6)
        plain, _, _ = torch_npu.npu_add_rms_norm(x1.npu(), x2.npu(), gamma.npu(), 1e-6)
        close(y, plain.cpu() + beta, torch.float32)
        assert torch.equal(x.cpu(), x1 + x2)
        gemmas, _ = torch.ops._C_ascend.npu_gemma_rms_norm(x1.npu(), gamma.npu(), 1e-6)
        close(gemmas, torch_npu.npu_rms_norm(x1.npu(), 1 + gamma.npu(), 1e-6)[0].cpu(), torch.float32)
        with pytest.raises(NotImplementedError, match="_C_ascend::device_print_tensor is not modelled"):
            torch.ops._C_ascend.device_print_tensor(x)


class TestActivations:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("dim", [-1, 0])
    def test_swiglu(self, dtype, dim):
        x = rand(4, 6, dtype=dtype)
        a, b = x.double().chunk(2, dim)
        close(torch_npu.npu_swiglu(x.npu(), dim), a / (1 + torch.exp(-a)) * b, dtype)

    def test_swiglu_of_an_odd_dimension(self):
        with pytest.raises(RuntimeError, match=r"dimension -1 of \(2, 3\) must be even"):
            torch_npu.npu_swiglu(torch.ones(2, 3).npu())

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_fast_gelu(self, dtype):
        x = torch.linspace(-9, 9, 50).to(dtype)
        wide = x.double()
        close(torch_npu.npu_fast_gelu(x.npu()), wide / (1 + torch.exp(-1.702 * wide)), dtype)


def rotated(x, positions, cache, head_size, half):
    """The rotary embedding as complex products: pairs times e^(i angle), the angle from the cache."""
    rotary = cache.shape[1]
    out = x.double().reshape(x.shape[0], -1, head_size).clone()
    for t, position in enumerate(positions.tolist()):
        cos, sin = cache[position].double().chunk(2)
        turn = torch.complex(cos, sin)
        for n in range(out.shape[1]):
            head = out[t, n, :rotary]
            real, imaginary = (head[: rotary // 2], head[rotary // 2 :]) if half else (head[0::2], head[1::2])
            result = torch.complex(real.clone(), imaginary.clone()) * turn
            if half:
                head[: rotary // 2], head[rotary // 2 :] = result.real, result.imag
            else:
                head[0::2], head[1::2] = result.real, result.imag
    return out.reshape(x.shape)


class TestRotaryEmbedding:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("mode", ["half", "interleaved"])
    @pytest.mark.parametrize("rotary", [64, 32])
    def test_mrope_without_sections(self, dtype, mode, rotary):
        positions = torch.tensor([3, 0, 9])
        query, key = rand(3, 2 * 64, dtype=dtype), rand(3, 64, dtype=dtype, seed=1)
        cache = rand(10, rotary, dtype=dtype, seed=2)
        outputs = torch_npu.npu_mrope(
            positions.npu(), query.npu(), key.npu(), cache.npu(), 64, mrope_section=[0, 0, 0], rotary_mode=mode
        )
        for x, y in zip((query, key), outputs, strict=True):
            close(y, rotated(x, positions, cache, 64, mode == "half"), dtype)

    @pytest.mark.parametrize("neox", [True, False])
    def test_rotary_embedding_works_in_place(self, neox):
        positions = torch.tensor([3, 0, 9])
        query, key, cache = rand(3, 128), rand(3, 64, seed=1), rand(10, 64, seed=2)
        npu_query, npu_key = query.npu(), key.npu()
        torch_npu._npu_rotary_embedding(positions.npu(), npu_query, npu_key, 64, cache.npu(), neox)
        close(npu_query, rotated(query, positions, cache, 64, neox), torch.float32)
        close(npu_key, rotated(key, positions, cache, 64, neox), torch.float32)

    @pytest.mark.parametrize("mode", ["half", "interleave"])
    def test_rotary_mul(self, mode):
        """With cosine and sine of one angle per pair it is the rotation by that angle."""
        x, cache = rand(4, 1, 64), rand(4, 64, seed=1)
        cos, sin = cache.chunk(2, -1)
        widen = (lambda c: torch.cat((c, c), -1)) if mode == "half" else (lambda c: c.repeat_interleave(2, -1))
        out = torch_npu.npu_rotary_mul(
            x.npu(), widen(cos).unsqueeze(1).npu(), widen(sin).unsqueeze(1).npu(), rotary_mode=mode
        )
        close(out, rotated(x.flatten(1), torch.arange(4), cache, 64, mode == "half").view(4, 1, 64), torch.float32)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"mrope_section": [16, 8, 8]}, "mrope_section=.16, 8, 8. is not modelled"),
            ({"rotary_mode": "quarter"}, "rotary_mode='quarter': accepted are 'half' and 'interleaved'"),
            ({"cache_mode": "interleave"}, "cache_mode='interleave': without sections it must be 'default'"),
            ({"head_size": 24}, "must be multiples of 16 for torch.float32"),
            ({"positions": torch.zeros(3, 2, dtype=torch.long)}, "one-dimensional positions are modelled"),
            ({"positions": torch.zeros(2, dtype=torch.long)}, "does not fit 2 positions"),
            ({"key": torch.zeros(3, 64).half()}, "key of torch.float16, cos_sin_cache of torch.float32 must be alike"),
            ({"cos_sin_cache": torch.zeros(9, 128)}, "is wider than head_size 64"),
        ],
    )
    def test_mrope_refuses(self, arguments, message):
        given = {
            "positions": torch.zeros(3, dtype=torch.long),
            "query": torch.zeros(3, 128),
            "key": torch.zeros(3, 64),
            "cos_sin_cache": torch.zeros(9, 64),
            "head_size": 64,
            **arguments,
        }
        given = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
        with pytest.raises((RuntimeError, NotImplementedError), match=message):
            torch_npu.npu_mrope(
                given.pop("positions"),
                given.pop("query"),
                given.pop("key"),
                given.pop("cos_sin_cache"),
                given.pop("head_size"),
                **given,
            )


class TestCacheWrites:
    @pytest.mark.parametrize("op", ["scatter", "scatter None", "reshape"])
    @pytest.mark.parametrize("strided", [False, True])
    @pytest.mark.parametrize("index", [torch.int32, torch.int64])
    def test_rows_go_to_their_slots(self, op, strided, index):
        key, value = rand(4, 2, 8), rand(4, 2, 8, seed=1)
        both = torch.zeros(3, 2, 16, 2, 8).npu()
        key_cache, value_cache = (both[:, 0], both[:, 1]) if strided else (both[:, 0].clone(), both[:, 1].clone())
        slots = torch.tensor([47, 0, -1, 17], dtype=index)
        arguments = (key.npu(), value.npu(), key_cache, value_cache, slots.npu())
        if op == "reshape":
            torch_npu._npu_reshape_and_cache(*arguments)
        else:
            torch_npu.npu_scatter_pa_kv_cache(*arguments, cache_mode=None if op.endswith("None") else "Norm")
        for rows, cache in ((key, key_cache), (value, value_cache)):
            expected = torch.zeros(3, 16, 2, 8)
            expected[2, 15], expected[0, 0], expected[1, 1] = rows[0], rows[1], rows[3]
            assert torch.equal(cache.cpu(), expected)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"slots": torch.tensor([48, 0], dtype=torch.int32)}, "slot 48 is beyond the cache's 3 blocks of 16"),
            ({"slots": torch.tensor([0], dtype=torch.int32)}, "must be one integer per row"),
            ({"slots": torch.tensor([0.0, 1.0])}, "must be one integer per row"),
            ({"rows": torch.zeros(2, 3, 8)}, "do not fit a cache"),
            ({"rows": torch.zeros(2, 2, 8).half()}, "rows of torch.float16 for a cache of torch.float32"),
            ({"cache_mode": "PA_NZ"}, "cache_mode='PA_NZ' is not modelled"),
            ({"seq_lens": torch.zeros(2, dtype=torch.int32)}, "seq_lens is not modelled"),
        ],
    )
    def test_refuses(self, change, message):
        given = {"rows": torch.zeros(2, 2, 8), "slots": torch.tensor([1, 0], dtype=torch.int32), "cache_mode": "Norm"}
        given = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in {**given, **change}.items()}
        cache = torch.zeros(3, 16, 2, 8).npu()
        rows, slots = given.pop("rows"), given.pop("slots")
        with pytest.raises((RuntimeError, NotImplementedError), match=message):
            torch_npu.npu_scatter_pa_kv_cache(rows, rows, cache, cache, slots, **given)


def filtered(row: list[float], k: int | None, p: float | None) -> list[float]:
    """Top-k then top-p of one row, in plain Python, as the documented steps."""
    order = sorted(range(len(row)), key=lambda i: row[i])
    kept = [row[i] for i in order]
    if k is not None:
        threshold = kept[len(kept) - k]
        kept = [x if x >= threshold else -math.inf for x in kept]
    if p is not None:
        top = max(kept)
        weights = [math.exp(x - top) for x in kept]
        total, running, result = sum(weights), 0.0, []
        for i, (x, weight) in enumerate(zip(kept, weights, strict=True)):
            running += weight / total
            result.append(-math.inf if running <= 1 - p and i < len(kept) - 1 else x)
        kept = result
    out = [0.0] * len(row)
    for position, x in zip(order, kept, strict=True):
        out[position] = x
    return out


class TestSampling:
    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def test_top_k_top_p(self, data):
        size = data.draw(st.integers(1, 12))
        # Few different values: ties are the point.
        row = data.draw(st.lists(st.integers(-4, 4).map(lambda i: i / 2), min_size=size, max_size=size))
        k = data.draw(st.none() | st.integers(1, size))
        p = data.draw(st.none() | st.sampled_from([0.0, 0.137, 0.5, 0.83, 1.0]))
        out = torch_npu.npu_top_k_top_p(
            torch.tensor([row]).npu(),
            None if p is None else torch.tensor([p]).npu(),
            None if k is None else torch.tensor([k], dtype=torch.int32).npu(),
        )
        assert out.cpu().tolist()[0] == filtered(row, k, p)

    def test_ties_with_the_kth_largest_stay(self):
        out = torch_npu.npu_top_k_top_p(
            torch.tensor([[1.0, 2.0, 2.0, 0.0]]).npu(), k=torch.ones(1, dtype=torch.int32).npu()
        )
        assert out.tolist() == [[-math.inf, 2, 2, -math.inf]]

    @pytest.mark.parametrize(
        ("p", "k", "message"),
        [
            (torch.ones(2, dtype=torch.float16), None, "p .2,. of torch.float16 must be .2. of torch.float32"),
            (torch.ones(3), None, "p .3,. of torch.float32 must be .2."),
            (None, torch.ones(2, dtype=torch.int64), "k .2,. of torch.int64 must be .2. of int32"),
            (None, torch.tensor([0, 1], dtype=torch.int32), "k .0, 1. must be from 1 to the size of a row, 4"),
            (None, torch.tensor([5, 1], dtype=torch.int32), "k .5, 1. must be from 1"),
        ],
    )
    def test_refuses(self, p, k, message):
        with pytest.raises(RuntimeError, match=message):
            torch_npu.npu_top_k_top_p(
                torch.zeros(2, 4).npu(), None if p is None else p.npu(), None if k is None else k.npu()
            )


class TestAttentionUpdate:
    @pytest.mark.parametrize("parts", [1, 2, 5, 16])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_merges_as_documented(self, parts, dtype):
        lse = [rand(6, seed=i) * 4 for i in range(parts)]
        out = [rand(6, 32, dtype=dtype, seed=100 + i) for i in range(parts)]
        merged, total = torch_npu.npu_attention_update([x.npu() for x in lse], [x.npu() for x in out], 1)
        expected_total = torch.logsumexp(torch.stack(lse).double(), 0)
        weights = torch.exp(torch.stack(lse).double() - expected_total)
        close(merged, (torch.stack(out).double() * weights.unsqueeze(-1)).sum(0), dtype)
        close(total, expected_total, torch.float32)
        assert merged.dtype == dtype

    def test_type_0_has_no_second_result(self):
        x, lse = rand(3, 8).npu(), rand(3).npu()
        merged, total = torch_npu.npu_attention_update([lse], [x], 0)
        assert total is None
        close(merged, x.cpu(), torch.float32)

    def test_an_empty_part_counts_nothing_and_a_row_without_any_is_not_a_number(self):
        """The documented formula, taken as it stands: -inf beside a finite value is no weight, -inf alone is 0/0."""
        x, y = rand(2, 8), rand(2, 8, seed=1)
        lse = [torch.tensor([1.0, -math.inf]), torch.tensor([-math.inf, -math.inf])]
        merged, _ = torch_npu.npu_attention_update([v.npu() for v in lse], [x.npu(), y.npu()], 0)
        close(merged[0], x[0], torch.float32)
        assert merged[1].cpu().isnan().all()

    @pytest.mark.parametrize(
        ("lse", "out", "kind", "message"),
        [
            ([torch.zeros(2)] * 17, [torch.zeros(2, 8)] * 17, 0, "takes 1 to 16 pairs .* got 17 and 17"),
            ([torch.zeros(2)], [torch.zeros(2, 8)] * 2, 0, "got 1 and 2"),
            ([torch.zeros(2)], [torch.zeros(2, 8)], 2, "update_type=2: accepted are 0 and 1"),
            ([torch.zeros(2)], [torch.zeros(2, 12)], 0, "D a multiple of 8 up to 512"),
            ([torch.zeros(2)], [torch.zeros(2, 520)], 0, "D a multiple of 8 up to 512"),
            ([torch.zeros(2, 1)], [torch.zeros(2, 8)], 0, r"lse \(2, 1\) .* must be \[2\] of float32"),
            ([torch.zeros(2).half()], [torch.zeros(2, 8)], 0, "of torch.float16 must be"),
            ([torch.zeros(2)], [torch.zeros(8, 2).t()], 0, "must be contiguous"),
            ([torch.zeros(2)] * 2, [torch.zeros(2, 8), torch.zeros(2, 8).half()], 0, "must be alike"),
        ],
    )
    def test_refuses(self, lse, out, kind, message):
        with pytest.raises(RuntimeError, match=message):
            torch_npu.npu_attention_update([x.npu() for x in lse], [x.npu() for x in out], kind)


class TestQuantising:
    def test_dynamic_quant_scales_each_row_to_127(self):
        x = rand(5, 16, dtype=torch.bfloat16)
        y, scale = torch_npu.npu_dynamic_quant(x.npu())
        wide = x.double()
        close(scale, wide.abs().amax(-1) / 127, torch.float32)
        assert torch.equal(y.cpu(), torch.round(wide / (wide.abs().amax(-1, keepdim=True) / 127)).to(torch.int8))
        assert y.cpu().abs().amax(-1).tolist() == [127] * 5

    def test_the_example_of_its_document(self):
        x = torch.tensor([[0.7261, 0.3726, 0.9126], [0.9023, 0.9990, 0.1279], [0.8628, 0.6240, 0.9028]]).half()
        y, scale = torch_npu.npu_dynamic_quant(x.npu())
        assert y.tolist() == [[101, 52, 127], [115, 127, 16], [121, 88, 127]]
        assert [round(s, 4) for s in scale.tolist()] == [0.0072, 0.0079, 0.0071]
        x = torch.tensor([[0.6680, 0.9492, 0.0845], [0.1924, 0.5278, 0.1484], [0.6631, 0.9497, 0.0957]]).half()
        smooth = torch.tensor([0.8042, 0.0884, 0.8901]).half()
        y, scale = torch_npu.npu_dynamic_quant(x.npu(), smooth_scales=smooth.npu())
        assert y.tolist() == [[127, 20, 18], [127, 38, 108], [127, 20, 20]]
        assert [round(s, 4) for s in scale.tolist()] == [0.0042, 0.0012, 0.0042]

    def test_a_row_of_zeros(self):
        y, scale = torch_npu.npu_dynamic_quant(torch.zeros(2, 4, dtype=torch.bfloat16).npu())
        assert not y.any()
        assert scale.tolist() == [0, 0]

    def test_the_norm_and_its_quantised_forms_agree(self):
        x1, x2, gamma = (rand(*s, dtype=torch.bfloat16, seed=i).npu() for i, s in enumerate([(5, 16), (5, 16), (16,)]))
        y, _, x = torch_npu.npu_add_rms_norm(x1, x2, gamma, 1e-6)
        quantised, _, total, scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(x1, x2, gamma, epsilon=1e-6)
        alone, alone_scale = torch_npu.npu_dynamic_quant(y)
        assert torch.equal(quantised.cpu(), alone.cpu())
        assert torch.equal(scale.cpu(), alone_scale.cpu())
        assert torch.equal(total.cpu(), x.cpu())
        scales = torch.full((16,), 0.05, dtype=torch.bfloat16).npu()
        zeros = torch.full((16,), 3.0, dtype=torch.bfloat16).npu()
        static, _, total = torch_npu.npu_add_rms_norm_quant(x1, x2, gamma, scales, zeros)
        assert torch.equal(total.cpu(), x.cpu())
        assert torch.equal(static.cpu(), torch_npu.npu_quantize(y, scales, zeros, torch.qint8, -1, True).cpu())

    def test_quantize_divides_or_multiplies_rounds_and_saturates(self):
        x = torch.tensor([[0.4, -0.6, 1000.0, -1000.0]])
        half, shift = torch.full((4,), 0.5), torch.full((4,), 1.0)
        by_division = torch_npu.npu_quantize(x.npu(), half.npu(), None, torch.qint8, -1, True)
        assert by_division.tolist() == [[1, -1, 127, -128]]
        by_product = torch_npu.npu_quantize(x.npu(), (half * 8).npu(), shift.npu(), torch.qint8, -1, False)
        assert by_product.tolist() == [[3, -1, 127, -128]]
        assert by_product.dtype == torch.int8

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (
                lambda: torch_npu.npu_dynamic_quant(torch.ones(2, 2).npu()),
                "input of torch.float32: accepted are float16",
            ),
            (lambda: torch_npu.npu_dynamic_quant(torch.ones(2).half().npu()), "two dimensions or more"),
            (
                lambda: torch_npu.npu_dynamic_quant(torch.ones(2, 2).half().npu(), quant_mode="perchannel"),
                "not modelled",
            ),
            (
                lambda: torch_npu.npu_quantize(torch.ones(2, 2).npu(), torch.ones(2).npu(), None, torch.quint8, -1),
                "dtype=13 with div_mode=True is not modelled",
            ),
            (
                lambda: torch_npu.npu_quantize(torch.ones(3, 2).npu(), torch.ones(3).npu(), None, torch.qint8, 0),
                "axis=0 of .3, 2. is not modelled",
            ),
        ],
    )
    def test_refuses(self, function, message):
        with pytest.raises((RuntimeError, NotImplementedError), match=message):
            function()


def test_the_warm_up_product_adds_in_float32():
    x, weight, total = rand(3, 4, dtype=torch.bfloat16), rand(3, 5, dtype=torch.bfloat16, seed=1), rand(4, 5, seed=2)
    on_npu = total.npu()
    torch_npu._npu_matmul_add_fp32(x.npu(), weight.npu(), on_npu)
    close(on_npu, total.double() + x.double().t() @ weight.double(), torch.float32)
    with pytest.raises(RuntimeError, match="C must be float32"):
        torch_npu._npu_matmul_add_fp32(x.npu(), weight.npu(), on_npu.half())


@pytest.mark.parametrize(
    "call",
    [
        lambda x, g: torch_npu.npu_rms_norm(x, g),
        lambda x, g: torch_npu.npu_add_rms_norm(x, x, g),
        lambda x, g: torch_npu.npu_swiglu(x),
        lambda x, g: torch_npu.npu_fast_gelu(x),
        lambda x, g: torch_npu.npu_dynamic_quant(x),
        lambda x, g: torch_npu.npu_add_rms_norm_dynamic_quant(x, x, g),
        lambda x, g: torch_npu.npu_add_rms_norm_quant(x, x, g, g, g),
        lambda x, g: torch_npu.npu_quantize(x, g, None, torch.qint8, -1, False),
        lambda x, g: torch_npu.npu_top_k_top_p(x, None, None),
        lambda x, g: torch_npu.npu_rotary_mul(x, x, x),
    ],
)
def test_traced_shapes_are_those_of_a_run(call):
    x, gamma = rand(3, 8, dtype=torch.bfloat16).npu(), rand(8, dtype=torch.bfloat16).npu()
    real = torch.utils._pytree.tree_leaves(call(x, gamma))
    mode = torch._subclasses.FakeTensorMode()
    with mode:
        traced = torch.utils._pytree.tree_leaves(call(mode.from_tensor(x), mode.from_tensor(gamma)))
    assert [(t.shape, t.dtype) for t in traced] == [(t.shape, t.dtype) for t in real]
