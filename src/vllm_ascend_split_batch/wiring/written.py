"""A result that already lies at its destination, and knows it.

The host assigns what attention returns to the rows of the output it was given. Where the operator has written there
itself, that assignment would copy memory onto itself. :class:`Written` is what attention returns then: assigning it to
exactly those rows does nothing; to torch's functions, and by its attributes, it is the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Written:
    """An output tensor that the operator has written in place.

    It takes part in torch's functions by torch's own protocol for foreign tensor types (`__torch_function__`), and
    hands attributes on to the rows it stands for.

    Args:
        tensor: the whole output, [T, H, D].
        on_skip: called when an assignment turns out to be a copy of memory onto itself.
    """

    def __init__(self, tensor: torch.Tensor, on_skip: Callable[[], None]) -> None:
        self._tensor = tensor
        self._on_skip = on_skip
        self._cut: slice | None = None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.start is None and key.step is None and type(key.stop) is int:
            cut = Written(self._tensor, self._on_skip)
            cut._cut = key
            return cut
        return self._value()[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value(), name)

    def __len__(self) -> int:
        return len(self._value())

    def _value(self) -> torch.Tensor:
        """The tensor that this stands for: the host's own function returns the whole output."""
        return self._tensor if self._cut is None else self._tensor[self._cut]

    def _is_at(self, destination: Any, key: Any) -> bool:
        """Whether ``destination[key] = self`` copies every byte onto itself."""
        tensor, cut = self._tensor, self._cut
        return (
            cut is not None
            and isinstance(key, slice)
            and key == cut
            and isinstance(destination, torch.Tensor)
            and destination.data_ptr() == tensor.data_ptr()
            and destination.shape == tensor.shape
            and destination.stride() == tensor.stride()
            and destination.dtype == tensor.dtype
            and destination.device == tensor.device
        )

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.__setitem__ and len(args) == 3 and isinstance(args[2], Written):
            destination, key, value = args
            if value._is_at(destination, key):
                value._on_skip()
                return None
        return function(*map(_unwrapped, args), **{name: _unwrapped(value) for name, value in (kwargs or {}).items()})


def _unwrapped(value: Any) -> Any:
    if isinstance(value, Written):
        return value._value()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_unwrapped, value))
    return value
