"""``split_batch::geglu``: exact to one unit of bfloat16 over all of bfloat16, reference and interpreted kernel."""

from __future__ import annotations

import math

import pytest
import torch
from split_batch_kernels import OpContractError, geglu, geglu_triton, row_launch, row_ops

#: What gates are multiplied with: ordinary, extreme, and such that a vanished tail would show.
UPS = (1.0, -3.0, 1e-30, 1e30, 3e38)
DTYPES = pytest.mark.parametrize("dtype", geglu.DTYPES, ids=str)


def all_bfloat16() -> torch.Tensor:
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def pairs(up: float, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """(65536, 2): every bfloat16 as a gate, with one ``up``."""
    gates = all_bfloat16()
    return torch.stack([gates, torch.full_like(gates, up)], 1).to(dtype)


def textbook(gate_up: torch.Tensor) -> torch.Tensor:
    """The definition in float64, by the C library's erfc (torch.special.ndtr loses the tail below -8)."""
    gate, up = gate_up.double().unbind(1)
    below = torch.tensor([0.5 * math.erfc(-g / math.sqrt(2)) for g in gate.tolist()], dtype=torch.float64)
    return gate * below * up


def units(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many bfloat16 values lie between two; 0 where both are NaN."""
    assert torch.equal(a.isnan(), b.isnan())
    ordered = []
    for values in (a, b):
        bits = values.to(torch.bfloat16).view(torch.int16).int()
        ordered.append(torch.where(bits < 0, -(bits & 0x7FFF), bits))
    return torch.where(a.isnan(), 0, (ordered[0] - ordered[1]).abs())


def exact_over_all_of_bfloat16(implementation) -> None:
    for up in UPS:
        want = textbook(pairs(up))
        got = implementation(pairs(up, torch.float32)).flatten()
        assert int(units(got.to(torch.bfloat16), want.to(torch.bfloat16)).max()) <= 1, up


def test_the_reference_is_exact_over_all_of_bfloat16():
    for up in UPS:
        got, want = geglu.geglu(pairs(up)).flatten(), textbook(pairs(up)).to(torch.bfloat16)
        # -inf is a gate too: 0 in the limit, NaN in the formula; F.gelu says NaN.
        assert int(units(got, want).max()) <= 1


@pytest.mark.interpreter
def test_the_kernel_is_exact_over_all_of_bfloat16():
    exact_over_all_of_bfloat16(row_launch.geglu_rows)


@pytest.mark.interpreter
def test_the_kernel_on_bfloat16_tensors():
    """Gates and results that are normal numbers; Triton's interpreter has conversions of its own for the others."""
    tiny = torch.finfo(torch.bfloat16).tiny
    for up in UPS:
        given = pairs(up)
        got, want = row_launch.geglu_rows(given).flatten(), textbook(given)
        normal = (given[:, 0].abs().float() >= tiny) & (want.abs() >= 2 * tiny) & want.isfinite()
        assert int(units(got, want.to(torch.bfloat16))[normal].max()) <= 1
        assert int(normal.sum()) > 15_000


@DTYPES
@pytest.mark.interpreter
@pytest.mark.parametrize("shape", [(1, 2), (3, 70), (5, 4, 30), (200, 64), (2, 6000), (7, 2 * 513)], ids=str)
def test_the_kernel_equals_the_reference_in_every_shape(shape, dtype):
    given = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    got = row_launch.geglu_rows(given)
    assert (got.shape, got.dtype, got.is_contiguous()) == ((*shape[:-1], shape[-1] // 2), dtype, True)
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(got, geglu.geglu(given), rtol=tolerance, atol=1e-7)


@pytest.mark.interpreter
def test_rows_of_a_wider_tensor_and_more_tiles_than_programs(monkeypatch):
    wide = torch.randn(50, 300)
    assert torch.allclose(row_launch.geglu_rows(wide[:, :200]), geglu.geglu(wide[:, :200]), rtol=1e-6, atol=1e-7)
    monkeypatch.setattr(row_launch, "GRID_LIMIT", 3)
    monkeypatch.setattr(row_launch, "_INTERPRETER_TILE", 64)
    given = torch.randn(41, 140)
    assert torch.allclose(row_launch.geglu_rows(given), geglu.geglu(given), rtol=1e-6, atol=1e-7)


def test_no_rows():
    assert row_launch.geglu_rows(torch.zeros(0, 8)).shape == (0, 4)
    assert torch.ops.split_batch.geglu(torch.zeros(0, 8)).shape == (0, 4)


def test_the_grid_never_passes_the_limit():
    assert row_ops.registered(geglu.GEGLU, "CPU")
    assert row_launch.programs(32_768 * 7) == 65_535
    assert row_launch.programs(0) == 1


def test_erfcx_is_what_it_says():
    z = torch.linspace(0, 20, 100_001, dtype=torch.float64)
    t = (z - 2.5) / (z + 2.5)
    value = torch.zeros_like(z)
    for coefficient in reversed(geglu_triton.ERFCX):
        value = value * t + coefficient
    relative = (value / (1 + 2 * z)) / torch.special.erfcx(z) - 1
    assert float(relative.abs().max()) < 1.2e-7


@pytest.mark.parametrize(
    "given", [torch.zeros(3, 5), torch.zeros(3, 0), torch.zeros(()), torch.zeros(2, 4).double()], ids=str
)
def test_broken_rules_are_named(given):
    with pytest.raises(OpContractError, match=r"^split_batch::geglu: .* expected "):
        torch.ops.split_batch.geglu(given)


@DTYPES
def test_op_passes_torchs_own_check(dtype):
    torch.library.opcheck(torch.ops.split_batch.geglu.default, (torch.randn(3, 8).to(dtype),))


def test_a_compiler_sees_one_node():
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: torch.ops.split_batch.geglu(x), backend=keep, fullgraph=True)
    given = torch.randn(3, 8)
    assert torch.equal(compiled(given), geglu.geglu(given))
    calls = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    assert calls == ["split_batch.geglu"]


def tanh_form(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def cancelling_form(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return 0.5 * gate * (1 + torch.erf(gate * math.sqrt(0.5))) * up


@pytest.mark.parametrize("other", [tanh_form, cancelling_form])
def test_other_forms_are_noticed(other):
    with pytest.raises(AssertionError):
        exact_over_all_of_bfloat16(other)
