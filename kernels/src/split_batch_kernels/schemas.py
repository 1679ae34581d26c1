"""Names and schemas of the ops: the interface that the device build publishes, character for character."""

from __future__ import annotations

NAMESPACE = "npu"

STAGE1 = "npu::fa_fp32_stage1"
MERGE = "npu::lse_merge"

SCHEMAS: dict[str, str] = {
    STAGE1: (
        "fa_fp32_stage1(Tensor query, Tensor key, Tensor value, Tensor block_table, Tensor actual_q_seqlens, "
        "Tensor actual_kv_seqlens, int q_seqlen_value=0) -> (Tensor, Tensor)"
    ),
    MERGE: "lse_merge(Tensor o1, Tensor o2, Tensor lse1, Tensor lse2, int out_code=0) -> Tensor",
}

#: How often stage 1 repeats each log-sum-exp: one 32-byte slot of float32 per (token, head) row.
LSE_REPLICAS = 8

#: The values of ``lse_merge``'s ``out_code``.
OUT_AS_FIRST, OUT_BFLOAT16, OUT_FLOAT32 = 0, 1, 2
