"""Front door of the wiring carriers: the `vllm.general_plugins` entry point `zerocost-wiring`.

Two independent features, hence two carriers: each has its own gate, seams, counters and latch, and neither takes the
other down. A declaration only; with both gates closed nothing but the standard library is imported.
"""

from __future__ import annotations

from vllm_ascend_split_batch.carrier import Calls, Carrier, Flag, Seam

EXTENSION_ID = "org.vllm-hust.zerocost-wiring"

ATTENTION = "vllm_ascend.attention.attention_v1"
IMPL = f"{ATTENTION}:AscendAttentionBackendImpl"
FORWARD = f"{IMPL}.forward_fused_infer_attention"
PARAMETERS = f"{IMPL}._get_fia_params"
ADAPTOR = "vllm_ascend.device.device_op:BaseDeviceAdaptor.npu_fused_infer_attention_score"

ROPE = "vllm_ascend.ops.rotary_embedding"
RUNNER = "vllm_ascend.worker.model_runner_v1"
UPDATE = f"{RUNNER}:update_cos_sin"
UPDATE_ITSELF = f"{ROPE}:update_cos_sin"
READ = f"{ROPE}:get_cos_and_sin_slice"
LOAD_MODEL = f"{RUNNER}:NPUModelRunner.load_model"

PREFILL_OUT = Carrier(
    "zerocost-prefill-out",
    gates=(Flag("VLLM_HUST_FI_PREFILL_OUT", help="prefill attention writes straight into its destination"),),
    seams=(
        Seam(
            FORWARD,
            parameters=("query", "key", "value", "attn_metadata", "output", "kv_cache"),
            why="a layer's attention: prefill is computed into `output` instead of being copied there",
        ),
        Seam(FORWARD, calls=Calls("DeviceOperator.npu_fused_infer_attention_score", 1), why="the call replaced here"),
        Seam(
            PARAMETERS,
            parameters=("key", "value", "attn_metadata", "kv_cache"),
            why="says which keys, blocks and lengths the step attends to",
        ),
        Seam(
            f"{IMPL}.forward",
            calls=Calls("self.forward_impl", 2),
            why="copies the result onto itself afterwards; that copy is left out, too",
        ),
        Seam(
            f"{IMPL}.forward_impl",
            calls=Calls("self.forward_fused_infer_attention", 1),
            why="hands the result on as it is",
        ),
        Seam(ADAPTOR, kind="classmethod", why="the device family's call, whose arguments are repeated"),
    ),
    binding="vllm_ascend_split_batch.wiring.prefill_out",
    extension_id=EXTENSION_ID,
)

SKIP_COS_SIN = Carrier(
    "zerocost-skip-cos-sin",
    gates=(Flag("VLLM_HUST_SKIP_COS_SIN", help="rope buffers that nobody reads are not filled"),),
    seams=(
        Seam(UPDATE, parameters=("positions",), why="called once a step to fill the buffers; skipped"),
        Seam(UPDATE_ITSELF, parameters=("positions",), why="fills the buffers when somebody does read them"),
        Seam(READ, parameters=(), why="the way to the buffers: its callers are looked for; fills them late"),
        Seam(LOAD_MODEL, parameters=(), why="once the model is there, its modules are searched for readers"),
        Seam(f"{ROPE}:_cos_sin_cache", why="without it the host's own update does nothing"),
        Seam(f"{ROPE}:_cos_slice", why="the buffer's part of the step; only the two functions above name it"),
    ),
    binding="vllm_ascend_split_batch.wiring.rope_buffers",
    extension_id=EXTENSION_ID,
)


def load() -> None:
    """The entry point: loads both carriers. Never raises."""
    PREFILL_OUT.load()
    SKIP_COS_SIN.load()
