"""The ops `split_batch::{sample, sample_top_k_top_p, geglu}` for this host's device: what two carriers need alike."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any

PACKAGE = "split-batch-kernels"
MODULE = "split_batch_kernels"
#: A kernel wheel that defines operators the package would define, too: it must be loaded first.
_WHEEL = "ascend_kernel"


class RowKernelsUnavailable(Exception):
    """The ops cannot serve the device; the message says why and what to do."""


def load(device_type: str = "npu") -> Any:
    """Make the ops work for a device and return their namespace, ``torch.ops.split_batch``.

    Raises:
        RowKernelsUnavailable: the package, or a Triton that compiles for the device, is not there.
    """
    if importlib.util.find_spec(MODULE) is None:
        raise RowKernelsUnavailable(f"the package {PACKAGE} is not installed; to install it: pip install {PACKAGE}")
    if importlib.util.find_spec(_WHEEL) is not None:
        with contextlib.suppress(Exception):  # whether it is usable is no question of ours
            importlib.import_module(_WHEEL)
    try:
        row_ops = importlib.import_module(f"{MODULE}.row_ops")
        reason = row_ops.ensure(device_type)
    except Exception as error:
        raise RowKernelsUnavailable(
            f"the package {PACKAGE} cannot be loaded ({type(error).__name__}: {error}); reinstall it for this torch"
        ) from error
    if reason is not None:
        raise RowKernelsUnavailable(f"the kernels of {PACKAGE} cannot run on {device_type}: {reason}")
    import torch

    return torch.ops.split_batch
