"""In a process of the emulated NPU: does ahead-of-time compilation assert without aot-cache-guard, and with it?

    python -m torch_npu_emulator -- env -u TORCHINDUCTOR_AUTOGRAD_CACHE python compile_ahead_child.py

Prints one line of JSON: `{"stock": error or null, "guarded": error or null, "report": the carrier's report}`.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any


def compile_ahead(compiler: Any, key: str) -> str | None:
    """Compile a small function through the host's compiler as vLLM does; the error, or None."""
    import torch
    from vllm.config.utils import Range

    def backend(graph: Any, inputs: Any) -> Any:
        return compiler.AscendCompiler().compile(graph, inputs, {key: lambda graph: graph}, Range(1, 8))[0]

    torch._dynamo.reset()
    switches = {"force_autograd_cache": True, "bundled_autograd_cache": True, "bypass_autograd_cache_key": True}
    try:
        with torch._functorch.config.patch(switches):
            result = torch.compile(lambda x: (x * 2 + 1,), backend=backend, fullgraph=True)(torch.ones(3))
    except Exception as error:
        return next(line for line in str(error).splitlines() if "Error" in line)
    assert result[0].tolist() == [3.0, 3.0, 3.0]
    return None


def main() -> None:
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    import vllm_ascend.ops  # noqa: F401
    from vllm_ascend import ascend_config
    from vllm_ascend.compilation import compiler_interface
    from vllm_ascend.utils import COMPILATION_PASS_KEY

    from vllm_ascend_split_batch.aot_cache_guard_plugin import AOT_CACHE_GUARD

    # The fusion-pass path, as in piecewise graph modes; without an engine there is no configuration to say so.
    setting = SimpleNamespace(ascend_compilation_config=SimpleNamespace(enable_npugraph_ex=False))
    compiler_interface.get_ascend_config = ascend_config.get_ascend_config = lambda: setting
    stock = compile_ahead(compiler_interface, COMPILATION_PASS_KEY)
    os.environ["VLLM_HUST_AOT_CACHE_GUARD"] = "1"
    AOT_CACHE_GUARD.load()
    guarded = compile_ahead(compiler_interface, COMPILATION_PASS_KEY)
    print("\nRESULT" + json.dumps({"stock": stock, "guarded": guarded, "report": AOT_CACHE_GUARD.report()}), flush=True)


if __name__ == "__main__":
    main()
