"""Llama-3 scaling on the rotary kernel of the NPU: the host's own rotary class with Llama-3 frequencies.

Nothing of the host is restated. The class inherits from vLLM's Llama-3 class and from whatever class the host has
registered for the ordinary rotary embedding, in this order: the first supplies the frequencies

    inv_freq' = inv_freq                                     for wavelengths below  original / high_freq_factor
                inv_freq / factor                            for wavelengths above  original / low_freq_factor
                (1 - s) inv_freq / factor + s inv_freq       between, s rising linearly in original / wavelength

and calls on to the second, which builds the table, records it where the host keeps it, and runs the kernel. So the
arguments of the host's forward are the host's own business, and other chips' registered classes are served alike.
"""

from __future__ import annotations

from typing import Any

from vllm_ascend_split_batch.carrier import Refused
from vllm_ascend_split_batch.carrier.guard import Site

from .defects import LLAMA3_KEY


def scaled_class(native: type, ordinary: type, site: Site) -> type:
    """A class to register for Llama-3 scaling.

    Args:
        native: vLLM's class of Llama-3 scaling.
        ordinary: the class that the host has registered for the ordinary rotary embedding.
        site: where its constructions are counted; one that fails leaves a layer of class `native`.

    Raises:
        Refused: vLLM's class has come to bring a forward of its own, which would hide the host's.
    """
    from_host: Any = ordinary

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        native.__init__(self, *args, **kwargs)  # type: ignore[misc]

    def build_native(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__dict__.clear()
        self.__class__ = native
        native.__init__(self, *args, **kwargs)  # type: ignore[misc]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        site.run(build, build_native, self, *args, **kwargs)

    made = type(
        "AscendLlama3RotaryEmbedding",
        (native, ordinary),
        {"__init__": __init__, "__module__": __name__, "__doc__": scaled_class.__doc__, "name": LLAMA3_KEY},
    )
    reached: Any = made
    if reached.forward_oot is not from_host.forward_oot:
        raise Refused(f"{native.__qualname__} has a forward of its own for the NPU")
    return made
