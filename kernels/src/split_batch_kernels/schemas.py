"""Names and schemas of the ops: those that the device build publishes, character for character, and our own."""

from __future__ import annotations

NAMESPACE = "npu"
OWN_NAMESPACE = "split_batch"

STAGE1 = "npu::fa_fp32_stage1"
MERGE = "npu::lse_merge"

#: The ops of the kernel wheel `ascend_kernel`.
SCHEMAS: dict[str, str] = {
    STAGE1: (
        "fa_fp32_stage1(Tensor query, Tensor key, Tensor value, Tensor block_table, Tensor actual_q_seqlens, "
        "Tensor actual_kv_seqlens, int q_seqlen_value=0) -> (Tensor, Tensor)"
    ),
    MERGE: "lse_merge(Tensor o1, Tensor o2, Tensor lse1, Tensor lse2, int out_code=0) -> Tensor",
}

ATTENTION_MERGE = "split_batch::attention_merge"
ATTENTION_MERGE_STACK = "split_batch::attention_merge_stack"
CASCADE_PREFIX = "split_batch::cascade_prefix"
CASCADE_SUFFIX = "split_batch::cascade_suffix"

_MERGE = "Tensor o1, Tensor lse1, Tensor o2, Tensor lse2"
_STACK = "Tensor outs, Tensor lses"
_PREFIX = (
    "Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor prefix_length, float scale, "
    "int splits=1"
)
_SUFFIX = (
    "Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor sequence_lengths, "
    "Tensor prefix_length, Tensor prefix_outs, Tensor prefix_lses, float scale"
)

#: This package's own ops. The forms that write into given tensors return nothing, so that torch.compile can make
#: functional calls of them.
OWN_SCHEMAS: dict[str, str] = {
    ATTENTION_MERGE: f"attention_merge({_MERGE}, *, ScalarType? out_dtype=None) -> (Tensor, Tensor)",
    f"{ATTENTION_MERGE}.out": f"attention_merge.out({_MERGE}, *, Tensor(a!) out, Tensor(b!) lse) -> ()",
    ATTENTION_MERGE_STACK: f"attention_merge_stack({_STACK}, *, ScalarType? out_dtype=None) -> (Tensor, Tensor)",
    f"{ATTENTION_MERGE_STACK}.out": f"attention_merge_stack.out({_STACK}, *, Tensor(a!) out, Tensor(b!) lse) -> ()",
    CASCADE_PREFIX: f"cascade_prefix({_PREFIX}) -> (Tensor, Tensor)",
    f"{CASCADE_PREFIX}.out": f"cascade_prefix.out({_PREFIX}, *, Tensor(a!) outs, Tensor(b!) lses) -> ()",
    CASCADE_SUFFIX: f"cascade_suffix({_SUFFIX}) -> Tensor",
    f"{CASCADE_SUFFIX}.out": f"cascade_suffix.out({_SUFFIX}, *, Tensor(a!) out) -> ()",
}

#: How often stage 1 repeats each log-sum-exp: one 32-byte slot of float32 per (token, head) row.
LSE_REPLICAS = 8

#: The values of ``lse_merge``'s ``out_code``.
OUT_AS_FIRST, OUT_BFLOAT16, OUT_FLOAT32 = 0, 1, 2
