"""What vllm-ascend itself needs: its compiled extension, and one check that float32 identity tests must pass."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

from torch_npu.emulator import settings
from torch_npu.host.import_hooks import after_import

EXTENSION = "vllm_ascend.vllm_ascend_C"


class _ExtensionFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves the extension module, which the host builds against CANN, by the emulation of its operators.

    First on the path of finders: a host wheel that contains the compiled file could not load it here.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == EXTENSION else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name, "The host's custom operators, emulated: see torch_npu.ops.host_custom.")

    def exec_module(self, module: types.ModuleType) -> None:
        from torch_npu.ops import host_custom

        host_custom.define()
        for name in ("python_create_and_map", "python_unmap_and_release"):
            setattr(module, name, _refusing(name))
        module.init_module = _refusing("init_module")  # type: ignore[attr-defined]


def _refusing(name: str) -> Any:
    def refuse(*args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{EXTENSION}.{name} (sleep mode) is not modelled by the emulated NPU")

    return refuse


def _accept_float32_cache(module: types.ModuleType) -> None:
    """Lets the host's attention take a float32 KV cache where it refuses one.

    vllm-ascend 0.29.0rc1 alone demands a 16-bit cache dtype, or else quantised weights. The function that is
    replaced feeds only that check.
    """
    original = getattr(module, "kv_cache_dtype_str_to_dtype", None)
    if original is None:
        return

    def as_checked(*args: Any, **kwargs: Any) -> torch.dtype:
        dtype = original(*args, **kwargs)
        return torch.bfloat16 if dtype is torch.float32 else dtype

    module.kv_cache_dtype_str_to_dtype = as_checked  # type: ignore[attr-defined]


def install() -> None:
    sys.meta_path.insert(0, _ExtensionFinder())
    if settings.FLOAT32_ATTENTION:
        after_import("vllm_ascend.attention.attention_v1", _accept_float32_cache)
