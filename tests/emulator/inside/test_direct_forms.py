"""Operators that run without Python where their arguments are plain: the same results as the emulation in Python.

The emulation is called here as a function, on CPU tensors; the operator gets npu tensors with the same contents.
"""

from __future__ import annotations

import sys

import pytest
import split_batch_kernels
import torch
import torch_npu
from torch_npu import _backend
from torch_npu.emulator import counters
from torch_npu.ops import activation, host_custom, kv_cache, norm, rope

host_custom.define()
OF_EMULATIONS = ("torch_npu/ops", "split_batch_kernels/merge")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def on_npu(value):
    return value.npu() if isinstance(value, torch.Tensor) else value


def calls_of_python(function):
    """The result, and whether code of the emulator in Python ran for it."""
    seen = []

    def note(frame, event, _):
        if event == "call" and any(part in frame.f_code.co_filename for part in OF_EMULATIONS):
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return result, bool(seen)


def equal(results, expected):
    results = results if isinstance(results, tuple) else (results,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        assert (one.device.type, one.dtype, one.stride()) == ("npu", other.dtype, other.stride())
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, equal_nan=True)


def check(operator, emulation, *args, direct=True, **kwargs):
    name = operator.default._schema.name
    with counters.window() as counted:
        results, python = calls_of_python(lambda: operator(*map(on_npu, args), **kwargs))
    assert python is not direct
    assert counted["launches"] == {name: 1}
    equal(results, emulation(*args, **kwargs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 16, 577])
def test_norms(dtype, width):
    x, more, gamma = (rand(7, width, dtype=dtype, seed=seed) for seed in range(3))
    gamma = gamma[0]
    x[2, 0] = torch.nan
    ops, host = torch.ops.npu, torch.ops._C_ascend
    check(ops.npu_rms_norm, norm.npu_rms_norm, x, gamma, 1e-5)
    check(ops.npu_rms_norm, norm.npu_rms_norm, x.view(7, 1, width), gamma.view(1, width), 1e-5)
    check(ops.npu_add_rms_norm, norm.npu_add_rms_norm, x, more, gamma, 1e-5)
    check(host.npu_add_rms_norm_bias, host_custom.npu_add_rms_norm_bias, x, more, gamma, None, 1e-5)
    check(host.npu_add_rms_norm_bias, host_custom.npu_add_rms_norm_bias, x, more, gamma, gamma, 1e-5, direct=False)
    x_wide = on_npu(torch.stack((x, x), -1))[..., 0]  # not contiguous
    results, python = calls_of_python(lambda: ops.npu_rms_norm(x_wide, on_npu(gamma), 1e-5))
    assert python
    torch.testing.assert_close(
        results[0].cpu().float(), norm.npu_rms_norm(x, gamma, 1e-5)[0].float(), equal_nan=True, rtol=8e-3, atol=1e-5
    )


def test_a_difference_would_be_noticed():
    x, gamma = rand(7, 16), rand(16, seed=1)
    rms_norm = norm.npu_rms_norm
    for emulation in (lambda x, g, _: rms_norm(x, g, 1e-4), lambda x, g, e: rms_norm(x.flip(0), g, e)):
        with pytest.raises(AssertionError):
            check(torch.ops.npu.npu_rms_norm, emulation, x, gamma, 1e-5)
    with pytest.raises(AssertionError):  # it did not run in Python
        check(torch.ops.npu.npu_rms_norm, norm.npu_rms_norm, x, gamma, 1e-5, direct=False)


def test_what_is_refused_of_norms_is_refused_in_python():
    x, gamma = rand(3, 16).npu(), rand(15).npu()
    with pytest.raises(RuntimeError, match="must be the last dimensions of x"):
        torch.ops.npu.npu_rms_norm(x, gamma)
    with pytest.raises(RuntimeError, match="must be alike"):
        torch.ops.npu.npu_add_rms_norm(x, x[:2], rand(16).npu())


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(dtype):
    x = rand(5, 2 * 33, dtype=dtype)
    check(torch.ops.npu.npu_swiglu, activation.npu_swiglu, x)
    check(torch.ops.npu.npu_swiglu, activation.npu_swiglu, x, 1)
    check(torch.ops.npu.npu_swiglu, activation.npu_swiglu, rand(4, 6, dtype=dtype), 0, direct=False)
    with pytest.raises(RuntimeError, match="must be even"):
        torch_npu.npu_swiglu(rand(3, 5).npu())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["half", "interleaved"])
