"""Front door of the compile cache guard: the `vllm.general_plugins` entry point `aot-cache-guard`.

A declaration only. With its gate closed, as it is by default, nothing but the standard library is imported.
"""

from __future__ import annotations

from vllm_ascend_split_batch.carrier import Calls, Carrier, Flag, Seam

EXTENSION_ID = "org.vllm-hust.aot-cache-guard"

COMPILER = "vllm_ascend.compilation.compiler_interface"
COMPILE = f"{COMPILER}:AscendCompiler.compile"

AOT_CACHE_GUARD = Carrier(
    "aot-cache-guard",
    gates=(Flag("VLLM_HUST_AOT_CACHE_GUARD", help="compile without torch's AOTAutograd cache where it would assert"),),
    seams=(
        Seam(
            COMPILE,
            parameters=("graph", "example_inputs", "compiler_config", "compile_range", "key"),
            why="every graph of the model is compiled here; it runs with the cache off",
        ),
        Seam(
            COMPILE,
            calls=Calls("fusion_pass_compile", 1),
            why="the path whose result torch's cache does not accept",
        ),
        Seam(
            f"{COMPILER}:compile_fx",
            calls=Calls("aot_autograd", 1),
            why="hands that path's result to torch's AOTAutograd",
        ),
    ),
    binding="vllm_ascend_split_batch.compile_cache.binding",
    extension_id=EXTENSION_ID,
)

load = AOT_CACHE_GUARD.load
