"""Front door of MLP chunking: the `vllm.general_plugins` entry point `mlp-chunk`.

A declaration only. With its gate closed nothing but the standard library is imported.
"""

from __future__ import annotations

from vllm_ascend_split_batch.carrier import Calls, Carrier, Integer, Seam

EXTENSION_ID = "org.vllm-hust.mlp-chunk"

LOAD_MODEL = "vllm_ascend.worker.model_runner_v1:NPUModelRunner.load_model"
LINEAR = "vllm_ascend.ops.linear"
ROW_FORWARD = "vllm.model_executor.layers.linear:RowParallelLinear.forward"
CONTEXT = "vllm.forward_context"

CHUNKS = "VLLM_HUST_MLP_CHUNKS"
MIN_TOKENS = "VLLM_HUST_MLP_CHUNK_MIN_TOKENS"
BYTES = "VLLM_HUST_MLP_CHUNK_BYTES"

MLP_CHUNK = Carrier(
    "mlp-chunk",
    gates=(
        Integer(CHUNKS, 1, minimum=0, maximum=1024, help="parts that a prefill's MLP is cut into; below 2: off"),
        Integer(MIN_TOKENS, 256, minimum=2, maximum=1 << 30, help="rows below which an MLP is never cut"),
        Integer(BYTES, 0, minimum=0, maximum=1 << 50, help="bytes that one part's intermediate results may take"),
    ),
    is_open=lambda settings: settings[CHUNKS] > 1 or settings[BYTES] > 0,
    seams=(
        Seam(
            LOAD_MODEL,
            parameters=(),
            why="after it the model's modules are there: those that are dense MLPs are found among them",
        ),
        Seam(
            f"{LINEAR}:AscendMergedColumnParallelLinear.forward",
            parameters=("input_",),
            why="first projection of a gated MLP, row by row",
        ),
        Seam(
            f"{LINEAR}:AscendColumnParallelLinear.forward",
            parameters=("input_",),
            why="first projection of an ungated MLP, row by row",
        ),
        Seam(
            f"{LINEAR}:AscendRowParallelLinear.forward",
            parameters=("input_", "**kwargs"),
            why="second projection; hands on to vLLM's own unless a communication group of its own is set",
        ),
        Seam(
            ROW_FORWARD,
            calls=Calls("self.quant_method.apply", 1),
            why="the matrix product of the second projection, run per part",
        ),
        Seam(
            ROW_FORWARD,
            calls=Calls("tensor_model_parallel_all_reduce", 1),
            why="its sum over the ranks, run once for all parts",
        ),
        Seam(
            "vllm.distributed.communication_op:tensor_model_parallel_all_reduce",
            parameters=("input_",),
            why="that sum over the ranks",
        ),
        Seam(f"{CONTEXT}:get_forward_context", parameters=(), why="says of a step whether it decodes or is captured"),
        Seam(f"{CONTEXT}:is_forward_context_available", parameters=(), why="outside of a step nothing is cut"),
        Seam(f"{CONTEXT}:ForwardContext.cudagraph_runtime_mode", why="a step that runs as a graph is never cut"),
    ),
    binding="vllm_ascend_split_batch.mlp.binding",
    extension_id=EXTENSION_ID,
)

load = MLP_CHUNK.load
