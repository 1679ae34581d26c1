"""Seams: places of the host that a carrier relies on, and the check that they are what the carrier was written for.

A seam names one attribute of a host module and makes one statement about it. All statements are verified on the live
objects before anything is replaced. The vocabulary is closed, so that the manager can check the same statements on the
host's source files without importing them: the attribute exists; its parameters are these; it is absent; its body calls
something so many times.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

from .record import Record

PENDING, MATCHED, DIFFERS, MISSING = "pending", "matched", "differs", "missing"


#: Closes a list of parameters that says only how they begin.
MORE = "..."


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Any = _Absent()


class Calls(Record):
    """The body of a function calls ``callee`` exactly ``count`` times.

    ``callee`` is a dotted name; a call counts when the called expression is that name or ends with ``.callee``. Calls
    in nested functions count, decorators and default values do not.
    """

    callee: str
    count: int

    def __init__(self, callee: str, count: int) -> None:
        super().__init__(callee=callee, count=count)


class Seam(Record):
    """One place of the host and one statement about it.

    Attributes:
        target: ``"package.module:attribute"`` or ``"package.module:Class.attribute"``.
        parameters: the parameter names in order, without ``self`` or ``cls``. A variadic one is written with its
            stars (``"*args"``, ``"**kwargs"``); keyword-only ones come in order, without the bare star. A last
            ``"..."`` says that the parameters begin like this: more may follow.
        absent: the attribute must not exist, neither in the class itself nor inherited. Its module is not waited for:
            another seam must name it.
        calls: the function's body calls something a number of times.
        kind: what the attribute is in the class or module: ``"function"``, ``"staticmethod"``, ``"classmethod"``,
            ``"property"``, ``"class"``, ``"data"``; ``None``: any, except that parameters are those of a plain
            function unless the kind says otherwise.
        why: what the carrier needs it for, for whoever reads the report.

    Without ``parameters``, ``absent`` and ``calls``, the statement is that the attribute exists.
    """

    target: str
    parameters: tuple[str, ...] | None
    absent: bool
    calls: Calls | None
    kind: str | None
    why: str

    def __init__(
        self,
        target: str,
        parameters: Sequence[str] | None = None,
        absent: bool = False,
        calls: Calls | None = None,
        kind: str | None = None,
        why: str = "",
    ) -> None:
        names = None if parameters is None else tuple(parameters)
        super().__init__(target=target, parameters=names, absent=absent, calls=calls, kind=kind, why=why)
        module, colon, path = self.target.partition(":")
        if not colon or not module or not path or not all(part.isidentifier() for part in path.split(".")):
            raise ValueError(f"seam target {self.target!r} is not of the form 'package.module:Class.attribute'")
        if (self.parameters is not None) + self.absent + (self.calls is not None) > 1:
            raise ValueError(f"seam {self.target}: one statement a seam; declare another seam of the same target")

    @property
    def module(self) -> str:
        """The module that must be imported before the seam can be verified."""
        return self.target.partition(":")[0]

    @property
    def path(self) -> tuple[str, ...]:
        """The attribute names from the module down."""
        return tuple(self.target.partition(":")[2].split("."))

    @property
    def check(self) -> str:
        """The statement's name in the seams sidecar."""
        if self.absent:
            return "absent"
        if self.calls is not None:
            return "call_count"
        return "parameters" if self.parameters is not None else "exists"


class SeamStatus(Record):
    """How one seam stands on the live host: ``status`` is pending, matched, differs or missing; ``detail`` says why."""

    target: str
    status: str
    detail: str

    def __init__(self, target: str, status: str, detail: str = "") -> None:
        super().__init__(target=target, status=status, detail=detail)


def find_owner(seam: Seam) -> Any:
    """The object that holds the seam's last attribute: the module, or a class in it.

    Raises:
        LookupError: the module is not imported, or a class on the way does not exist.
    """
    owner: Any = sys.modules.get(seam.module)
    if owner is None:
        raise LookupError(f"module {seam.module} is not imported")
    for name in seam.path[:-1]:
        owner = getattr(owner, name, ABSENT)
        if owner is ABSENT:
            raise LookupError(f"{seam.module} has no {'.'.join(seam.path[:-1])}")
    return owner


