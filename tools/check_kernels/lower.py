"""Runs in the check's environment: kernel sources -> the compiler's input, one file per variant.

    python lower.py FOLDER TARGET SOURCE.py...

Writes FOLDER/<number>.mlir and prints one JSON document: the variants in order, each with ``source``, ``kernel``,
``variant`` and either ``error`` or ``file``, ``arguments`` (of the compiler) and ``cores``. No torch here: the package
`split_batch_kernels` is entered without its own `__init__`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

PACKAGE = "split_batch_kernels"

#: Compile options of the Ascend back end and the compiler's arguments that they become.
OPTION_ARGUMENTS = {
    "multibuffer": "enable-auto-multi-buffer",
    "enable_auto_bind_sub_block": "enable-auto-bind-sub-block",
    "enable_hivm_auto_cv_balance": "enable-hivm-auto-cv-balance",
    "sync_solver": "enable-hivm-graph-sync-solver",
    "unit_flag": "enable-hivm-unit-flag-sync",
    "inject_barrier_all": "enable-hivm-inject-barrier-all-sync",
    "inject_block_all": "enable-hivm-inject-block-all-sync",
    "limit_auto_multi_buffer_only_for_local_buffer": "limit-auto-multi-buffer-only-for-local-buffer",
    "limit_auto_multi_buffer_of_local_buffer": "limit-auto-multi-buffer-of-local-buffer",
    "set_workspace_multibuffer": "set-workspace-multibuffer",
    "tile_mix_vector_loop": "tile-mix-vector-loop",
    "tile_mix_cube_loop": "tile-mix-cube-loop",
    "disable_auto_inject_block_sync": "disable-auto-inject-block-sync",
}


def load(source: Path) -> types.ModuleType:
    """The kernel source as a module of the package, so that its relative imports find the package's own files."""
    name = f"{PACKAGE}.{source.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def undeclared(module: types.ModuleType) -> list[str]:
    """Kernels that the source defines and lists in no lowering."""
    from triton.runtime.jit import JITFunction

    listed = {lowering.kernel for lowering in module.LOWERINGS}
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, JITFunction)
        and not name.startswith("_")
        and value.fn.__module__ == module.__name__
        and name not in listed
    ]


def mismatch(arguments: list[str], lowering: Any) -> str | None:
    """What of a lowering does not fit the kernel's arguments."""
    given = [*lowering.arguments, *lowering.constants]
    missing = [name for name in arguments if name not in given]
    extra = [name for name in given if name not in arguments]
    if missing or extra:
        parts = (("lacks", missing), ("names what is no argument:", extra))
        return "its lowering " + " and ".join(f"{verb} {', '.join(names)}" for verb, names in parts if names)
    return None


def lower(function: Any, lowering: Any, target: str) -> tuple[str, list[str], str]:
    """The compiler's input (MLIR) for one variant, the arguments its options become, and the cores it runs on."""
    from triton._C.libtriton import ir
    from triton.backends.ascend.compiler import AscendBackend, _parse_linalg_metadata, make_ttir, ttir_to_linalg
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    device = GPUTarget("npu", target, 32)
    backend = AscendBackend(device)
    options = backend.parse_options(dict(lowering.options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(function, dict(lowering.arguments), dict(lowering.constants))
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    metadata = {"target": device, **vars(options)}
    module = make_ttir(module, metadata, options)
    text, metadata = _parse_linalg_metadata(ttir_to_linalg(module, metadata, options, named_ops=True), metadata)
    arguments = [
        f"--{argument}={metadata[option]}"
        for option, argument in OPTION_ARGUMENTS.items()
        if metadata.get(option) is not None
    ]
    return text, arguments, str(metadata["mix_mode"])


def attempt(function: Any, lowering: Any, target: str, place: Path) -> dict[str, Any]:
    """One variant's entry in the document, its file written."""
    entry: dict[str, Any] = {"kernel": lowering.kernel, "variant": lowering.variant}
    problem = mismatch(list(function.arg_names), lowering)
    if problem is not None:
        return entry | {"error": problem}
    try:
        text, arguments, cores = lower(function, lowering, target)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return entry | {"error": next((line for line in lines if "error:" in line), "\n".join(lines[-3:]))}
    except Exception as error:
        return entry | {"error": f"{type(error).__name__}: {error}".strip()}
    place.write_text(text)
    return entry | {"file": place.name, "arguments": arguments, "cores": cores}


def main(folder: str, target: str, sources: list[str]) -> None:
    os.environ["TRITON_ASCEND_ARCH"] = target
    package = types.ModuleType(PACKAGE)
    own = [Path(source).parent for source in sources if Path(source).parent.name == PACKAGE]
    package.__path__ = [str(own[0])] if own else []
    sys.modules[PACKAGE] = package
    entries: list[dict[str, Any]] = []
    for source in map(Path, sources):
        module = load(source)
        entries += [
            {"source": source.name, "kernel": name, "variant": "", "error": "it is listed in no lowering"}
            for name in undeclared(module)
        ]
        for lowering in module.LOWERINGS:
            place = Path(folder) / f"{len(entries)}.mlir"
            function = getattr(module, lowering.kernel)
            entries.append({"source": source.name} | attempt(function, lowering, target, place))
    print(json.dumps(entries))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
