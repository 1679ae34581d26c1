"""Where a kernel runs its tensors decide at launch, whatever TRITON_INTERPRET says and whoever imported Triton."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import split_batch_kernels
import torch
from split_batch_kernels import TritonUnavailableError, launch, triton_ops

SOURCES = sorted(Path(split_batch_kernels.__file__).parent.glob("*_triton.py"))

MERGE_TWICE = """
    import torch
    {before}
    import split_batch_kernels
    from split_batch_kernels import triton_ops
    import triton.language as tl
    import triton.language.standard
    owners = [tl, tl.core, tl.math, triton.language.standard, tl.tensor]
    before = [dict(vars(owner)) for owner in owners]
    one = torch.ones(2, 16)
    for _ in range(2):
        out, lse = triton_ops.attention_merge(one, torch.zeros(2), one * 3, torch.zeros(2))
    changed = [
        name for owner, was in zip(owners, before) for name in was if vars(owner)[name] is not was[name]
    ]
    print(out[0, 0].item(), round(lse[0].item(), 4), changed)
"""


@pytest.mark.interpreter
@pytest.mark.parametrize("interpret", ["", "0", "1"])
@pytest.mark.parametrize("before", ["", "import triton, triton.language"], ids=["fresh", "imported before"])
def test_cpu_tensors_are_interpreted_and_triton_is_left_as_it_was(interpret, before):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpret:
        environment["TRITON_INTERPRET"] = interpret
    code = textwrap.dedent(MERGE_TWICE).format(before=before)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "2.0 0.6931 []"


def test_without_triton_a_launch_says_so_and_the_package_works(monkeypatch):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    device = torch.device("cpu")
    assert launch.unavailable(device) == (
        "the package triton is not installed (on an Ascend NPU: triton-ascend; on the CPU: triton)"
    )
    with pytest.raises(TritonUnavailableError, match="merge_kernel cannot run on cpu: the package triton is not"):
        triton_ops.attention_merge(torch.ones(2, 16), torch.zeros(2), torch.ones(2, 16), torch.zeros(2))
    assert launch.unavailable(torch.device("meta")) is not None


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_kernel_sources_import_no_torch(source):
    """The check's environment has none."""
    allowed = {"triton", "triton.language", "__future__"}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module in allowed
        elif isinstance(node, ast.ImportFrom):
            assert node.module == "lowering" or str(node.module).endswith("_triton")


@pytest.mark.interpreter
def test_constants_outside_the_kernel_sources_are_theirs():
    from split_batch_kernels import merge_triton, prefix_triton, suffix_triton

    assert split_batch_kernels.PREFIX_BLOCK_ROWS == prefix_triton.BLOCK_ROWS
    assert triton_ops.MERGE_BLOCK_ROWS == merge_triton.BLOCK_ROWS
    assert triton_ops.LEAST_SUFFIX_ROWS == suffix_triton.LEAST_ROWS


@pytest.mark.interpreter
def test_the_wheels_ops_on_the_kernels_keep_the_wheels_contract():
    """Uniform, ragged and empty calls; eight copies of each log-sum-exp; every type of a merge."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(6, 4, 32, generator=generator)
    key, value = torch.randn(2, 5, 16, 2, 32, generator=generator)
    table = torch.tensor([[4, 1], [3, 2]], dtype=torch.int32)
    kv_lengths = torch.tensor([32, 17])
    for q_lengths, uniform in (([3, 3], 3), ([3, 3], 0), ([5, 1], 0)):
        arguments = (query, key, value, table, torch.tensor(q_lengths), kv_lengths, uniform)
        out, lse = triton_ops.fa_fp32_stage1(*arguments)
        expected, expected_lse = split_batch_kernels.fa_fp32_stage1(*arguments)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(lse, expected_lse, atol=1e-5, rtol=0)
        assert torch.equal(lse.view(-1, 8), lse[::8].unsqueeze(1).expand(-1, 8))
    none = torch.zeros(0, dtype=torch.int64)
    out, lse = triton_ops.fa_fp32_stage1(query[:0], key, value, table[:0], none, none)
    assert (out.shape, lse.shape) == ((0, 4, 32), (0,))
    for first in (torch.float32, torch.bfloat16):
        for code in (0, 1, 2):
            o1, o2 = query.to(first), query.flip(0).to(torch.bfloat16)
            levels = torch.randn(24, generator=generator), torch.randn(24, generator=generator).repeat_interleave(8)
            got = triton_ops.lse_merge(o1, o2, *levels, code)
            want = split_batch_kernels.lse_merge(o1, o2, *levels, code)
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want, atol=1e-6 if want.dtype == torch.float32 else 2e-2, rtol=1e-2)
