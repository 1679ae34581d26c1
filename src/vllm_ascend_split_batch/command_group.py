"""What the command groups of this distribution share: how a subcommand is run, and one line for whatever goes wrong.

A group is a package with a file per subcommand. A subcommand's module has ``HELP`` (one line),
``add_arguments(parser)`` and ``run(options) -> int``; it imports what it needs beyond the standard library in ``run``,
and raises `CommandError` for what the user can put right.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

#: Exit statuses beside a subcommand's own: an error of use, and, as shells say it, the signals SIGINT and SIGPIPE.
USAGE, INTERRUPTED, NO_READER = 2, 128 + 2, 128 + 13


class CommandError(Exception):
    """Something the user must put right; shown as one line. `status` is the exit status."""

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(message)
        self.status = status


class OneLineParser(argparse.ArgumentParser):
    """A parser whose usage errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def run(
    package: str, subcommands: Sequence[str], arguments: Sequence[str] | None = None, *, program: str, description: str
) -> int:
    """Run one of a group's subcommands.

    Args:
        package: where the modules named by `subcommands` are; the help text lists them in that order.
        arguments: of the command line; those of this process by default.
        program: how the group is called, for its messages.

    Returns:
        The subcommand's exit status; `NO_READER` where the reader of its output has gone.

    Raises:
        SystemExit: an error of use or a `CommandError`, with its status; an interrupt; something the system refuses,
            such as output on a full disk (1). Each has been said in one line on standard error.
    """
    parser = OneLineParser(prog=program, description=description)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=OneLineParser)
    for name in subcommands:
        module = importlib.import_module(f"{package}.{name}")
        subparser = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run, parser=subparser)
    options = parser.parse_args(arguments)
    called: OneLineParser = options.parser
    try:
        status: int = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written shows here, not when the interpreter ends
        return status
    except CommandError as error:
        hint = f" (see {called.prog} --help)" if error.status == USAGE else ""
        called.exit(error.status, f"{called.prog}: {error}{hint}\n")
    except BrokenPipeError:
        sys.stdout = None  # there is nobody to flush to
        return NO_READER
    except OSError as error:
        sys.stdout = None
        called.exit(1, f"{called.prog}: {error}\n")
    except KeyboardInterrupt:
        called.exit(INTERRUPTED, f"{called.prog}: interrupted\n")


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


def positives(text: str) -> tuple[int, ...]:
    """Whole numbers above 0 separated by commas, one at least, ascending and each once."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))