@pytest.mark.parametrize("rotary", [32, 64])
def test_rotary_embedding(dtype, mode, rotary):
    positions, cache = torch.tensor([3, 0, 9, 3]), rand(10, rotary, dtype=dtype, seed=1)
    query, key = rand(4, 5 * 64, dtype=dtype), rand(4, 2 * 64, dtype=dtype)
    op = torch.ops.npu.npu_mrope
    arguments = {"rotary_mode": mode, "mrope_section": [0, 0, 0]}
    check(op, rope.npu_mrope, positions, query, key, cache, 64, **arguments)
    check(op, rope.npu_mrope, positions.int(), query, key, cache, 64, direct=False, **arguments)
    # Rows as they lie in the product of all projections.
    fused = torch.cat((query, key), 1).npu()
    results, python = calls_of_python(
        lambda: op(positions.npu(), fused[:, :320], fused[:, 320:], cache.npu(), 64, **arguments)
    )
    assert not python
    equal(results, rope.npu_mrope(positions, query, key, cache, 64, **arguments))


@pytest.mark.parametrize("position_type", [torch.int32, torch.int64])
def test_rotary_embedding_of_no_token(position_type):
    x = torch.empty(0, 128)
    check(
        torch.ops.npu.npu_mrope,
        rope.npu_mrope,
        torch.empty(0, dtype=position_type),
        x,
        x[:, :64].contiguous(),
        rand(10, 64),
        64,
        direct=position_type == torch.int64,
    )


def test_what_is_refused_of_rotary_embeddings():
    positions, x, cache = torch.tensor([10]).npu(), rand(1, 64).npu(), rand(10, 64).npu()
    with pytest.raises(IndexError, match="position 10 is outside of the cosine and sine cache of 10 rows"):
        torch_npu.npu_mrope(positions, x, x, cache, 64)
    with pytest.raises(NotImplementedError, match="mrope_section"):
        torch_npu.npu_mrope(positions, x, x, cache, 64, mrope_section=[8, 8, 16])
    with pytest.raises(RuntimeError, match="rotary_mode='quarter'"):
        torch_npu.npu_mrope(positions, x, x, cache, 64, rotary_mode="quarter")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slot_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("scatter", [False, True])
def test_cache_writes(dtype, slot_type, scatter):
    key, value = rand(4, 2, 8, dtype=dtype), rand(4, 2, 8, dtype=dtype, seed=1)
    slots = torch.tensor([5, -1, 0, 7], dtype=slot_type)

    def write(move, operator, **kwargs):
        both = move(torch.zeros(2, 2, 4, 2, 8, dtype=dtype))  # keys and values interleaved, as some hosts keep them
        operator(move(key), move(value), both[:, 0], both[:, 1], move(slots), **kwargs)
        return both

    if scatter:
        operator, emulation, options = (
            torch.ops.npu.npu_scatter_pa_kv_cache,
            kv_cache.npu_scatter_pa_kv_cache,
            {"cache_mode": "Norm"},
        )
    else:
        operator, emulation, options = torch.ops.npu._npu_reshape_and_cache, kv_cache._npu_reshape_and_cache, {}
    written, python = calls_of_python(lambda: write(on_npu, operator, **options))
    assert not python
    expected = write(lambda x: x, emulation, **options)
    assert torch.equal(written.cpu(), expected)
    assert expected.any()


def test_rows_that_lie_in_the_cache_are_read_before_they_are_overwritten():
    def write(move, operator):
        both = move(torch.arange(4.0).view(1, 4, 1, 1, 1).repeat(1, 1, 2, 2, 8))
        key, value = both[:, :, 0], both[:, :, 1]
        operator(key[0, :3], value[0, :3], key, value, move(torch.tensor([1, 2, 3])))
        return both

    written = write(on_npu, torch.ops.npu._npu_reshape_and_cache)
    assert torch.equal(written.cpu(), write(lambda x: x, kv_cache._npu_reshape_and_cache))
    assert written[0, :, 0, 0, 0].tolist() == [0, 0, 1, 2]


def test_a_slot_beyond_the_cache_writes_nothing():
    rows, cache = rand(2, 2, 8).npu(), torch.zeros(2, 4, 2, 8).npu()
    with pytest.raises(RuntimeError, match="slot 8 is beyond the cache's 2 blocks of 4"):
        torch_npu._npu_reshape_and_cache(rows, rows, cache, cache, torch.tensor([0, 8]).npu())
    assert not cache.cpu().any()


def test_a_form_that_does_not_exist_cannot_be_switched():
    with pytest.raises(KeyError, match="npu::npu_swigloo has no compiled form"):
        _backend.use_direct_form("npu::npu_swigloo")


