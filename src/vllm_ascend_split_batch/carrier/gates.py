"""Environment gates: typed variables that are read without ever raising.

A gate turns whatever the environment holds into a value. What it cannot read counts as the default, and the
:class:`Reading` says so in one sentence that names the variable, what it held and what is accepted.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from .record import Record

ON = ("1", "true", "yes", "on")
OFF = ("0", "false", "no", "off")

# Compiled at their first use: that takes longer than all else in this module, and most processes read no number.
_INTEGER = r"[+-]?[0-9]{1,20}"
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_SHOWN = 80


class Reading(Record):
    """What one gate found.

    Attributes:
        name: the variable. value: what counts. raw: the variable's text, ``None`` when unset.
        source: ``"environment"``, ``"default"`` (unset) or ``"invalid"`` (unreadable: the default counts).
        problem: for ``"invalid"``, the sentence to show; else ``None``.
    """

    name: str
    value: Any
    raw: str | None
    source: str
    problem: str | None

    def __init__(self, name: str, value: Any, raw: str | None, source: str, problem: str | None = None) -> None:
        super().__init__(name=name, value=value, raw=raw, source=source, problem=problem)


class Invalid(Exception):
    """A text is no value of a gate. Does not leave :meth:`Gate.read`."""


class Gate:
    """One environment variable.

    Subclasses parse one kind of value. ``name`` is the variable, ``default`` what an unset or unreadable variable
    counts as, ``help`` one phrase that says what it is for.
    """

    #: Whether a blank text is a value of its own rather than the same as unset.
    blank_is_a_value: ClassVar[bool] = False

    def __init__(self, name: str, default: Any, *, help: str = "") -> None:
        self.name = name
        self.default = default
        self.help = help

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, default={self.default!r})"

    @property
    def accepted(self) -> str:
        """What the gate accepts, as it reads after "accepted: "."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """The value of ``text``, which has no surrounding blanks; :class:`Invalid` when it has none."""
        raise NotImplementedError

    def read(self, environ: Mapping[str, str] | None = None) -> Reading:
        """Read the variable. Never raises, whatever it holds."""
        raw = (os.environ if environ is None else environ).get(self.name)
        if raw is None:
            return Reading(self.name, self.default, None, "default")
        text = raw.strip()
        if not text and not self.blank_is_a_value:
            return Reading(self.name, self.default, raw, "default")
        try:
            return Reading(self.name, self.parse(text), raw, "environment")
        except Invalid:
            shown = repr(raw) if len(raw) <= _SHOWN else f"{raw[:_SHOWN]!r}... ({len(raw)} characters)"
            problem = f"{self.name} is {shown}, accepted: {self.accepted}; {self._shown_default()} counts"
            return Reading(self.name, self.default, raw, "invalid", problem)

    def _shown_default(self) -> str:
        return f"the default {self.default}"


class Flag(Gate):
    """On: ``1 true yes on``. Off: ``0 false no off`` and blank. Any case, surrounding blanks ignored."""

    blank_is_a_value = True

    def __init__(self, name: str, default: bool = False, *, help: str = "") -> None:
        super().__init__(name, default, help=help)

    @property
    def accepted(self) -> str:
        return f"{' '.join(ON)} / {' '.join(OFF)}"

    def parse(self, text: str) -> bool:
        word = text.lower()
        if word in ON:
            return True
        if not word or word in OFF:
            return False
        raise Invalid

    def _shown_default(self) -> str:
        return f"the default {'on' if self.default else 'off'}"


class _Bounded(Gate):
    def __init__(
        self, name: str, default: Any, *, minimum: Any = None, maximum: Any = None, help: str = "", kind: str
    ) -> None:
        super().__init__(name, default, help=help)
        self.minimum = minimum
        self.maximum = maximum
        self._kind = kind

    @property
    def accepted(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f"{self._kind} from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{self._kind} of at least {self.minimum}"
        if self.maximum is not None:
            return f"{self._kind} of at most {self.maximum}"
        return self._kind

    def _within(self, value: Any) -> Any:
        if (self.minimum is not None and value < self.minimum) or (self.maximum is not None and value > self.maximum):
            raise Invalid
        return value


class Integer(_Bounded):
    """A decimal integer within bounds, both included. Blank counts as unset."""

    def __init__(
        self, name: str, default: int, *, minimum: int | None = None, maximum: int | None = None, help: str = ""
    ) -> None:
        super().__init__(name, default, minimum=minimum, maximum=maximum, help=help, kind="an integer")

    def parse(self, text: str) -> int:
        # int() alone would take "1_000", other alphabets' digits, and raise on very long texts.
        if not re.fullmatch(_INTEGER, text):
            raise Invalid
        return int(self._within(int(text)))


class Number(_Bounded):
    """A finite decimal number within bounds, both included. Blank counts as unset."""

    def __init__(
        self, name: str, default: float, *, minimum: float | None = None, maximum: float | None = None, help: str = ""
    ) -> None:
        super().__init__(name, default, minimum=minimum, maximum=maximum, help=help, kind="a number")

    def parse(self, text: str) -> float:
        if not re.fullmatch(_NUMBER, text):
            raise Invalid
        value = float(text)
        if not math.isfinite(value):
            raise Invalid
        return float(self._within(value))


class Choice(Gate):
    """One of a few words, any case. Blank counts as unset."""

    def __init__(self, name: str, values: Sequence[str], default: str, *, help: str = "") -> None:
        if default not in values:
            raise ValueError(f"{name}: the default {default!r} is none of the values {tuple(values)}")
        super().__init__(name, default, help=help)
        self.values = tuple(values)

    @property
    def accepted(self) -> str:
        return " or ".join(self.values)

    def parse(self, text: str) -> str:
        for value in self.values:
            if value.lower() == text.lower():
                return value
        raise Invalid


class Text(Gate):
    """Any text of one line, such as a file's name. Blank counts as unset."""

    def __init__(self, name: str, default: str = "", *, help: str = "") -> None:
        super().__init__(name, default, help=help)

    @property
    def accepted(self) -> str:
        return "one line of printable text"

    def parse(self, text: str) -> str:
        if not text.isprintable():
            raise Invalid
        return text

    def _shown_default(self) -> str:
        return f"the default {self.default!r}"


class Settings(Mapping[str, Any]):
    """The values of a carrier's gates, read once: ``settings["VARIABLE"]`` is a value, not a text."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self.readings = {reading.name: reading for reading in readings}

    @classmethod
    def read(cls, gates: Sequence[Gate], environ: Mapping[str, str] | None = None) -> Settings:
        """Read every gate. Never raises."""
        return cls([gate.read(environ) for gate in gates])

    def __getitem__(self, name: str) -> Any:
        return self.readings[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self.readings)

    def __len__(self) -> int:
        return len(self.readings)

    @property
    def problems(self) -> list[str]:
        """The sentences of the readings that could not be read."""
        return [reading.problem for reading in self.readings.values() if reading.problem]
