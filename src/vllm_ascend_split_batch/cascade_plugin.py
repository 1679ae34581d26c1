"""Front door of cascade decode attention: the `vllm.general_plugins` entry point `cascade-attention`.

A declaration only. With its gate closed nothing but the standard library is imported; the capability's own modules are
imported when the host has imported the modules its seams are in.
"""

from __future__ import annotations

from vllm_ascend_split_batch.carrier import Calls, Carrier, Choice, Flag, Integer, Seam, Text
from vllm_ascend_split_batch.carrier.gates import Gate, Invalid

EXTENSION_ID = "org.vllm-hust.split-batch-full-graph"

ATTENTION = "vllm_ascend.attention.attention_v1"
RUNNER = "vllm_ascend.worker.model_runner_v1:NPUModelRunner"
PREFIX_LENS = f"{RUNNER}._compute_cascade_attn_prefix_lens"
BUILD = f"{ATTENTION}:AscendAttentionMetadataBuilder.build"
CAPTURE = f"{RUNNER}._capture_cudagraphs"
CHOOSE_GRAPH = f"{RUNNER}._determine_batch_execution_and_padding"
MODEL_FORWARD = f"{RUNNER}._model_forward"
UPDATE_PARAMETERS = f"{RUNNER}._update_full_graph_params_if_needed"
WRAPPER_CALL = "vllm_ascend.compilation.acl_graph:ACLGraphWrapper.__call__"
FORWARD = f"{ATTENTION}:AscendAttentionBackendImpl.forward_fused_infer_attention"


class Fingerprint(Gate):
    """16 hex digits, or nothing."""

    def __init__(self, name: str, *, help: str = "") -> None:
        super().__init__(name, "", help=help)

    @property
    def accepted(self) -> str:
        return "16 hexadecimal digits"

    def parse(self, text: str) -> str:
        if len(text) != 16 or not set(text.lower()) <= set("0123456789abcdef"):
            raise Invalid
        return text.lower()

    def _shown_default(self) -> str:
        return "no fingerprint"


CASCADE = Carrier(
    "cascade-attention",
    gates=(
        Flag("VLLM_ASCEND_ENABLE_CASCADE_DECODE", help="two-stage decode attention over a shared prefix"),
        Flag("VLLM_ASCEND_ENABLE_CASCADE_GRAPH", help="the same in captured graphs"),
        Integer("VLLM_ASCEND_CASCADE_MIN_PREFIX", 8192, minimum=1, maximum=1 << 31, help="tokens that must be shared"),
        Integer("VLLM_ASCEND_CASCADE_MIN_REQS", 32, minimum=1, maximum=1 << 20, help="requests that must share them"),
        Choice(
            "VLLM_ASCEND_CASCADE_KERNELS", ("wheel", "host", "own", "auto"), "wheel", help="which kernels compute it"
        ),
        Text(
            "VLLM_ASCEND_CASCADE_PROFILE",
            "auto",
            help="what decides above the two thresholds: auto (the shipped profiles), a file of your own, or floors",
        ),
        Choice("VLLM_ASCEND_CASCADE_PRECISION", ("bf16", "fp32"), "bf16", help="result type of the prefix stage"),
        Flag("VLLM_ASCEND_CASCADE_STRICT", help="keep stock results bit for bit: never run two-stage"),
        Flag("VLLM_ASCEND_CASCADE_TRACE", help="log every step that runs two-stage"),
        Fingerprint("VLLM_ASCEND_CASCADE_KERNEL_FINGERPRINT", help="a kernel library you built and tested yourself"),
    ),
    seams=(
        Seam(
            PREFIX_LENS,
            parameters=("num_scheduled_tokens", "num_computed_tokens", "num_common_prefix_blocks"),
            why="once a step, before the batch is laid out: what the requests share is found and decided on here",
        ),
        Seam(
            f"{RUNNER}.execute_model",
            calls=Calls("self._compute_cascade_attn_prefix_lens", 1),
            why="the decision above is asked for once a step",
        ),
        Seam(
            BUILD,
            parameters=("common_prefix_len", "common_attn_metadata", "fast_build"),
            why="the step's two-stage plan is attached to the metadata all layers of a group share",
        ),
        Seam(
            FORWARD,
            parameters=("query", "key", "value", "attn_metadata", "output", "kv_cache"),
            why="a layer's attention: prefix stage, suffix stage, merge",
        ),
        Seam(
            f"{ATTENTION}:AscendMetadata.actual_seq_lengths_q",
            why="cumulative query lengths on the host: one row per request is verified on them",
        ),
        Seam(f"{ATTENTION}:AscendMetadata.seq_lens_list", why="sequence lengths on the host: suffix lengths follow"),
        Seam(
            f"{ATTENTION}:AscendMetadata.block_tables",
            why="device block table: prefix and suffix parts are cut from it",
        ),
        Seam(
            "vllm_ascend.worker.block_table:BlockTable.get_numpy_array",
            parameters=(),
            why="the CPU-side block ids, which say what requests really share",
        ),
    ),
    binding="vllm_ascend_split_batch.cascade.binding",
    load_line=(
        "cascade plugin loaded (gate={VLLM_ASCEND_ENABLE_CASCADE_DECODE:d}, "
        "graph_gate={VLLM_ASCEND_ENABLE_CASCADE_GRAPH:d}, kernel_wheel=not-probed)"
    ),
    extension_id=EXTENSION_ID,
)

