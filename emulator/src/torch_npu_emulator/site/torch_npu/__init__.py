"""The emulated torch_npu: the names, schemas and devices of the published package, on host memory.

What the emulation does not model is absent or raises; nothing is accepted and ignored.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

# The published version whose operator schemas and names are emulated. The host hashes it into its compile cache key.
__version__ = "2.10.0.post4"

from torch_npu import emulator
from torch_npu.emulator import counters as _counters
from torch_npu.emulator import oplog as _oplog
from torch_npu.host import absent_packages as _absent_packages
from torch_npu.host import cascade_ops as _cascade_ops
from torch_npu.host import row_ops as _row_ops
from torch_npu.host import triton_kernels as _triton_kernels

_absent_packages.install()

from torch_npu import _C, _collectives, _device, npu, profiler  # noqa: E402
from torch_npu import ops as _ops  # noqa: E402
from torch_npu.host import vllm_ascend as _vllm_ascend  # noqa: E402

_triton_kernels.install()
_row_ops.install()
_cascade_ops.install()
_vllm_ascend.install()
_counters.start()
_oplog.start()


__all__ = [
    "_C",
    "Format",
    "_autoload",
    "_collectives",
    "_device",
    "emulator",
    "float4_e2m1fn_x2",
    "float8_e8m0fnu",
    "hifloat8",
    "npu",
    "profiler",
]


def _autoload() -> None:
    """The entry point that torch calls in every process; importing this package has done the work."""


class Format(enum.IntEnum):
    """Memory formats by their ACL numbers; the emulated device holds ND alone."""

    NCHW = 0
    NHWC = 1
    ND = 2
    FRACTAL_NZ = 29


float8_e8m0fnu = torch.float8_e8m0fnu
float4_e2m1fn_x2 = torch.float4_e2m1fn_x2
# torch has no such dtype; the published package defines a marker of its own, compared by identity only.
hifloat8 = 290


def __getattr__(name: str) -> Any:
    if not name.startswith("__") and name in _ops.NAMES:
        return getattr(torch.ops.npu, name)
    raise AttributeError(f"the emulated torch_npu {__version__} has no attribute {name!r}")
