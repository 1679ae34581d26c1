"""TorchAir, imported by the host's graph compiler."""

from __future__ import annotations

from typing import NoReturn


def _not_modelled(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"torchair.{what}: graph compilation is not modelled by the emulated NPU (--enforce-eager)"
    )


class CompilerConfig:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise _not_modelled("CompilerConfig")


def get_npu_backend(*args: object, **kwargs: object) -> NoReturn:
    raise _not_modelled("get_npu_backend")


def register_replacement(*args: object, **kwargs: object) -> NoReturn:
    raise _not_modelled("register_replacement")
