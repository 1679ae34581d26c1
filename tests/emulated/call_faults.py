"""Every call that some code makes into code elsewhere: found while it runs, and made to raise, one at a time.

The interpreter's profile hook sees each call of a Python or C function with its caller's frame, so no list of calls has
to be believed: what is found is what was called. Operators (`tensor[...]`) are slots and no calls; those of tensors are
made visible by methods that are written in Python.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

#: Modules whose functions cannot fail for a reason of the host's or the device's.
PURE = frozenset(("builtins", "operator", "weakref", "enum", "functools", "contextlib", "math", "time", "logging"))
#: Tensor operators that are slots.
SLOTS = ("__getitem__", "__setitem__", "__sub__")


class Call(NamedTuple):
    """The calling function as `module.function`, what it calls, and the source line."""

    caller: str
    callee: str
    line: int


class Planted(RuntimeError):
    """What a planted call raises."""


class CallFaults:
    """Watches the calls that some code makes to code elsewhere, on the thread that enters `watching`.

    Attributes:
        seen: how often each call was made since the last `plant`. reached: how often the planted one raised.
    """

    def __init__(self, root: Path, watched: Sequence[str], without: Sequence[str] = ()) -> None:
        """Watch a package.

        Args:
            root: the package's folder; calls within it are not calls to elsewhere.
            watched: files and folders below it (`"x.py"`, `"x/"`) whose calls are seen; all but those in `without`.
        """
        self._root = f"{root}/"
        self._watched = tuple(self._root + name for name in watched)
        self._without = tuple(self._root + name for name in without)
        paths = sysconfig.get_paths()
        self._standard, self._installed = paths["stdlib"] + "/", (paths["purelib"] + "/", paths["platlib"] + "/")
        self._functions: dict[CodeType, str | None] = {}
        #: The watched frame whose C call is in progress: what that calls in turn is not its call.
        self._in_c: FrameType | None = None
        self._failing_return: FrameType | None = None
        self._target: Call | None = None
        self._times = range(0)
        self.seen: Counter[Call] = Counter()
        self.reached = 0

    def plant(self, target: Call | None = None, times: range = range(1, 1 << 60)) -> None:
        """Let the call `target` raise at those of its `times` (counted from 1, from now on); None: no call."""
        self.seen.clear()
        self._target, self._times, self.reached = target, times, 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within, calls are seen and the planted one raises."""
        import torch

        native = {slot: getattr(torch.Tensor, slot) for slot in SLOTS}
        for name, slot in native.items():
            setattr(torch.Tensor, name, _visible(name, slot))
        self.resume()
        try:
            yield
        finally:
            sys.setprofile(None)
            for name, slot in native.items():
                setattr(torch.Tensor, name, slot)

    def resume(self) -> None:
        """Watch on: an exception in a hook ends the hook."""
        self._in_c = self._failing_return = None
        sys.setprofile(self._hook)

    # The hook ---------------------------------------------------------------------------------------------------------

    def _hook(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            caller = frame.f_back
            if caller is not None and caller is not self._in_c and (name := self._function(caller.f_code)):
                callee = self._python_callee(frame)
                if callee is not None:
                    self._met(Call(name, callee, caller.f_lineno), frame)
        elif event == "c_call":
            if (name := self._function(frame.f_code)) and (callee := _c_callee(argument)):
                self._met(Call(name, callee, frame.f_lineno), frame)
                self._in_c = frame
        elif event == "return":
            if frame is self._failing_return:
                self._raise()
        elif frame is self._in_c:
            self._in_c = None

    def _met(self, call: Call, frame: FrameType) -> None:
        self.seen[call] += 1
        if call != self._target or self.seen[call] not in self._times:
            return
        if call.callee.endswith(("__exit__", "_end")):
            # It fails behind what it did: where nothing can be ended any more, no code has a way back.
            self._failing_return = frame
        else:
            self._raise()

    def _raise(self) -> None:
        self.reached += 1
        raise Planted("planted")

    def _function(self, code: CodeType) -> str | None:
        """`module.function` of watched code, else None."""
        if code not in self._functions:
            file = code.co_filename
            watched = file.startswith(self._watched) and not (self._without and file.startswith(self._without))
            module = file[len(self._root) : -len(".py")].replace("/", ".")
            self._functions[code] = f"{module}.{code.co_name}" if watched else None
        return self._functions[code]

    def _python_callee(self, frame: FrameType) -> str | None:
        code = frame.f_code
        file, name = code.co_filename, code.co_name
        standard = file.startswith(self._standard) and not file.startswith(self._installed)
        if file.startswith((self._root, "<")) or standard:
            return None
        owner = frame.f_locals.get("self")
        if name == "__call__" and hasattr(owner, "_qualified_op_name"):
            return str(owner._qualified_op_name)
        if name == "__call__" and hasattr(owner, "_schema"):
            return f"{owner._schema.name}.{owner._schema.overload_name}"
        if name in SLOTS:
            return f"Tensor.{name}"
        return f"{type(owner).__name__}.{name}" if name.startswith("__") and owner is not None else name


def _c_callee(function: Any) -> str | None:
    owner = getattr(function, "__self__", None)
    module = str(getattr(function, "__module__", None) or type(owner).__module__)
    if module.split(".")[0].lstrip("_") in PURE:
        return None
    if owner is None or isinstance(owner, type(sys)):
        return str(function.__name__)
    return f"{(owner if isinstance(owner, type) else type(owner)).__name__}.{function.__name__}"


def _visible(name: str, slot: Any) -> Any:
    def call(self: Any, *args: Any) -> Any:
        return slot(self, *args)

    call.__code__ = call.__code__.replace(co_name=name)
    return call
