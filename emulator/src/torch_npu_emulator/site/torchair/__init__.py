"""TorchAir, the graph compiler that the host compiles its model's graphs with where npugraph_ex is not installed.

The host asks it to run the FX graph eagerly, in "reduce-overhead" mode, so that ACL graphs are captured from it: that
is what is modelled. Whatever would compile to Ascend IR or to static kernels is refused. Fusions that the host
registers are not applied: they replace operators by others that compute the same.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch


class CompilerConfig:
    """The options that the host sets, with the published defaults of those that are modelled."""

    def __init__(self) -> None:
        self.mode = "max-autotune"
        aclgraph = types.SimpleNamespace(disable_reinplace_inplaceable_ops_pass=False)
        self.debug = types.SimpleNamespace(run_eagerly=False, aclgraph=aclgraph)
        static = types.SimpleNamespace(_aclnn_static_shape_kernel=False)
        self.experimental_config = types.SimpleNamespace(aclgraph=static)


def get_npu_backend(
    *, compiler_config: CompilerConfig
) -> Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]:
    """A backend of torch.compile that runs the FX graph as it is."""
    if compiler_config.mode != "reduce-overhead" or not compiler_config.debug.run_eagerly:
        raise NotImplementedError(
            f"torchair with mode={compiler_config.mode!r}, run_eagerly={compiler_config.debug.run_eagerly}: the "
            "emulated NPU models graphs that run eagerly only (mode 'reduce-overhead', debug.run_eagerly True)"
        )
    if compiler_config.experimental_config.aclgraph._aclnn_static_shape_kernel:
        raise NotImplementedError("torchair's static shape kernels are not modelled by the emulated NPU")
    return _run_as_it_is


def _run_as_it_is(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = graph
    return compiled


def register_replacement(*args: object, **kwargs: object) -> None:
    """A fusion for the compiled graph; the graph that runs eagerly computes the same without it."""
