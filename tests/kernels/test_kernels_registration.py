"""Definitions: exact schemas, coexistence in the namespace, a second import, somebody else's ops, other devices."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import split_batch_kernels
import torch


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_schemas():
    assert str(torch.ops.npu.fa_fp32_stage1.default._schema) == (
        "npu::fa_fp32_stage1(Tensor query, Tensor key, Tensor value, Tensor block_table, Tensor actual_q_seqlens, "
        "Tensor actual_kv_seqlens, int q_seqlen_value=0) -> (Tensor, Tensor)"
    )
    assert str(torch.ops.npu.lse_merge.default._schema) == (
        "npu::lse_merge(Tensor o1, Tensor o2, Tensor lse1, Tensor lse2, int out_code=0) -> Tensor"
    )


def test_no_implementation_beside_cpu_and_meta():
    out = run("""
        import torch, split_batch_kernels
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        keys = ["CPU", "Meta", "PrivateUse1", "Autograd", "CompositeImplicitAutograd", "CompositeExplicitAutograd"]
        print([[key for key in keys if has(op, key)] for op in split_batch_kernels.SCHEMAS])
    """)
    assert out == "[['CPU', 'Meta'], ['CPU', 'Meta']]"


def test_beside_another_library_of_the_namespace():
    """torch_npu defines the namespace as a DEF library of its own, before or after this import."""
    for order in ("before", "after"):
        out = run(f"""
            import torch
            def other():
                library = torch.library.Library("npu", "DEF")
                library.define("something(Tensor x) -> Tensor")
                library.impl("something", lambda x: x + 1, "CPU")
                return library
            if "{order}" == "before":
                kept = other()
            import split_batch_kernels
            if "{order}" == "after":
                kept = other()
            print(torch.ops.npu.something(torch.zeros(1)).item(), torch.ops.npu.lse_merge(
                torch.ones(1, 16), torch.ones(1, 16), torch.zeros(1), torch.zeros(1)).sum().item())
        """)
        assert out == "1.0 16.0"


def test_import_twice():
    out = run("""
        import gc, importlib, sys, torch, warnings
        warnings.simplefilter("error")
        import split_batch_kernels
        importlib.reload(split_batch_kernels.registration); importlib.reload(split_batch_kernels)
        for name in [n for n in sys.modules if n.startswith("split_batch_kernels")]:
            del sys.modules[name]
        del split_batch_kernels
        gc.collect()
        import split_batch_kernels
        gc.collect()
        split_batch_kernels.register("PrivateUse1")
        one = torch.ones(1, 16)
        print(torch.ops.npu.lse_merge(one, one, torch.zeros(1), torch.zeros(1)).sum().item(),
              split_batch_kernels.FOREIGN_DEFINITIONS)
    """)
    assert out == "16.0 {}"


def test_somebody_elses_definition_stays_and_is_named():
    out = run("""
        import torch, warnings
        kept = torch.library.Library("npu", "FRAGMENT")
        kept.define("lse_merge(Tensor o1, Tensor o2, Tensor lse1, Tensor lse2, int out_code=0) -> Tensor")
        kept.impl("lse_merge", lambda *a: a[0] * 7, "CPU")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import split_batch_kernels as s
        assert len(caught) == 1 and issubclass(caught[0].category, RuntimeWarning), caught
        assert "already defined and left as they are: npu::lse_merge (by " in str(caught[0].message), caught[0].message
        assert list(s.FOREIGN_DEFINITIONS) == [s.MERGE] and not s.is_ours(s.MERGE) and s.is_ours(s.STAGE1)
        one = torch.ones(1, 16)
        print(torch.ops.npu.lse_merge(one, one, torch.zeros(1), torch.zeros(1))[0, 0].item())
        try:
            s.register("PrivateUse1")
        except s.OpDefinitionError as error:
            print(str(error).startswith("npu::lse_merge is defined by "), "not by split_batch_kernels" in str(error))
        print(torch._C._dispatch_has_kernel_for_dispatch_key(s.STAGE1, "PrivateUse1"))
    """)
    assert out.splitlines() == ["7.0", "True True", "False"]


def test_register_for_another_key():
    out = run("""
        import torch, split_batch_kernels as s
        seen = []
        def adapt(op, implementation):
            def call(*args):
                seen.append(op)
                return implementation(*args)
            return call
        s.register("AutogradCPU", adapt)   # a key that CPU tensors reach first
        s.register("AutogradCPU")          # a second time: nothing
        one = torch.ones(1, 16)
        torch.ops.npu.lse_merge(one, one, torch.zeros(1), torch.zeros(1))
        print(seen)
    """)
    assert out == "['npu::lse_merge']"


def test_register_does_not_replace_anothers_implementation():
    out = run("""
        import torch, split_batch_kernels as s
        kept = torch.library.Library("npu", "IMPL")
        kept.impl("lse_merge", lambda *a: a[0], "PrivateUse1")
        try:
            s.register("PrivateUse1")
        except s.OpDefinitionError as error:
            print(error)
        print(torch._C._dispatch_has_kernel_for_dispatch_key(s.STAGE1, "PrivateUse1"))
    """)
    first, second = out.splitlines()
    assert first == "npu::lse_merge already has an implementation for PrivateUse1 that is not this package's"
    assert second == "False"


def test_knows_no_host():
    out = run("""
        import sys, split_batch_kernels
        print([m for m in sys.modules if m.split(".")[0] in ("vllm", "vllm_ascend", "torch_npu")])
    """)
    assert out == "[]"


def arguments(op, dtype=torch.float32):
    if op == split_batch_kernels.MERGE:
        o1, o2 = torch.randn(2, 6, 2, 32).to(dtype)
        return [(o1, o2, torch.randn(12), torch.randn(96), code) for code in (0, 1, 2)]
    query = torch.randn(6, 4, 32).to(dtype)
    key, value = torch.randn(2, 4, 16, 2, 32).to(dtype)
    table = torch.tensor([[0, 1], [3, 2]], dtype=torch.int32)
    lengths = (torch.tensor([3, 3]), torch.tensor([32, 17]))
    return [(query, key, value, table, *lengths), (query, key, value, table, *lengths, 3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", list(split_batch_kernels.SCHEMAS))
def test_opcheck(op, dtype):
    overload = getattr(torch.ops.npu, op.split("::")[1]).default
    for args in arguments(op, dtype):
        torch.library.opcheck(overload, args)


@pytest.mark.parametrize("op", list(split_batch_kernels.SCHEMAS))
def test_fake_tensors_have_the_shapes_of_real_ones(op):
    from torch._subclasses.fake_tensor import FakeTensorMode

    overload = getattr(torch.ops.npu, op.split("::")[1]).default
    for args in arguments(op, torch.bfloat16):
        real = overload(*args)
        with FakeTensorMode() as mode:
            fake = overload(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args))
        pairs = zip(real, fake, strict=True) if isinstance(real, tuple) else [(real, fake)]
        for r, f in pairs:
            assert (r.shape, r.dtype, r.stride()) == (f.shape, f.dtype, f.stride())
