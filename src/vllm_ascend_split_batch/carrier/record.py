"""Small values without `dataclasses`, which compiles code for each class: half a millisecond, in every vLLM process."""

from __future__ import annotations

from typing import Any, NoReturn


class Record:
    """Compared, hashed and shown by its attributes, which ``__init__`` hands over once, by name."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: a {type(self).__name__} does not change")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted: a {type(self).__name__} does not change")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
