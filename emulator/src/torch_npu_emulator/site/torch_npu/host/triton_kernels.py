"""The host's Triton kernels.

The host launches one Triton kernel without asking whether Triton is there: the one that computes slot mappings.
``NPU_EMU_TRITON=standin`` (default) serves that kernel by a function and refuses every other one by name;
``NPU_EMU_TRITON=interpreter`` runs every kernel, unmodified, in the interpreter of the installed triton package
(slow: hundreds of times the stand-in's time).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from torch_npu.emulator import settings
from torch_npu.host.import_hooks import after_import

STANDINS: dict[str, Callable[..., None]] = {}


def _standin(function: Callable[..., None]) -> Callable[..., None]:
    STANDINS[function.__name__] = function
    return function


class StandinKernel:
    """What ``triton.jit`` makes of a kernel: launched by name, never compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__name__ = function.__name__
        self.__wrapped__ = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        standin = STANDINS.get(self.__name__)
        if standin is None:
            raise NotImplementedError(
                f"the Triton kernel {self.__name__} has no stand-in on the emulated NPU: "
                "NPU_EMU_TRITON=interpreter runs it in Triton's interpreter (needs the triton package)"
            )
        return lambda *args, **kwargs: _launch(f"triton::{self.__name__}", standin, (grid, *args), kwargs)

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError(f"the Triton kernel {self.__name__} is launched with a grid: kernel[grid](...)")


def standin_jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Replaces ``triton.jit``, used bare or with options."""
    return StandinKernel if function is None else StandinKernel(function)


@_standin
def _compute_slot_mapping_kernel(
    grid: tuple[int, ...],
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    block_size: int,
    slot_mapping: torch.Tensor,
    TOTAL_CP_WORLD_SIZE: int = 1,
    PAD_ID: int = -1,
    **constants: Any,
) -> None:
    """Writes the cache slot of every scheduled token, and PAD_ID behind the last one.

    Token t of request r at position p goes to slot ``block_table[r, p // block_size] * block_size + p % block_size``.
    The grid has one program per request and one for the padding. Tokens of the batch that belong to no request
    (between the last query end and ``num_tokens``) keep their value, as on the device.
    """
    if TOTAL_CP_WORLD_SIZE != 1:
        raise NotImplementedError("_compute_slot_mapping_kernel with context parallelism has no stand-in")
    requests = grid[0] - 1
    starts = _host(query_start_loc)[: requests + 1].long()
    slots = _host(slot_mapping)
    table = _host(block_table).reshape(-1)
    begin, end = int(starts[0]), int(starts[-1])
    request = torch.repeat_interleave(torch.arange(requests), starts.diff(), output_size=end - begin)
    position = _host(positions)[begin:end].long()
    block = table[request * block_table_stride + position // block_size].long()
    slots[begin:end] = (block * block_size + position % block_size).to(slots.dtype)
    slots[num_tokens:max_num_tokens] = PAD_ID


def _launch(name: str, function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    from torch_npu.npu.launches import launch

    launch(name, function, args, kwargs)


def _host(tensor: torch.Tensor) -> torch.Tensor:
    from torch_npu import _backend

    return _backend.host_alias(tensor) if tensor.device.type == "npu" else tensor


def _serve_standins(triton_utils: types.ModuleType) -> None:
    if triton_utils.HAS_TRITON:
        raise RuntimeError(
            "vLLM found an active Triton driver beside the emulated NPU: another accelerator is in this machine"
        )
    triton_utils.triton.jit = standin_jit


def _serve_interpreter(triton_utils: types.ModuleType) -> None:
    import triton
    import triton.language

    triton_utils.triton = triton  # type: ignore[attr-defined]
    triton_utils.tl = triton.language  # type: ignore[attr-defined]


def _run_on_host(interpreter: types.ModuleType) -> None:
    """Lets the interpreter read and write npu tensors in place."""
    run = interpreter.InterpretedFunction.run

    def run_on_host(self: Any, *args: Any, **kwargs: Any) -> Any:
        def interpret(*args: Any, **kwargs: Any) -> None:
            args = tuple(_host(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
            kwargs = {name: _host(arg) if isinstance(arg, torch.Tensor) else arg for name, arg in kwargs.items()}
            run(self, *args, **kwargs)

        if not any(isinstance(arg, torch.Tensor) and arg.device.type == "npu" for arg in (*args, *kwargs.values())):
            return run(self, *args, **kwargs)
        return _launch(f"triton::{self.fn.__name__}", interpret, args, kwargs)

    interpreter.InterpretedFunction.run = run_on_host


def import_gluon_early() -> None:
    """The host puts empty stub modules in place of gluon where it is imported before torch; the real ones must win."""
    for name in [name for name in sys.modules if name.startswith("triton.experimental")]:
        if getattr(sys.modules[name], "__spec__", None) is None:
            del sys.modules[name]
    import triton.experimental.gluon.language
    import triton.experimental.gluon.nvidia  # noqa: F401


def install() -> None:
    if settings.TRITON == "standin":
        after_import("vllm.triton_utils", _serve_standins)
        return
    if importlib.util.find_spec("triton") is None:
        raise settings.SettingError("NPU_EMU_TRITON=interpreter needs the triton package: pip install triton==3.9.0")
    os.environ.setdefault("TRITON_INTERPRET", "1")
    import_gluon_early()
    after_import("vllm.triton_utils", _serve_interpreter)
    after_import("triton.runtime.interpreter", _run_on_host)
