"""Front door of fi-gelu, the `vllm.general_plugins` entry point of that name: GeGLU with the exact error function.

A declaration only. With its gate closed nothing but the standard library is imported.
"""

from __future__ import annotations

from vllm_ascend_split_batch.carrier import Carrier, Choice, Flag, Seam

EXTENSION_ID = "org.vllm-hust.fi-gelu"

GATE = "VLLM_HUST_FI_GELU"
FORM = f"{GATE}_FORM"
KERNEL, TORCH = "kernel", "torch"

REGISTRY = "vllm.model_executor.custom_op:op_registry_oot"
LAYER = "vllm.model_executor.layers.activation:GeluAndMul"
REGISTER = "vllm_ascend.utils:register_ascend_customop"

FI_GELU = Carrier(
    "fi-gelu",
    gates=(
        Flag(GATE, help="GeGLU with the exact error function, in one kernel"),
        Choice(FORM, (KERNEL, TORCH), KERNEL, help="by our kernel, or by torch operators alone"),
    ),
    seams=(
        Seam(REGISTRY, kind="data", why="classes that take the place of vLLM's own when a layer is built"),
        Seam(
            f"{LAYER}.__init__",
            parameters=("approximate",),
            why="a layer says at construction whether it wants the exact form",
        ),
        Seam(f"{LAYER}.forward_native", parameters=("x",), why="what the host runs, and what runs when ours cannot"),
        Seam(
            "vllm.model_executor.custom_op:CustomOp.forward_oot",
            parameters=("*args", "**kwargs"),
            why="the method that an out-of-tree platform runs; the layer does not define one of its own",
        ),
        Seam(REGISTER, parameters=("vllm_config",), why="the classes that the host itself registers"),
        Seam("vllm_ascend.worker.worker:NPUWorker", kind="class", why="layers are built in the worker's process"),
    ),
    binding="vllm_ascend_split_batch.activation.binding",
    extension_id=EXTENSION_ID,
)

load = FI_GELU.load
