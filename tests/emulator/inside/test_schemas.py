"""The operators are defined exactly as published; what is not emulated refuses by name."""

from __future__ import annotations

import re

import pytest
import torch
import torch_npu
from torch_npu.ops import registry

LINES = [line for line in registry.SCHEMAS.read_text().splitlines() if line.strip()]
# The published file has no aliases on some .out forms and spells a few defaults in forms that torch normalises.
SPACES = re.compile(r"\s+")


def test_every_published_schema_is_defined():
    assert len(LINES) == 77
    for line in LINES:
        parsed = torch._C.parse_schema(f"npu::{line}")
        defined = torch._C._get_schema(parsed.name, parsed.overload_name)
        assert str(defined) == str(parsed)


def test_every_emulated_operator_has_a_kernel_for_npu_and_for_nothing_else_that_computes():
    assert len(registry.emulated()) > 20
    for name in registry.emulated():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", "PrivateUse1")
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", "CPU")


def test_an_operator_without_emulation_names_itself():
    x = torch.ones(2, 2, device="npu")
    with pytest.raises(NotImplementedError, match="npu::npu_lightning_indexer is not modelled by the emulated NPU"):
        torch_npu.npu_lightning_indexer(x, x, x)


def test_cpu_tensors_are_refused_as_on_hardware():
    with pytest.raises(NotImplementedError, match="'npu::npu_swiglu' with arguments from the 'CPU' backend"):
        torch_npu.npu_swiglu(torch.ones(2, 4))


def test_a_host_tensor_beside_device_tensors_is_refused_by_name():
    with pytest.raises(RuntimeError, match="npu::npu_rms_norm got a host tensor as argument 'gamma'"):
        torch_npu.npu_rms_norm(torch.ones(2, 4, device="npu"), torch.ones(4))


def test_a_wrong_keyword_is_refused():
    with pytest.raises(RuntimeError, match="Unknown keyword argument 'eps'"):
        torch_npu.npu_rms_norm(torch.ones(2, 4, device="npu"), torch.ones(4, device="npu"), eps=1e-5)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"the emulated torch_npu .* has no attribute 'npu_made_up'"):
        torch_npu.npu_made_up  # noqa: B018
    assert not hasattr(torch_npu, "npu_made_up")


@pytest.mark.parametrize("name", registry.emulated())
def test_every_emulated_operator_can_be_found_as_an_attribute(name):
    packet, _, overload = name.partition(".")
    assert getattr(getattr(torch_npu, packet), overload or "default")._schema.name == f"npu::{packet}"
