"""Our own ops as PyTorch ops: schemas, opcheck, shapes without data, contracts, limits, registration."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import split_batch_kernels as kernels
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

OPS = torch.ops.split_batch


def merge_arguments(dtype=torch.float32):
    o1, o2 = torch.randn(2, 6, 2, 32).to(dtype)
    return o1, torch.randn(6, 2), o2, torch.randn(6, 2)


def prefix_arguments(dtype=torch.float32, splits=2):
    query = torch.randn(3, 4, 32).to(dtype)
    key, value = torch.randn(2, 6, 16, 2, 32).to(dtype)
    table = torch.tensor([[1, 4, 0], [1, 4, 5], [1, 4, 2]], dtype=torch.int32)
    return query, key, value, table, torch.tensor([32], dtype=torch.int32), 0.2, splits


def suffix_arguments(dtype=torch.float32):
    query, key, value, table, prefix, scale, splits = prefix_arguments(dtype)
    outs, lses = OPS.cascade_prefix(query, key, value, table, prefix, scale, splits)
    return query, key, value, table, torch.tensor([33, 40, 48], dtype=torch.int32), prefix, outs, lses, scale


def calls(dtype):
    """Every op once: overload, arguments, keyword arguments."""
    merge, prefix, suffix = merge_arguments(dtype), prefix_arguments(dtype), suffix_arguments(dtype)
    stack = (torch.randn(3, 6, 2, 32).to(dtype), torch.randn(3, 6, 2))
    merged = {"out": torch.empty(6, 2, 32, dtype=torch.bfloat16), "lse": torch.empty(6, 2)}
    parts = {"outs": torch.empty(2, 2, 6, 32), "lses": torch.empty(2, 2, 6)}
    return {
        "attention_merge": (OPS.attention_merge.default, merge, {}),
        "attention_merge to bf16": (OPS.attention_merge.default, merge, {"out_dtype": torch.bfloat16}),
        "attention_merge.out": (OPS.attention_merge.out, merge, merged),
        "attention_merge_stack": (OPS.attention_merge_stack.default, stack, {}),
        "attention_merge_stack.out": (OPS.attention_merge_stack.out, stack, merged),
        "cascade_prefix": (OPS.cascade_prefix.default, prefix, {}),
        "cascade_prefix.out": (OPS.cascade_prefix.out, prefix, parts),
        "cascade_suffix": (OPS.cascade_suffix.default, suffix, {}),
        "cascade_suffix.out": (OPS.cascade_suffix.out, suffix, {"out": torch.empty_like(suffix[0])}),
    }


NAMES = list(calls(torch.float32))


def test_every_op_is_checked():
    called = {str(overload).removesuffix(".default") for overload, _, _ in calls(torch.float32).values()}
    assert called == {op.replace("::", ".") for op in kernels.OWN_SCHEMAS}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name, dtype):
    overload, args, kwargs = calls(dtype)[name]
    torch.library.opcheck(overload, args, kwargs)


def test_opcheck_notices_a_wrong_meta_implementation():
    """The check can fail: an op whose shape without data is another than with."""
    library = torch.library.Library("split_batch_wrong", "FRAGMENT")
    library.define("op(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("op", lambda x: x + 1, "CPU")
    library.impl("op", lambda x: x.new_empty(x.shape[0]), "Meta")
    with pytest.raises(Exception, match="mismatched tensor metadata"):
        torch.library.opcheck(torch.ops.split_batch_wrong.op.default, (torch.randn(2, 3),))


@pytest.mark.parametrize("name", NAMES)
def test_fake_tensors_have_the_shapes_of_real_ones(name):
    overload, args, kwargs = calls(torch.bfloat16)[name]
    real = overload(*args, **kwargs)
    with FakeTensorMode() as mode:
        fake = overload(
            *(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args),
            **{k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()},
        )
    if real is None:
        assert fake is None
        return
    pairs = zip(real, fake, strict=True) if isinstance(real, tuple) else [(real, fake)]
    for r, f in pairs:
        assert (r.shape, r.dtype, r.stride()) == (f.shape, f.dtype, f.stride())


def test_torch_compile_takes_both_forms():
    """Functionalisation: the result of the form that writes is the result of the one that returns."""
    query, key, value, table, lengths, prefix, outs, lses, scale = suffix_arguments()
    out = torch.zeros_like(query)

    def step(query, out):
        OPS.cascade_suffix.out(query, key, value, table, lengths, prefix, outs, lses, scale, out=out)
        return out + OPS.cascade_suffix(query, key, value, table, lengths, prefix, outs, lses, scale)

    expected = 2 * OPS.cascade_suffix(query, key, value, table, lengths, prefix, outs, lses, scale)
    torch.testing.assert_close(torch.compile(step, backend="aot_eager", fullgraph=True)(query, out), expected)
    torch.testing.assert_close(out, expected / 2)


i32 = torch.int32
WRONG = {
    "query rank": (0, torch.zeros(3, 128), "rank of query is 2 (shape (3, 128)), expected 3"),
    "query dtype": (0, torch.zeros(3, 4, 32, dtype=torch.float64), "dtype of query is torch.float64"),
    "other dtype of keys": (1, torch.zeros(6, 16, 2, 32).half(), "dtype of key_cache is torch.float16"),
    "strided keys": (1, torch.zeros(6, 2, 16, 32).transpose(1, 2), "key_cache is not contiguous"),
    "shape of values": (2, torch.zeros(5, 16, 2, 32), "shape of value_cache is (5, 16, 2, 32)"),
    "table dtype": (3, torch.zeros(3, 3, dtype=torch.int64), "dtype of block_table is torch.int64"),
    "no columns": (3, torch.zeros(3, 0, dtype=i32), "columns of block_table is 0"),
    "length on its own": (4, torch.tensor(32, dtype=i32), "shape of prefix_length is (), expected (1,)"),
    "length dtype": (4, torch.tensor([32]), "dtype of prefix_length is torch.int64"),
    "long prefix": (4, torch.tensor([49], dtype=i32), "prefix_length is 49, expected 0 to 48"),
    "negative prefix": (4, torch.tensor([-1], dtype=i32), "prefix_length is -1, expected 0 to 48"),
    "no parts": (6, 0, "splits is 0, expected 1 to 16"),
    "many parts": (6, 17, "splits is 17, expected 1 to 16"),
    "block id": (3, torch.tensor([[1, 6, 0]] * 3, dtype=i32), "a block id in row 0 of block_table is 6, expected 0 to"),
}


@pytest.mark.parametrize("implementation", ["reference", "triton"])
@pytest.mark.parametrize(("place", "value", "message"), WRONG.values(), ids=WRONG)
def test_the_prefix_stage_says_what_is_wrong(implementation, place, value, message):
    arguments = list(prefix_arguments())
    arguments[place] = value
    function = kernels.registration.implementation_of(kernels.CASCADE_PREFIX, implementation)
    with pytest.raises(kernels.OpContractError) as caught:
        function(*arguments)
    assert str(caught.value).startswith("split_batch::cascade_prefix: ")
    assert message in str(caught.value)


WRONG_SUFFIX = {
    "table of other requests": (3, torch.zeros(2, 3, dtype=i32), "rows of block_table is 2, expected 3"),
    "lengths of other requests": (4, torch.zeros(2, dtype=i32), "shape of sequence_lengths is (2,), expected (3,)"),
    "lengths dtype": (4, torch.zeros(3), "dtype of sequence_lengths is torch.float32"),
    "rows of the parts": (6, torch.zeros(2, 2, 5, 32), "prefix_outs is (2, 2, 5, 32), expected (parts, 2, 6, 32)"),
    "dtype of the parts": (6, torch.zeros(2, 2, 6, 32).half(), "dtype of prefix_outs is torch.float16"),
    "levels of other parts": (7, torch.zeros(3, 2, 6), "number of parts in prefix_outs and prefix_lses is 2 and 3"),
    "narrow table": (4, torch.tensor([33, 49, 48], dtype=i32), "at least 4 for the 49 keys of sequence 1"),
    "block id": (3, torch.tensor([[1, 4, 0], [1, 4, 99], [1, 4, 2]], dtype=i32), "row 1 of block_table is 99"),
}


@pytest.mark.parametrize("implementation", ["reference", "triton"])
@pytest.mark.parametrize(("place", "value", "message"), WRONG_SUFFIX.values(), ids=WRONG_SUFFIX)
def test_the_suffix_stage_says_what_is_wrong(implementation, place, value, message):
    arguments = list(suffix_arguments())
    arguments[place] = value
    function = kernels.registration.implementation_of(kernels.CASCADE_SUFFIX, implementation)
    with pytest.raises(kernels.OpContractError) as caught:
        function(*arguments)
    assert str(caught.value).startswith("split_batch::cascade_suffix: ")
    assert message in str(caught.value)


def test_the_merges_say_what_is_wrong():
    o1, l1, o2, l2 = merge_arguments()
    for arguments, message in (
        ((o1, l1.reshape(-1), o2, l2), "shape of lse1 is (12,), expected (6, 2)"),
        ((o1, l1, o2[:5], l2[:5]), "shape of o2 is (5, 2, 32), expected (6, 2, 32)"),
        ((o1, l1.double(), o2, l2), "dtype of lse1 is torch.float64"),
        ((o1[..., :8], l1, o2[..., :8], l2), "head size of o1 is 8, expected a multiple of 16"),
    ):
        with pytest.raises(kernels.OpContractError) as caught:
            OPS.attention_merge(*arguments)
        assert message in str(caught.value)
    for implementation in ("reference", "triton"):
        for op, partials in ((kernels.ATTENTION_MERGE, (o1, l1, o2, l2)), (kernels.ATTENTION_MERGE_STACK, (o1, l1))):
            merge = kernels.registration.implementation_of(op, implementation)
            with pytest.raises(kernels.OpContractError, match=f"^{op}: out_dtype is torch.int32, expected torch.bfl"):
                merge(*partials, out_dtype=torch.int32)
    with pytest.raises(kernels.OpContractError, match="number of parts in outs is 0"):
        OPS.attention_merge_stack(torch.zeros(0, 6, 32), torch.zeros(0, 6))


def test_limits_of_the_device_build():
    violations = kernels.limit_violations
    good = {"query": "bfloat16", "key_cache": "bfloat16", "value_cache": "bfloat16"}
    assert violations(kernels.CASCADE_PREFIX, dtypes=good, head_size=128, num_heads=40, num_kv_heads=8) == ()
    beyond = ("head size is 256, the device build takes at most 128",)
    assert violations(kernels.CASCADE_SUFFIX, head_size=256) == beyond
    assert violations(kernels.CASCADE_SUFFIX, num_heads=65, num_kv_heads=1) == (
        "65 query heads share a key-value head, the device build takes at most 64",
    )
    with pytest.raises(kernels.DeviceLimitError, match=r"dtype of query is torch\.float32"):
        kernels.check_device_limits(kernels.CASCADE_SUFFIX, *suffix_arguments())
    kernels.check_device_limits(kernels.ATTENTION_MERGE, *merge_arguments())


@pytest.mark.interpreter
def test_triton_can_be_registered_for_a_key():
    """A key that CPU tensors reach first, in a process of its own: the kernels answer, and the wheel's ops stay."""
    code = """
        import torch, split_batch_kernels as s
        seen = []
        def adapt(op, implementation):
            def run(*args, **kwargs):
                seen.append((op, implementation.__module__))
                return implementation(*args, **kwargs)
            return run
        assert not s.registered("AutogradCPU", s.OWN_SCHEMAS)
        s.register("AutogradCPU", adapt, implementation="triton", ops=s.OWN_SCHEMAS)
        s.register("AutogradCPU", implementation="triton", ops=s.OWN_SCHEMAS)     # a second time: nothing
        assert s.registered("AutogradCPU", s.OWN_SCHEMAS) and not s.registered("AutogradCPU", s.SCHEMAS)
        one = torch.ones(2, 16)
        out, lse = torch.ops.split_batch.attention_merge(one, torch.zeros(2), one, torch.zeros(2))
        print(out.sum().item(), seen)
        try:
            s.register("AutogradCPU", implementation="fast", ops=["npu::lse_merge"])
        except ValueError as error:
            print(error)
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "32.0 [('split_batch::attention_merge', 'split_batch_kernels.triton_ops')]",
        "implementation is 'fast', expected one of reference, triton",
    ]
