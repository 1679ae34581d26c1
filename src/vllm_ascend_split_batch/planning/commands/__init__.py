"""The command group ``planner``: a file per subcommand, also run as ``python -m vllm_ascend_split_batch.planning``.

A subcommand's module has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(options) -> int``; it imports what it
needs beyond the standard library in ``run``, and raises `CommandError` for what the user can put right.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

#: Modules of this package, in the order of the help text.
SUBCOMMANDS = ("plan", "simulate", "advise", "record", "generate")
PROGRAM = "python -m vllm_ascend_split_batch.planning"


class CommandError(Exception):
    """Something the user must put right; shown as one line. `status` is the exit status."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class OneLineParser(argparse.ArgumentParser):
    """A parser whose usage errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns its exit status, 2 for an error of use."""
    parser = OneLineParser(
        prog=PROGRAM, description="Split batches, waiting queues and padding: plan, simulate, advise."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=OneLineParser)
    for name in SUBCOMMANDS:
        module = importlib.import_module(f"{__name__}.{name}")
        subparser = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run, parser=subparser)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except CommandError as error:
        options.parser.exit(error.status, f"{options.parser.prog}: {error} (see {options.parser.prog} --help)\n")
    except BrokenPipeError:
        sys.stdout = None  # the reader has gone: there is nobody to flush to
        return 1
    except KeyboardInterrupt:
        options.parser.exit(130, f"{options.parser.prog}: interrupted\n")
    return status


def positive(text: str) -> int:
    """A whole number above 0, as an argument's type."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 0 < number <= 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def not_negative(text: str) -> int:
    """A whole number, 0 or more, as an argument's type."""
    return 0 if text.strip() == "0" else positive(text)


def sizes(text: str) -> tuple[int, ...]:
    """Whole numbers above 0 separated by commas; an empty text is none of them."""
    return tuple(positive(part.strip()) for part in text.split(",")) if text.strip() else ()
