"""Recognising a dense MLP by what its forward does, so that no list of classes has to be kept.

A dense MLP is two projections with an activation between them, and nothing else::

    def forward(self, x):
        x, _ = self.gate_up_proj(x)
        x = self.act_fn(x)
        x, _ = self.down_proj(x)
        return x

under whatever names, nested or line by line, with projections that return a pair (result, bias) or the result alone.
The three calls are followed through the syntax tree; a forward with anything more in it is no dense MLP.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chain:
    """The three steps of a dense MLP.

    Attributes:
        up, act, down: names of the attributes that are called, in order.
        up_pair, down_pair: whether the forward takes the first of a pair that the projection returns.
        keeps_up: whether the first projection's result still has a name while the second projection runs.
    """

    up: str
    act: str
    down: str
    up_pair: bool
    down_pair: bool
    keeps_up: bool = False


class NotAChain(Exception):
    """A forward is something else; the message says what."""


@dataclass(frozen=True)
class _Value:
    """What a name holds: the input put through these calls, each with whether the first of a pair was taken."""

    calls: tuple[tuple[str, bool], ...] = ()


def chain_of(forward: Callable[..., Any]) -> Chain:
    """The chain of a function.

    Raises:
        NotAChain: it is none, or there is no source to read.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(forward))))
    except (OSError, TypeError, SyntaxError) as error:
        raise NotAChain(f"its source cannot be read ({type(error).__name__})") from error
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise NotAChain("its source is no function definition")
    return chain_of_definition(definition)


def chain_of_definition(forward: ast.FunctionDef) -> Chain:
    """The chain of a function's syntax tree.

    Raises:
        NotAChain: it is none.
    """
    arguments = forward.args
    others = arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg
    if len(arguments.args) != 2 or others:
        raise NotAChain("its forward takes more than one tensor")
    me, given = (argument.arg for argument in arguments.args)
    names = {given: _Value()}
    keeps_up = False
    for position, statement in enumerate(forward.body):
        if position == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, ast.Return) and statement.value is not None:
            if statement is not forward.body[-1]:
                raise NotAChain("its forward goes on after a return")
            value = _evaluate(statement.value, me, names)
            return _chain(value, keeps_up or _holds_first(value, names))
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise NotAChain(f"its forward does more than call and assign: {_short(statement)}")
        value = _evaluate(statement.value, me, names)
        keeps_up = keeps_up or _holds_first(value, names)
        _assign(statement.targets[0], value, names)
    raise NotAChain("its forward returns nothing")


def _assign(target: ast.expr, value: _Value, names: dict[str, _Value]) -> None:
    if isinstance(target, ast.Name):
        names[target.id] = value
    elif (
        isinstance(target, ast.Tuple)
        and len(target.elts) == 2
        and isinstance(target.elts[0], ast.Name)
        and isinstance(target.elts[1], ast.Name)
    ):
        names[target.elts[0].id] = _take_first(value)
        names.pop(target.elts[1].id, None)
    else:
        raise NotAChain(f"its forward assigns to {_short(target)}")


def _evaluate(expression: ast.expr, me: str, names: dict[str, _Value]) -> _Value:
    if isinstance(expression, ast.Name):
        if expression.id not in names:
            raise NotAChain(f"its forward reads {expression.id}")
        return names[expression.id]
    if (
        isinstance(expression, ast.Subscript)
        and isinstance(expression.slice, ast.Constant)
        and expression.slice.value == 0
    ):
        return _take_first(_evaluate(expression.value, me, names))
    if isinstance(expression, ast.Call):
        called = expression.func
        if not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == me):
            raise NotAChain(f"its forward calls {_short(called)}")
        if len(expression.args) != 1 or expression.keywords:
            raise NotAChain(f"its forward passes more than a tensor to {called.attr}")
        argument = _evaluate(expression.args[0], me, names)
        return _Value((*argument.calls, (called.attr, False)))
    raise NotAChain(f"its forward computes {_short(expression)}")


def _take_first(value: _Value) -> _Value:
    if not value.calls or value.calls[-1][1]:
        raise NotAChain("its forward takes apart what is no pair")
    return _Value((*value.calls[:-1], (value.calls[-1][0], True)))


def _holds_first(value: _Value, names: dict[str, _Value]) -> bool:
    """Whether a name holds the first call's result at the statement that makes the third."""
    return len(value.calls) == 3 and any(len(held.calls) == 1 for held in names.values())


def _chain(value: _Value, keeps_up: bool) -> Chain:
    if len(value.calls) != 3 or len({name for name, _ in value.calls}) != 3:
        steps = " -> ".join(name for name, _ in value.calls) or "nothing"
        raise NotAChain(f"its forward is {steps}, not projection -> activation -> projection")
    (up, up_pair), (act, act_pair), (down, down_pair) = value.calls
    if act_pair:
        raise NotAChain(f"its forward takes the first of what {act} returns")
    return Chain(up, act, down, up_pair, down_pair, keeps_up)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
