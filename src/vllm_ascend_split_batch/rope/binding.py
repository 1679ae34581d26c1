"""Where the rotary repairs meet the host: what the host has is looked at, and only what is wrong is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor import custom_op
from vllm.model_executor.layers.rotary_embedding import (
    Llama3RotaryEmbedding,
    MRotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)
from vllm_ascend.ops import rotary_embedding

from vllm_ascend_split_batch.carrier import Context, DictEntry, Patch, Refused, Seam
from vllm_ascend_split_batch.carrier.guard import Site
from vllm_ascend_split_batch.rope_fix_plugin import (
    FORWARD_TRITON,
    LLAMA3,
    MROPE,
    REGISTRATION,
    REGISTRY,
    YARN,
    YARN_INIT,
)

from .defects import LLAMA3_KEY, ORDINARY_KEY, Finding, State, llama3_key, mrope_arguments, yarn_truncation
from .llama3 import scaled_class
from .mrope import repaired

_SWITCHES = {"llama3": LLAMA3, "mrope": MROPE, "yarn": YARN}


def registration_done() -> bool:
    """Whether the host has filled its registry of replaced layers."""
    return ORDINARY_KEY in custom_op.op_registry_oot


def survey() -> list[Finding]:
    """How each defect stands on this host. The one of the registry is meaningful once the registry is filled."""
    return [
        llama3_key(custom_op.op_registry_oot, Llama3RotaryEmbedding),
        mrope_arguments(
            rotary_embedding.AscendMRotaryEmbedding.forward_triton, getattr(rotary_embedding, "triton_mrope", None)
        ),
        yarn_truncation(
            rotary_embedding.AscendYaRNRotaryEmbedding.__init__,
            YaRNScalingRotaryEmbedding.__init__,
        ),
    ]


def patches(context: Context) -> list[Patch | DictEntry]:
    """The repairs this host needs and the settings allow.

    Raises:
        Refused: all three are switched off, or the registry is filled and the host has none of the defects.
    """
    if not any(context.settings[switch] for switch in _SWITCHES.values()):
        raise Refused(f"{', '.join(_SWITCHES.values())} are all off")
    return _Repairs(context).patches()


class _Repairs:
    """The findings of this process, and the bodies of the patches."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = context.guard
        self._findings = {finding.defect: finding for finding in survey()}

    def patches(self) -> list[Patch | DictEntry]:
        found: list[Patch | DictEntry] = []
        if self._needed("yarn"):
            table = self._guard.site("YaRN table")
            found.append(self._context.patch(YARN_INIT, lambda native: self._truncating(native, table)))
        if self._needed("mrope"):
            found.append(self._context.patch(FORWARD_TRITON, self._mrope()))
        if registration_done():
            self._say()
            found += self._registry_entries()
        elif self._context.settings[LLAMA3]:
            # Only when the host's own pass is over can its registry be told to lack something.
            registration = self._guard.site("registration", counted=False)
            found.append(self._context.patch(REGISTRATION, lambda native: self._after(native, registration)))
        else:
            self._say()
        if not found:
            raise Refused("; ".join(f"{f.defect}: {f.state.value}, {f.detail}" for f in self._findings.values()))
        return found

    def _needed(self, defect: str) -> bool:
        return bool(self._context.settings[_SWITCHES[defect]]) and self._findings[defect].state is State.PRESENT

    def _say(self) -> None:
        """Log and count how every defect stands, once the last of them can be told."""
        for defect, finding in self._findings.items():
            switch = _SWITCHES[defect]
            self._guard.count(f"{defect}: {finding.state.value}")
            if not self._context.settings[switch]:
                self._context.log.info("rope-fix: %s: left alone (%s is off)", defect, switch)
                continue
            line = f"rope-fix: {defect}: {finding.state.value} ({finding.detail})"
            if finding.state is State.PRESENT:
                self._context.log.info("%s; repaired", line)
            elif finding.state is State.FIXED:
                self._context.log.warning("%s; %s is not needed on this host any more", line, switch)
            elif finding.state is State.UNKNOWN:
                self._context.log.warning("%s; left alone", line)
            else:
                self._context.log.info("%s; not needed here", line)

    # Llama-3 scaling ----------------------------------------------------------------------------------------------

    def _after(self, native: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def register(*args: Any, **kwargs: Any) -> Any:
            outcome = native(*args, **kwargs)
            site.run(self._complete, _nothing)
            return outcome

        return register

    def _complete(self) -> None:
        if LLAMA3_KEY in custom_op.op_registry_oot and self._findings["llama3"].state is State.PRESENT:
            return  # the host calls its pass again, and ours is there
        self._findings["llama3"] = llama3_key(custom_op.op_registry_oot, Llama3RotaryEmbedding)
        self._say()
        self._context.add(self._registry_entries())

    def _registry_entries(self) -> list[Patch | DictEntry]:
        if not self._needed("llama3"):
            return []
        ordinary: Any = custom_op.op_registry_oot[ORDINARY_KEY]
        made = scaled_class(Llama3RotaryEmbedding, ordinary, self._guard.site("Llama-3 table"))
        return [DictEntry(Seam(REGISTRY), LLAMA3_KEY, lambda before: made)]

    # YaRN ---------------------------------------------------------------------------------------------------------

    def _truncating(self, native: Callable[..., Any], site: Site) -> Callable[..., Any]:
        """The host's constructor with `truncate` true where the model does not say."""

        def default(given: dict[str, Any]) -> Any:
            return self._guard.decline("model_says") if "truncate" in given else {**given, "truncate": True}

        def unchanged(given: dict[str, Any]) -> dict[str, Any]:
            return given

        def __init__(layer: Any, *args: Any, **kwargs: Any) -> None:
            native(layer, *args, **site.run(default, unchanged, kwargs))

        return __init__

    # M-RoPE -------------------------------------------------------------------------------------------------------

    def _mrope(self) -> Callable[[Any], Any]:
        fixed = repaired(rotary_embedding.triton_mrope)
        run = self._guard.site("M-RoPE").run
        # The host's own method cannot run at all here, so vLLM's formula in torch operations stands in for it.
        plain = MRotaryEmbedding.forward_native

        def factory(native: Callable[..., Any]) -> Callable[..., Any]:
            def forward_triton(layer: Any, positions: Any, query: Any, key: Any = None, offsets: Any = None) -> Any:
                if torch.compiler.is_compiling():
                    return fixed(layer, positions, query, key)
                return run(fixed, plain, layer, positions, query, key)

            return forward_triton

        return factory


def _nothing() -> None:
    """What stands in for a registration that could not be completed: Llama-3 scaling stays as the host has it."""
