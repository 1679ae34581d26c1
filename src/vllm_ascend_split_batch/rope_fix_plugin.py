"""Front door of the rotary-embedding fixes: the `vllm.general_plugins` entry point `rope-fix`.

A declaration only. With its gate closed nothing but the standard library is imported.
"""

from __future__ import annotations

from vllm_ascend_split_batch.carrier import Calls, Carrier, Flag, Seam

EXTENSION_ID = "org.vllm-hust.rope-fix"

ROTARY = "vllm_ascend.ops.rotary_embedding"
REGISTRATION = "vllm_ascend.worker.worker:register_ascend_customop"
REGISTRY = "vllm.model_executor.custom_op:op_registry_oot"
YARN_INIT = f"{ROTARY}:AscendYaRNRotaryEmbedding.__init__"
FORWARD_TRITON = f"{ROTARY}:AscendMRotaryEmbedding.forward_triton"
LLAMA3_INIT = "vllm.model_executor.layers.rotary_embedding.llama3_rope:Llama3RotaryEmbedding.__init__"

GATE = "VLLM_HUST_ROPE_FIX"
LLAMA3, MROPE, YARN = f"{GATE}_LLAMA3", f"{GATE}_MROPE", f"{GATE}_YARN"

_ORDINARY = ("head_size", "rotary_dim", "max_position_embeddings", "base", "is_neox_style", "dtype")

ROPE_FIX = Carrier(
    "rope-fix",
    gates=(
        Flag(GATE, help="repair the rotary-embedding defects that the installed host has"),
        Flag(LLAMA3, True, help="Llama-3 scaling runs the rotary kernel of the NPU"),
        Flag(MROPE, True, help="interleaved M-RoPE passes its Triton kernel every argument"),
        Flag(YARN, True, help="YaRN truncates its correction range, as the models' authors define it"),
    ),
    seams=(
        Seam(
            REGISTRATION,
            parameters=("vllm_config",),
            why="after it the registry of replaced layers is complete: whether Llama-3 scaling is in it is seen there",
        ),
        Seam(REGISTRY, kind="data", why="vLLM builds the class registered here in place of its own"),
        Seam(
            LLAMA3_INIT,
            parameters=(*_ORDINARY, "scaling_factor", "low_freq_factor", "high_freq_factor", "orig_max_position"),
            why="the frequencies of Llama-3 scaling, which hands the rest on to the next class",
        ),
        Seam(
            f"{ROTARY}:AscendRotaryEmbedding.__init__",
            parameters=(*_ORDINARY, "init_cache"),
            why="that next class: the host's own rotary embedding, with the NPU's kernel",
        ),
        Seam(f"{ROTARY}:AscendRotaryEmbedding.forward_oot", kind="function", why="the NPU's rotary kernel"),
        Seam(YARN_INIT, kind="function", why="the default of `truncate` is looked at, and replaced where it is wrong"),
        Seam(
            FORWARD_TRITON,
            parameters=("positions", "query", "key", "offsets"),
            why="interleaved M-RoPE, replaced where its kernel needs more arguments than it is given",
        ),
        Seam(
            FORWARD_TRITON,
            calls=Calls("triton_mrope", 1),
            why="the call whose arguments are counted against the kernel's signature",
        ),
    ),
    binding="vllm_ascend_split_batch.rope.binding",
    extension_id=EXTENSION_ID,
)

load = ROPE_FIX.load