# ---- the kernel wheel's merge ---------------------------------------------------------------------------------------


@pytest.fixture
def merge():
    import ascend_kernel  # noqa: F401  its import gives the operator kernels

    yield torch.ops.npu.lse_merge
    _backend.use_direct_form(split_batch_kernels.MERGE)


@pytest.mark.parametrize("code", [0, 1, 2])
@pytest.mark.parametrize(
    "types", [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16), (torch.float16, torch.bfloat16)]
)
@pytest.mark.parametrize("replicas", [1, 8])
def test_the_merge(merge, code, types, replicas):
    one, other = (rand(33, 9, 64, dtype=dtype, seed=seed) for seed, dtype in enumerate(types))
    lse1, lse2 = rand(33, 9, seed=2) * 8, rand(33, 9, seed=3) * 8
    given = [t.npu() for t in (one, other, lse1.repeat_interleave(replicas, 1).contiguous(), lse2)]
    merged, python = calls_of_python(lambda: merge(*given, code))
    assert python is not (torch.float16 not in types and (code == 1 or (code == 0 and types[0] == torch.bfloat16)))
    expected = split_batch_kernels.lse_merge(one, other, lse1, lse2, code)
    assert (merged.dtype, merged.shape) == (expected.dtype, expected.shape)
    # The exponential of another library: of results of 16 bits, some fall on the other side.
    step = 0 if expected.dtype == torch.float16 else torch.finfo(expected.dtype).eps
    torch.testing.assert_close(merged.cpu(), expected, rtol=step, atol=1e-5)
    _backend.use_direct_form(split_batch_kernels.MERGE, False)
    assert torch.equal(merge(*given, code).cpu(), expected)


@pytest.mark.parametrize("level", [torch.nan, torch.inf, -torch.inf, 200.0])
@pytest.mark.parametrize("both", [False, True])
def test_a_partial_without_weight_goes_to_the_reference(merge, level, both):
    one, other = rand(4, 64, dtype=torch.bfloat16), rand(4, 64, dtype=torch.bfloat16, seed=1)
    lse1, lse2 = torch.zeros(4), torch.zeros(4)
    lse1[2] = level
    one[2] = torch.nan
    if both:
        lse2[2], other[2] = level, torch.nan
    merged = merge(*(t.npu() for t in (one, other, lse1, lse2)), 1)
    torch.testing.assert_close(
        merged.cpu(), split_batch_kernels.lse_merge(one, other, lse1, lse2, 1), rtol=0, atol=0, equal_nan=True
    )


def test_the_log_and_the_limits_keep_the_merge_in_python(merge, monkeypatch):
    import importlib

    import ascend_kernel

    given = [t.npu() for t in (rand(2, 64).bfloat16(), rand(2, 64).bfloat16(), torch.zeros(2), torch.zeros(2))]
    calls = []
    monkeypatch.setattr(_backend, "use_direct_form", lambda name, on=True: calls.append((name, on)))
    for name, value, on in (("none", None, True), ("DEVICE_LIMITS", True, False), ("OPLOG_PATH", "unused", False)):
        with monkeypatch.context() as patch:
            if value is not None:
                patch.setattr(ascend_kernel.settings, name, value)
            importlib.reload(ascend_kernel)
        assert calls.pop() == (split_batch_kernels.MERGE, on)
    merge(*given, 1)


# ---- argmax ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 15, 16, 33, 49152])
@pytest.mark.parametrize("rows", [1, 5])
def test_argmax(count, rows):
    x = rand(rows, count)
    for change in (lambda: None, lambda: x.fill_(-torch.inf), lambda: x.fill_(torch.nan)):
        change()
        for kwargs in ({"dim": -1}, {"dim": 1, "keepdim": True}, {"dim": 0}, {}):
            assert torch.equal(x.npu().argmax(**kwargs).cpu(), x.argmax(**kwargs))


@pytest.mark.parametrize("where", [0, 3, 15, 16, 31, 32])
def test_argmax_takes_the_first_of_equals_and_of_nan(where):
    x = torch.zeros(2, 33)
    x[0, where:] = 1
    x[1, where], x[1, 32], x[1, 0] = torch.nan, torch.nan, torch.inf if where else torch.nan
    assert x.npu().argmax(-1).tolist() == [where, where] == x.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_argmax_of_other_types(dtype):
    x = (rand(3, 40) * 9).to(dtype)
    assert torch.equal(x.npu().argmax(-1).cpu(), x.argmax(-1))
    assert torch.equal(x.npu().t().argmax(-1).cpu(), x.t().argmax(-1))
