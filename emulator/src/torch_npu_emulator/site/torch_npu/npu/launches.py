"""Launches that are no torch operators, such as Triton kernels: they obey streams and captures as operators do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from torch_npu import _backend
from torch_npu.npu.streams import current_stream, key_of

_numbers = itertools.count(1)
_captured: dict[int, Callable[[], None]] = {}
_library = torch.library.Library("npu_emulator", "FRAGMENT")


def _call(number: int) -> None:
    _captured[number]()


_library.impl("call", _call, "CompositeExplicitAutograd")


def launch(name: str, function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Calls ``function(*args, **kwargs)`` as one launch of device work; in a capture it is called at every replay.

    npu tensors among the arguments are kept by address, as a captured kernel keeps them.
    """
    if not _backend.capturing():
        torch.ops.npu_emulator.require_running(key_of(current_stream()), name)
        _backend.count_launch(name)
        function(*args, **kwargs)
        return
    kept_args = tuple(_by_address(arg) for arg in args)
    kept_kwargs = {key: _by_address(arg) for key, arg in kwargs.items()}
    number = next(_numbers)
    _captured[number] = lambda: function(*kept_args, **kept_kwargs)
    torch.ops.npu_emulator.capture_call(name, number)


def _by_address(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor) and argument.device.type == "npu":
        return torch.ops.npu_emulator.weak_reference(argument)
    return argument
