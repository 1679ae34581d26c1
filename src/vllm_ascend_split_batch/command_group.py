"""What the command groups of this distribution share: how a subcommand is run, and one line for whatever goes wrong.

A group is a package with a file per subcommand. A subcommand's module has ``HELP`` (one line),
``add_arguments(parser)`` and ``run(options) -> int``; it imports what it needs beyond the standard library in ``run``,
and raises `CommandError` for what the user can put right.
"""

from __future__ import annotations

import argparse
import importlib
import io
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

#: Exit statuses beside a subcommand's own: an error of use; as shells say it, the signal SIGPIPE.
USAGE, NO_READER = 2, 128 + 13
#: Signals that end a subcommand as an interrupt does.
ENDING = (signal.SIGTERM, signal.SIGHUP)


class CommandError(Exception):
    """Something the user must put right; shown as one line. `status` is the exit status."""

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(message)
        self.status = status


class Ended(KeyboardInterrupt):
    """A signal that asks this process to end, as an interrupt does."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name the terminal's encoding lacks ends nothing
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
        with _signals_interrupt():
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
    except KeyboardInterrupt as error:
        by = error.signal if isinstance(error, Ended) else signal.SIGINT
        what = "interrupted" if by == signal.SIGINT else f"ended by {signal.Signals(by).name}"
        called.exit(128 + by, f"{called.prog}: {': '.join([what, *map(str, error.args)])}\n")


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Within, `ENDING` raise `Ended`, the first time; where this thread may, and nobody else wants to have them."""

    def end(number: int, _: Any) -> None:
        for one in taken:
            signal.signal(one, signal.SIG_IGN)  # what is being put in order is not interrupted again
        raise Ended(number)

    main = threading.current_thread() is threading.main_thread()
    taken = [one for one in ENDING if main and signal.getsignal(one) is signal.SIG_DFL]
    for one in taken:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)


def positive(text: str) -> int:
    """A whole number above 0, as an argument's type."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 0 < number <= 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def number(least: float, most: float) -> Callable[[str], float]:
    """A number within bounds, both included, as an argument's type; neither infinite nor "not a number"."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return value

    return read


def not_negative(text: str) -> int:
    """A whole number, 0 or more, as an argument's type."""
    return 0 if text.strip() == "0" else positive(text)


def sizes(text: str) -> tuple[int, ...]:
    """Whole numbers above 0 separated by commas; an empty text is none of them."""
    return tuple(positive(part.strip()) for part in text.split(",")) if text.strip() else ()


def positives(text: str) -> tuple[int, ...]:
    """Whole numbers above 0 separated by commas, one at least, ascending and each once."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))
