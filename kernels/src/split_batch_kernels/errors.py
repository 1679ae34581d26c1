"""What the ops raise."""

from __future__ import annotations


class OpContractError(RuntimeError):
    """An argument of an op breaks the op's contract.

    A ``RuntimeError``, as the checks of a compiled op library raise it, so that one ``except`` serves both.
    The message names the op, the argument, what it was and what the contract asks for.
    """


class DeviceLimitError(OpContractError):
    """The arguments keep the op's contract, but the device build of the op does not take them."""


class OpDefinitionError(RuntimeError):
    """An op of this package is defined, or implemented, by somebody else already."""


class TritonUnavailableError(RuntimeError):
    """A Triton kernel was asked for where Triton cannot run."""


def violation(op: str, what: str, got: object, expected: object) -> OpContractError:
    """The error for one broken rule, always in the same form."""
    return OpContractError(f"{op}: {what} is {got}, expected {expected}")
