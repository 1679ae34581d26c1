"""What of a Triton kernel is compiled for the device when it is checked: its variants, as data.

A kernel source is a file ``<part>_triton.py`` of this package. It imports only the standard library, ``triton`` and
other kernel sources (the check's environment has no torch), and lists in ``LOWERINGS`` at least one :class:`Lowering`
of every kernel it defines. Device functions that kernels call have a name that starts with an underscore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Lowering:
    """One variant of a kernel: everything that decides about the code that a compiler makes of it.

    Attributes:
        kernel: name of the ``triton.jit`` function in the file that lists this.
        variant: what is particular, unique within the kernel, such as ``"bf16-d128"``.
        arguments: the run-time arguments in the kernel's order and their Triton types: ``"*bf16"``, ``"*fp32"``,
            ``"*i32"``, ``"i32"``, ``"fp32"``, ...
        constants: the values of the ``tl.constexpr`` arguments; every argument is in one of the two.
        options: compile options of the Ascend back end that the kernel's caller passes at launch.
    """

    kernel: str
    variant: str
    arguments: Mapping[str, str]
    constants: Mapping[str, object]
    options: Mapping[str, object] = field(default_factory=dict)
