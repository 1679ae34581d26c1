"""Rotary layers on whatever release is installed: which of the three defects it has, and that rope-fix mends them."""

from __future__ import annotations

import inspect

import pytest
import torch

from tests.proofs import Facts
from vllm_ascend_split_batch.rope import binding as rope_binding
from vllm_ascend_split_batch.rope_fix_plugin import GATE as ROPE_GATE
from vllm_ascend_split_batch.rope_fix_plugin import ROPE_FIX

from . import rope_oracle
from .test_rope import (  # noqa: F401 - two fixtures among them
    LLAMA3_PARAMETERS,
    TABLE_ERROR,
    YARN_PARAMETERS,
    interleaved,
    llama3_error,
    mrope_arguments,
    register,
    registry,
    rope,
    yarn_error,
)


@pytest.fixture
def triton_mrope(host, monkeypatch):
    """Triton's kernel for M-RoPE, by the signature that the installed vLLM gives it, computed by vLLM's formula."""
    from vllm.model_executor.layers.rotary_embedding import mrope

    signature = inspect.signature(mrope.triton_mrope)

    def kernel(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        heads = [given[name].view(given[name].shape[0], -1, given["head_size"]) for name in ("q", "k")]
        cos, sin = (mrope.apply_interleaved_rope(given[name], given["mrope_section"]) for name in ("cos", "sin"))
        table = torch.cat((cos, sin), -1)
        return tuple(rope_oracle.rotate(x, table).float().flatten(1) for x in heads)

    kernel.__signature__ = signature  # type: ignore[attr-defined]
    monkeypatch.setattr(host.rope, "triton_mrope", kernel, raising=False)
    monkeypatch.setattr(host.rope, "HAS_TRITON", True)


def rotates(layer) -> bool:
    """Whether an interleaved M-RoPE layer computes what vLLM's own formula does; False where it cannot run at all."""
    arguments = mrope_arguments()
    try:
        found = layer(*arguments)
    except TypeError:
        return False
    pairs = zip(found, layer.forward_native(*arguments), strict=True)
    return all(torch.allclose(mine, exact, atol=1e-5) for mine, exact in pairs)


@pytest.mark.proof("rope-fix")
def test_rotary_layers(host, triton_mrope, register, switch_on, proof: Facts):  # noqa: F811
    register()
    seen = {
        "llama3": not isinstance(rope(LLAMA3_PARAMETERS), host.rope.AscendRotaryEmbedding),
        "mrope": not rotates(interleaved(host)),
        "yarn": yarn_error(rope(YARN_PARAMETERS)) > 0.1,
    }
    for finding in rope_binding.survey():
        proof.defect(finding.defect, present=seen[finding.defect], because=finding.detail)
        assert (finding.state is rope_binding.State.PRESENT) == seen[finding.defect], finding
    carrier = switch_on(ROPE_FIX, ROPE_GATE)
    llama3, yarn = rope(LLAMA3_PARAMETERS), rope(YARN_PARAMETERS)
    errors = {"llama3": llama3_error(llama3), "yarn": yarn_error(yarn)}
    for name, error in errors.items():
        proof.number(f"largest error of the {name} table", f"{error:.1e}")
    assert isinstance(llama3, host.rope.AscendRotaryEmbedding)
    assert max(errors.values()) < TABLE_ERROR
    assert rotates(interleaved(host))
    proof.report(carrier.report())
    assert carrier.state == ("installed" if any(seen.values()) else "refused")
    assert carrier.guard.engaged == sum(seen.values())
    assert carrier.guard.failures == {}