CASCADE_GRAPH = Carrier(
    "cascade-graph",
    gates=(
        Flag("VLLM_ASCEND_ENABLE_CASCADE_DECODE", help="two-stage decode attention over a shared prefix"),
        Flag("VLLM_ASCEND_ENABLE_CASCADE_GRAPH", help="the same in captured graphs"),
        Flag(
            "VLLM_ASCEND_CASCADE_UPDATE_SKIP_STABLE",
            default=True,
            help="set the prefix stages of a captured graph anew only when the shared prefix changed",
        ),
    ),
    is_open=lambda settings: (
        settings["VLLM_ASCEND_ENABLE_CASCADE_DECODE"] and settings["VLLM_ASCEND_ENABLE_CASCADE_GRAPH"]
    ),
    seams=(
        Seam(
            CAPTURE,
            parameters=("batch_descriptors", "cudagraph_runtime_mode", "..."),
            why="the twins are captured after the host's own graphs",
        ),
        Seam(
            f"{RUNNER}._warmup_and_capture",
            parameters=(
                "desc",
                "cudagraph_runtime_mode",
                "profile_seq_lens",
                "allow_microbatching",
                "num_warmups",
                "...",
            ),
            why="the host's way to capture one batch size, which the twins use",
        ),
        Seam(
            CHOOSE_GRAPH,
            parameters=(
                "num_tokens",
                "num_reqs",
                "num_scheduled_tokens_np",
                "max_num_scheduled_tokens",
                "use_cascade_attn",
                "...",
            ),
            why="a step that shares a prefix may use a full graph where that graph has a twin",
        ),
        Seam(
            MODEL_FORWARD,
            parameters=("num_tokens_padded", "..."),
            why="the model runs by the twin, or again by the host's own graph when the twin fails",
        ),
        Seam(
            UPDATE_PARAMETERS,
            parameters=("forward_context", "num_tokens_padded", "..."),
            why="the place where a graph gets the step's lengths",
        ),
        Seam(
            MODEL_FORWARD,
            calls=Calls("self._update_full_graph_params_if_needed", 2),
            why="it is called before or behind the replay, and nowhere else",
        ),
        Seam(WRAPPER_CALL, parameters=("*args", "**kwargs"), why="the twin is replayed in place of the host's graph"),
        Seam(
            WRAPPER_CALL,
            calls=Calls("validate_cudagraph_capturing_enabled", 1),
            why="an entry is captured where none is, and replayed where one is",
        ),
    ),
    binding="vllm_ascend_split_batch.cascade.graph_twin.binding",
    extension_id=EXTENSION_ID,
)


def load() -> None:
    """The entry point: loads both carriers. Never raises."""
    CASCADE.load()
    CASCADE_GRAPH.load()