def raw_attribute(owner: Any, name: str) -> Any:
    """What ``owner`` holds or inherits under ``name``, descriptors unbound; :data:`ABSENT` when nothing."""
    import inspect

    return inspect.getattr_static(owner, name, ABSENT)


def kind_of(raw: Any) -> str:
    """The word of :attr:`Seam.kind` for a raw attribute."""
    if isinstance(raw, staticmethod):
        return "staticmethod"
    if isinstance(raw, classmethod):
        return "classmethod"
    if isinstance(raw, property):
        return "property"
    if isinstance(raw, type):
        return "class"
    if callable(raw) and not isinstance(raw, ModuleType):
        return "function"
    return "data"


def function_of(raw: Any) -> Any:
    """The callable within a raw attribute: a method's function, a property's getter, or the attribute itself."""
    if isinstance(raw, (staticmethod, classmethod)):
        return raw.__func__
    if isinstance(raw, property):
        return raw.fget
    return raw


def verify(seam: Seam) -> SeamStatus:
    """Check one seam on the live host. Imports nothing, changes nothing, never raises."""
    try:
        status, detail = _verify(seam)
    except Exception as error:  # a host object may raise from anything, its own __getattr__ included
        status, detail = DIFFERS, f"could not be examined: {type(error).__name__}: {error}"
    return SeamStatus(seam.target, status, detail)


def verify_all(seams: tuple[Seam, ...]) -> list[SeamStatus]:
    """Check every seam, in order."""
    return [verify(seam) for seam in seams]


def _verify(seam: Seam) -> tuple[str, str]:
    try:
        owner = find_owner(seam)
    except LookupError as error:
        if seam.absent and seam.module in sys.modules:
            return MATCHED, str(error)
        return MISSING, str(error)
    raw = raw_attribute(owner, seam.path[-1])
    if seam.absent:
        if raw is ABSENT:
            return MATCHED, ""
        return DIFFERS, f"exists ({kind_of(raw)}), expected none"
    if raw is ABSENT:
        return MISSING, f"{'.'.join((seam.module, *seam.path[:-1]))} has no {seam.path[-1]}"
    kind = kind_of(raw)
    wanted = seam.kind or ("function" if seam.parameters is not None else None)
    if wanted is not None and kind != wanted:
        return DIFFERS, f"is a {kind}, expected a {wanted}"
    if seam.parameters is not None:
        found = parameter_names(raw, in_class=isinstance(owner, type))
        if not _are(found, seam.parameters):
            return DIFFERS, f"parameters are ({', '.join(found)}), expected ({', '.join(seam.parameters)})"
    if seam.calls is not None:
        count = count_calls(function_of(raw), seam.calls.callee)
        if count != seam.calls.count:
            return DIFFERS, f"calls {seam.calls.callee} {count} times, expected {seam.calls.count}"
    return MATCHED, ""


def _are(found: tuple[str, ...], stated: tuple[str, ...]) -> bool:
    """Whether parameters are the stated ones, or begin with them where the statement ends in :data:`MORE`."""
    if stated[-1:] == (MORE,):
        stated = stated[:-1]
        found = found[: len(stated)]
    return found == stated


def parameter_names(raw: Any, *, in_class: bool) -> tuple[str, ...]:
    """The parameter names of a raw attribute, as :attr:`Seam.parameters` writes them.

    Wrappers that name what they wrap (``functools.wraps``) are looked through, our own included.
    """
    import inspect

    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = list(inspect.signature(function_of(raw)).parameters.values())
    bound = in_class and not isinstance(raw, (staticmethod, type))
    if bound and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return tuple(stars.get(p.kind, "") + p.name for p in parameters)


def count_calls(function: Any, callee: str) -> int:
    """How often the source of ``function`` calls ``callee``; raises ``OSError`` when there is no source to read."""
    import ast
    import inspect
    import textwrap

    innermost = inspect.unwrap(function)
    if not isinstance(innermost, FunctionType):
        raise TypeError(f"{innermost!r} is not a Python function")
    tree = ast.parse(textwrap.dedent(inspect.getsource(innermost)))
    definition = tree.body[0]
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise TypeError("its source is not a function definition")
    names = [
        ast.unparse(node.func)
        for statement in definition.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    ]
    return sum(name == callee or name.endswith("." + callee) for name in names)
