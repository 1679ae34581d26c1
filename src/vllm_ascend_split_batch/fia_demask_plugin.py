"""Front door of the decode mask carrier: the `vllm.general_plugins` entry point `fia-demask`.

A declaration only. With both gates closed nothing but the standard library is imported.
"""

from __future__ import annotations

from vllm_ascend_split_batch.carrier import Calls, Carrier, Flag, Seam

EXTENSION_ID = "org.vllm-hust.fia-demask"

DEMASK = "VLLM_HUST_FIA_DEMASK"
TRACE = "VLLM_HUST_FIA_DEMASK_TRACE"

ATTENTION = "vllm_ascend.attention.attention_v1"
IMPL = f"{ATTENTION}:AscendAttentionBackendImpl"
FORWARD = f"{IMPL}.forward_fused_infer_attention"
CAPTURE = f"{IMPL}.full_graph_fia"

FIA_DEMASK = Carrier(
    "fia-demask",
    gates=(
        Flag(DEMASK, help="decode attention without the causal mask that masks nothing"),
        Flag(TRACE, help="count and log which attention calls qualify; alone it changes nothing"),
    ),
    is_open=lambda settings: settings[DEMASK] or settings[TRACE],
    seams=(
        Seam(
            FORWARD,
            parameters=("query", "key", "value", "attn_metadata", "output", "kv_cache"),
            why="a layer's attention: runs with the host's own maskless form where the mask masks nothing",
        ),
        Seam(
            FORWARD,
            calls=Calls("self.full_graph_fia", 1),
            why="captured attention takes its mask and mode from the same metadata",
        ),
        Seam(
            CAPTURE,
            parameters=("query", "key", "value", "attn_metadata", "output", "layer"),
            why="captures the maskless form, which every later update of the graph repeats",
        ),
        Seam(f"{ATTENTION}:AscendMetadata.causal", why="says whether a mask is needed; false during a maskless call"),
        Seam(f"{ATTENTION}:AscendMetadata.attn_mask", why="the mask; None during a maskless call"),
        Seam(f"{ATTENTION}:AscendMetadata.attn_state", why="tells decode steps from others"),
        Seam(
            f"{ATTENTION}:AscendMetadata.actual_seq_lengths_q",
            why="cumulative query lengths on the host: one query per sequence is verified on them",
        ),
        Seam(
            "vllm_ascend.attention.attention_mask:AttentionMaskBuilder",
            why="holds the causal template; only that very tensor is ever left out",
        ),
        Seam("vllm_ascend.device.device_op:BaseDeviceAdaptor", why="the device family the maskless form is known on"),
    ),
    binding="vllm_ascend_split_batch.attention_mask.binding",
    extension_id=EXTENSION_ID,
)

load = FIA_DEMASK.load
