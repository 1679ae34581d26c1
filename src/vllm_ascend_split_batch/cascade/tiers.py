"""Kernel tiers: the ways in which two-stage attention can be computed on a device.

* `wheel`: both stages by the host's fused attention (the prefix stage optionally by `fa_fp32_stage1`), merged by
  `lse_merge` of the kernel wheel.
* `host`: both stages by the host's fused attention, merged by `npu_attention_update`, or by elementary operators where
  that operator is missing. Nothing has to be installed.
* `own`: two launches of the Triton kernels of `split-batch-kernels`; lengths and block tables stay on the device.

A tier says nothing about whether it wins; that is the decision's.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from . import kernel_wheel
from .step_plan import StepPlan
from .two_stage import OUT_AS_FIRST, OUT_BFLOAT16, Heads, prefix_fp32, prefix_stage, suffix_stage

WHEEL, HOST, OWN = "wheel", "host", "own"
#: In the order in which `auto` tries them.
TIERS = (WHEEL, HOST, OWN)

Merge = Callable[[Any, Any, Any, Any], Any]


class Tier(Protocol):
    """One way to compute a layer.

    Attributes:
        name: wheel, host or own.
        lengths_on_device: the kernels read lengths from device memory, so a captured call needs no new parameters.
        limits_apply: what the wheel's device build accepts must be checked first.
        detail: what was found, for the log.
    """

    name: str
    lengths_on_device: bool
    limits_apply: bool
    detail: str

    def attend(
        self, query: Any, key_cache: Any, value_cache: Any, plan: StepPlan, heads: Heads, causal_mask: Any
    ) -> Any:
        """One layer: query [T, H, D], caches [blocks, block size, K, D] -> [T, H, D]."""


class Unavailable(Exception):
    """A tier cannot be used in this process; the message is a sentence that says what to do."""


@dataclass
class FusedTier:
    """Both stages by fused attention, or the first by `fa_fp32_stage1`, and a merge.

    Attributes:
        ops: the `npu` op namespace.
        merge: (prefix out, suffix out, prefix LSE, suffix LSE) -> out, all [T, H, D] and float32 [T, H, 1].
        fp32_prefix: the prefix stage keeps float32 results.
    """

    name: str
    ops: Any
    merge: Merge
    detail: str
    limits_apply: bool
    fp32_prefix: bool = False
    lengths_on_device: bool = False

    def attend(
        self, query: Any, key_cache: Any, value_cache: Any, plan: StepPlan, heads: Heads, causal_mask: Any
    ) -> Any:
        if self.fp32_prefix:
            prefix_out, prefix_lse = prefix_fp32(self.ops, query, key_cache, value_cache, plan)
        else:
            prefix_out, prefix_lse = prefix_stage(self.ops, query, key_cache, value_cache, plan, heads)
        suffix_out, suffix_lse = suffix_stage(self.ops, query, key_cache, value_cache, plan, heads, causal_mask)
        shape = (plan.rows, heads.query, heads.size)
        return self.merge(prefix_out.view(shape), suffix_out.view(shape), prefix_lse, suffix_lse)


@dataclass
class OwnTier:
    """Two launches: the prefix of all rows in parts, then every row's own keys with the merge of all parts.

    Attributes:
        ops: the `split_batch` op namespace. splits: picks the number of parts from (rows, query heads, KV heads, prefix
            tokens).
    """

    ops: Any
    splits: Callable[[int, int, int, int], int]
    detail: str
    name: str = OWN
    limits_apply: bool = False
    lengths_on_device: bool = True
    fp32_prefix: bool = False

    def attend(
        self, query: Any, key_cache: Any, value_cache: Any, plan: StepPlan, heads: Heads, causal_mask: Any
    ) -> Any:
        table, lengths, prefix_length = plan.on_device()
        splits = self.splits(plan.rows, heads.query, heads.kv, plan.prefix_tokens)
        return self.launch(query, key_cache, value_cache, table, lengths, prefix_length, heads, splits)

    def launch(
        self,
        query: Any,
        key_cache: Any,
        value_cache: Any,
        table: Any,
        lengths: Any,
        prefix_length: Any,
        heads: Heads,
        splits: int,
    ) -> Any:
        """Both launches; table int32 [T, columns], lengths int32 [T] and prefix_length int32 [1] on the device."""
        outs, lses = self.ops.cascade_prefix(query, key_cache, value_cache, table, prefix_length, heads.scale, splits)
        return self.ops.cascade_suffix(
            query, key_cache, value_cache, table, lengths, prefix_length, outs, lses, heads.scale
        )


# Finding -----------------------------------------------------------------------------------------------------------


def make(name: str, *, fp32_prefix: bool, allowed_fingerprint: str) -> FusedTier | OwnTier:
    """The tier `name` in this process. Imports what it needs; runs nothing on the device.

    Args:
        fp32_prefix: the user wants a float32 prefix stage. allowed_fingerprint: see `kernel_wheel.probe`.

    Raises:
        Unavailable: something it needs is missing.
    """
    if name == OWN:
        return _own(fp32_prefix)
    import torch

    if name == HOST:
        if fp32_prefix:
            raise Unavailable("VLLM_ASCEND_CASCADE_PRECISION=fp32 needs the kernel wheel's fa_fp32_stage1, not 'host'")
        by_host, detail = host_merge(torch)
        limited = not _is_emulated_npu()
        return FusedTier(HOST, torch.ops.npu, by_host, f"host: fused attention and {detail}", limits_apply=limited)
    wheel = kernel_wheel.probe(allowed_fingerprint)
    if not wheel.usable:
        raise Unavailable(wheel.detail)

    def merge(prefix_out: Any, suffix_out: Any, prefix_lse: Any, suffix_lse: Any) -> Any:
        # A float32 prefix result beside a bfloat16 model's suffix is merged into what the model computes in.
        code = OUT_BFLOAT16 if suffix_out.dtype == torch.bfloat16 else OUT_AS_FIRST
        return torch.ops.npu.lse_merge(prefix_out, suffix_out, prefix_lse, suffix_lse, code)

    return FusedTier(
        WHEEL, torch.ops.npu, merge, f"kernel wheel {wheel.detail}", wheel.limits_apply, fp32_prefix=fp32_prefix
    )


def host_merge(torch: Any) -> tuple[Merge, str]:
    """The merge that the host's own stack offers, and its name.

    `npu_attention_update` takes partial results as rows [T*H, D] with LSE [T*H]. The elementary form is the definition:
    weights e^(L_i - max) over their sum. LSE of both stages are finite here: every row has a key in both.
    """
    if kernel_wheel.op_present(torch, "npu_attention_update"):

        def by_operator(prefix_out: Any, suffix_out: Any, prefix_lse: Any, suffix_lse: Any) -> Any:
            size = prefix_out.shape[-1]
            merged = torch.ops.npu.npu_attention_update(
                [prefix_lse.reshape(-1), suffix_lse.reshape(-1)],
                [prefix_out.reshape(-1, size), suffix_out.reshape(-1, size)],
                0,
            )
            return merged[0].view(prefix_out.shape)

        return by_operator, "npu_attention_update"

    def by_elements(prefix_out: Any, suffix_out: Any, prefix_lse: Any, suffix_lse: Any) -> Any:
        shape = (*prefix_out.shape[:-1], 1)
        weight = torch.sigmoid(prefix_lse.view(shape) - suffix_lse.view(shape))
        return torch.lerp(suffix_out.float(), prefix_out.float(), weight).to(prefix_out.dtype)

    return by_elements, "elementary operators"


def _own(fp32_prefix: bool) -> OwnTier:
    if fp32_prefix:
        raise Unavailable("VLLM_ASCEND_CASCADE_PRECISION=fp32 needs the kernel wheel; 'own' is float32 inside anyway")
    if importlib.util.find_spec("split_batch_kernels") is None:
        raise Unavailable("split-batch-kernels is not installed: pip install split-batch-kernels")
    # The wheel first, where it is: our package defines its two ops, too, and would be in its way.
    emulated = _emulated()
    try:
        kernels = importlib.import_module("split_batch_kernels")
    except Exception as error:
        raise Unavailable(f"split-batch-kernels cannot be loaded ({type(error).__name__}: {error})") from error
    import torch

    # An emulated NPU brings implementations of its own.
    detail = "own: the emulated NPU's stand-in" if emulated else "own: Triton kernels of split-batch-kernels"
    if not kernel_wheel.op_present(torch, "cascade_prefix", "split_batch"):
        launch = importlib.import_module("split_batch_kernels.launch")
        problem = launch.unavailable(torch.device("npu"))
        if problem:
            raise Unavailable(f"the kernels of split-batch-kernels cannot run here: {problem}")
        kernels.register(kernel_wheel.DISPATCH_KEY, implementation="triton", ops=kernels.OWN_SCHEMAS)
    cores = int(torch.npu.get_device_properties(torch.npu.current_device()).cube_core_num)

    def splits(rows: int, heads: int, kv_heads: int, prefix_tokens: int) -> int:
        return int(
            kernels.prefix_splits(
                rows, heads, kv_heads, prefix_tokens, cores=cores, block_rows=kernels.PREFIX_BLOCK_ROWS
            )
        )

    return OwnTier(torch.ops.split_batch, splits, detail)


def _is_emulated_npu() -> bool:
    import torch_npu

    return hasattr(torch_npu, "emulator")


def _emulated() -> bool:
    """Whether an emulated NPU's stand-in for the wheel is there; importing it registers all ops of the package."""
    try:
        return bool(getattr(importlib.import_module(kernel_wheel.PACKAGE), "__emulated__", False))
    except Exception:
        return False
