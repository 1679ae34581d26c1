"""The row-by-row ops of split_batch_kernels (sampling, GeGLU) on npu tensors.

On hardware they are Triton kernels, compiled by triton-ascend. Here ``NPU_EMU_KERNELS=reference`` (default) serves
their CPU reference, ``triton`` the kernels themselves in Triton's interpreter, and ``none`` nothing, as where
triton-ascend is not installed.
"""

from __future__ import annotations

import os
import types

from torch_npu import _backend
from torch_npu.host.import_hooks import after_import


def _serve(module: types.ModuleType) -> None:
    kernels = os.environ.get("NPU_EMU_KERNELS", "reference")
    if kernels == "none":
        return
    # Under the emulation's key, on CPU tensors that share the memory of the call's npu tensors.
    module.register("PrivateUse2", kernels)
    for op in module.OPS:
        _backend.bind(*op.split("::"))


def install() -> None:
    after_import("split_batch_kernels.row_ops", _serve)
