"""A host that found Triton, for one part of it: interleaved M-RoPE calls vLLM's Triton kernel, in the interpreter."""

from __future__ import annotations

from typing import Any


def plant(name: str) -> None:
    """Make the named part believe in Triton, in this process and those forked from it.

    Raises:
        KeyError: no such part.
    """
    {"mrope": _for_mrope}[name]()


def _for_mrope() -> None:
    import torch  # noqa: F401 - loads the emulated NPU
    from torch_npu.host.import_hooks import after_import

    after_import("vllm_ascend.ops.rotary_embedding", _found)


def _found(rotary_embedding: Any) -> None:
    from vllm.model_executor.layers.rotary_embedding.mrope import triton_mrope

    rotary_embedding.HAS_TRITON = True
    rotary_embedding.triton_mrope = triton_mrope
