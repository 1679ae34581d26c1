"""Whether a host has a defect, decided by its live objects and by no version number.

Each function answers with a :class:`Finding`: *present* (the defect is there), *fixed upstream* (what was wrong is
right now: the repair should be dropped), *absent* (nothing there that could be wrong) or *unknown* (the host looks like
neither; nothing is touched).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class State(Enum):
    """What was found; the value is how reports write it."""

    PRESENT = "present"
    ABSENT = "absent"
    FIXED = "fixed upstream"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One defect on one host: which, how it stands, and what that was seen by."""

    defect: str
    state: State
    detail: str


ORDINARY_KEY, LLAMA3_KEY = "RotaryEmbedding", "Llama3RotaryEmbedding"


def llama3_key(registry: Mapping[str, Any], native: type) -> Finding:
    """Whether Llama-3 scaling is left out of the registry of replaced layers, so that it runs op by op.

    Args:
        registry: the filled registry, layer name -> class built in its place.
        native: vLLM's class of Llama-3 scaling.
    """
    ordinary = registry.get(ORDINARY_KEY)
    if LLAMA3_KEY in registry:
        return Finding("llama3", State.FIXED, f"the host registers {_name(registry[LLAMA3_KEY])} for {LLAMA3_KEY}")
    if ordinary is None:
        return Finding("llama3", State.ABSENT, f"the host registers nothing for {ORDINARY_KEY}, so nothing is left out")
    if not isinstance(ordinary, type) or not all(issubclass(ordinary, base) for base in native.__bases__):
        return Finding("llama3", State.UNKNOWN, f"{_name(ordinary)} shares no base class with {_name(native)}")
    return Finding("llama3", State.PRESENT, f"{ORDINARY_KEY} is registered ({_name(ordinary)}), {LLAMA3_KEY} is not")


#: What the repaired call can supply, by the kernel's parameter names.
MROPE_ARGUMENTS = (
    "q",
    "k",
    "cos",
    "sin",
    "mrope_section",
    "head_size",
    "rotary_dim",
    "mrope_interleaved",
    "is_neox_style",
)
NEOX = "is_neox_style"


def mrope_arguments(forward_triton: Callable[..., Any], kernel: Callable[..., Any] | None) -> Finding:
    """Whether interleaved M-RoPE calls its kernel with fewer arguments than the kernel needs.

    Args:
        forward_triton: the host's method, whose source holds the call ``triton_mrope(...)``.
        kernel: the function called; ``None`` where the host has no Triton.
    """
    if kernel is None:
        return Finding("mrope", State.ABSENT, "no Triton on this host: the call is never reached")
    signature = inspect.signature(kernel)
    try:
        positional, keywords = _call_arguments(forward_triton, "triton_mrope")
    except (LookupError, OSError, TypeError) as error:
        return Finding("mrope", State.UNKNOWN, str(error))
    given = f"{positional + len(keywords)} arguments are passed to triton_mrope"
    try:
        signature.bind(*range(positional), **dict.fromkeys(keywords))
    except TypeError:
        needed = [name for name, parameter in signature.parameters.items() if parameter.default is parameter.empty]
        foreign = [name for name in needed if name not in MROPE_ARGUMENTS]
        if foreign:
            return Finding("mrope", State.UNKNOWN, f"triton_mrope needs {', '.join(foreign)}, which is not known here")
        return Finding("mrope", State.PRESENT, f"{given}, which needs {len(needed)}")
    if NEOX not in signature.parameters:
        return Finding("mrope", State.ABSENT, f"{given}, which needs no more: it has no parameter {NEOX}")
    return Finding("mrope", State.FIXED, f"{given}, {NEOX} among them or with a default")


def yarn_truncation(host_init: Callable[..., Any], core_init: Callable[..., Any]) -> Finding:
    """Whether the host's YaRN leaves its correction range untruncated where vLLM's own truncates it by default."""
    host, core = _default(host_init, "truncate"), _default(core_init, "truncate")
    if core is inspect.Parameter.empty:
        return Finding("yarn", State.ABSENT, "vLLM's own YaRN has no default for truncate")
    if host is inspect.Parameter.empty:
        return Finding("yarn", State.ABSENT, "the host's YaRN has no default of its own for truncate")
    if host == core:
        return Finding("yarn", State.FIXED, f"truncate is {host} by default, as in vLLM's own YaRN")
    if (host, core) == (False, True):
        return Finding("yarn", State.PRESENT, "truncate is False by default, True in vLLM's own YaRN")
    return Finding("yarn", State.UNKNOWN, f"truncate is {host!r} by default, {core!r} in vLLM's own YaRN")


def _default(function: Callable[..., Any], name: str) -> Any:
    parameter = inspect.signature(function).parameters.get(name)
    return inspect.Parameter.empty if parameter is None else parameter.default


def _call_arguments(function: Callable[..., Any], callee: str) -> tuple[int, list[str]]:
    """How many positional arguments, and which keywords, the one call of `callee` in `function` passes.

    Raises:
        LookupError: there is not exactly one such call, or it unpacks its arguments.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == callee
    ]
    if len(calls) != 1:
        raise LookupError(f"{callee} is called {len(calls)} times in {function.__qualname__}, expected one call")
    (call,) = calls
    keywords = [keyword.arg for keyword in call.keywords]
    if any(isinstance(argument, ast.Starred) for argument in call.args) or None in keywords:
        raise LookupError(f"the call of {callee} in {function.__qualname__} unpacks its arguments")
    return len(call.args), [name for name in keywords if name is not None]


def _name(thing: Any) -> str:
    return thing.__qualname__ if isinstance(thing, type) else repr(thing)
