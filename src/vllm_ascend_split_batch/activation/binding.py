"""Where fi-gelu meets the host: a class of ours in vLLM's out-of-tree registry, built in place of `GeluAndMul`."""

from __future__ import annotations

import ast
import gc
import inspect
import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from vllm_ascend_split_batch import row_kernels
from vllm_ascend_split_batch.carrier import Context, DictEntry, Refused
from vllm_ascend_split_batch.fi_gelu_plugin import FI_GELU, FORM, REGISTRY, TORCH

from . import op
from .exact_geglu import exact_geglu

LAYER_NAME = "GeluAndMul"
EXACT = "none"


def patches(context: Context) -> list[DictEntry]:
    """The carrier's one patch: an entry of vLLM's registry.

    Raises:
        Refused: the host, or another plugin, has a `GeluAndMul` of its own; or the kernel is not there.
    """
    from vllm.model_executor import custom_op
    from vllm.model_executor.layers.activation import GeluAndMul
    from vllm_ascend import utils

    if registers(utils.register_ascend_customop, LAYER_NAME):
        raise Refused(f"not needed here: this host registers a {LAYER_NAME} of its own")
    layer = _Layers(context, _form(context.settings[FORM]), GeluAndMul, custom_op.op_registry_oot)
    built = sum(type(thing) is GeluAndMul for thing in gc.get_objects())
    if built:
        context.guard.count("modules_built_before", built)
        context.log.warning("fi-gelu: %d modules were built before it was loaded and keep the host's form", built)
    seam = next(seam for seam in FI_GELU.seams if seam.target == REGISTRY)
    return [DictEntry(seam, LAYER_NAME, layer.take_place)]


def registers(function: Callable[..., Any], name: str) -> bool:
    """Whether a function's source mentions ``name`` as a text: a class that it will register under that name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    return any(isinstance(node, ast.Constant) and node.value == name for node in ast.walk(tree))


def _form(form: str) -> Callable[[Any], Any]:
    if form == TORCH:
        return exact_geglu
    try:
        geglu: Callable[[Any], Any] = row_kernels.load().geglu
    except row_kernels.RowKernelsUnavailable as error:
        raise Refused(f"{error}; {FORM}={TORCH} needs no kernel") from None
    return geglu


class _Layers:
    """The class that is built in the place of the host's, and what its op runs."""

    def __init__(self, context: Context, form: Callable[[Any], Any], host_layer: Any, registry: dict[str, Any]) -> None:
        import torch

        self._guard = context.guard
        self._site = context.guard.site("GeGLU")
        self._log = context.log
        self._form = form
        self._dtypes = (torch.bfloat16, torch.float16, torch.float32)
        self._host_forward = host_layer.forward_native
        self._registry = registry
        self._announced = False
        self.layer = self._made_layer(host_layer)

    def take_place(self, present: Any) -> Any:
        """The registry's entry; refused where there is one."""
        if present is not None:
            raise Refused(f"{present.__module__}.{present.__qualname__} is registered as {LAYER_NAME} already")
        return self.layer

    def _made_layer(self, host_layer: Any) -> Any:
        geglu = op.serve(self.run)
        guard = self._guard

        class ExactGeluAndMul(host_layer):  # type: ignore[misc]
            """vLLM's layer, whose exact form is one op. It keeps the name by which vLLM switches layers on and off."""

            def __init__(self, approximate: str = EXACT, *args: Any, **kwargs: Any) -> None:
                super().__init__(approximate, *args, **kwargs)
                # Modules, not layers of the model: most models share one among all their layers.
                guard.count("modules_exact" if approximate == EXACT else f"modules_{approximate}")

            def forward_oot(self, x: Any) -> Any:
                return geglu(x) if self.approximate == EXACT else self.forward_native(x)

        return ExactGeluAndMul

    def run(self, gate_up: Any) -> Any:
        """What the op does when it runs: ours, or the host's own form."""
        if self._registry.get(LAYER_NAME) is not self.layer:
            return self._host(gate_up)  # uninstalled: layers that were built meanwhile are the host's again
        return self._site.run(self._ours, self._host, gate_up)

    def _ours(self, gate_up: Any) -> Any:
        if gate_up.dtype not in self._dtypes:
            return self._guard.decline("dtype")
        result = self._form(gate_up)
        if not self._announced:
            self._announced = True
            self._log.info("fi-gelu: first GeGLU in the exact form (%s, %s)", tuple(gate_up.shape), gate_up.dtype)
        return result

    def _host(self, gate_up: Any) -> Any:
        # The host's function looks at nothing of its layer but the form, which is the exact one here.
        return self._host_forward(SimpleNamespace(approximate=EXACT), gate_up)

