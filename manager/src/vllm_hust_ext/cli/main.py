"""The root command, its lazily loaded nouns, and the last line of defence: no traceback reaches a user."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from vllm_hust_ext import __version__
from vllm_hust_ext.cli.common import JSON_KEY
from vllm_hust_ext.cli.lazy import LazyGroup
from vllm_hust_ext.cli.output import report_error
from vllm_hust_ext.errors import BrokenState, ExitCode, ManagerError, UsageFault

PROGRAM = "vllm-hust-ext"
COMPLETE_VARIABLE = "_VLLM_HUST_EXT_COMPLETE"
DEBUG_VARIABLE = "VLLM_HUST_EXT_TRACEBACK"

_NoArguments: type[click.UsageError] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What newer releases of click raise where a verb is missing: its message is the help text, not a fault."""

_COMMANDS = {
    "extension": "vllm_hust_ext.cli.extension:extension",
    "run": "vllm_hust_ext.cli.run:run",
    "doctor": "vllm_hust_ext.cli.doctor:doctor",
    "schema": "vllm_hust_ext.cli.schema:schema",
    "completion": "vllm_hust_ext.cli.completion:completion",
}


@click.group(
    cls=LazyGroup,
    commands_from=_COMMANDS,
    external=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name=PROGRAM)
def root() -> None:
    """Extension manager for vLLM hosts.

    It says what is installed, what fits the host and why not, what is on, what a launch would change, and what
    running engines really did. It reads metadata and files; it imports no extension and no host.

    Exit codes: 0 yes or done, 1 no, 2 usage, 3 refused by a rule, 4 broken state. After 'run' has started a command,
    the exit code is the command's own.
    """


def _wants_json(arguments: Sequence[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


class _Asked:
    """Whether JSON is asked for: what click has read, once it has; until then what the command line looks like."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._guess = _wants_json(arguments)
        self.context: click.Context | None = None

    @property
    def json(self) -> bool:
        return bool(self.context.meta.get(JSON_KEY, self._guess)) if self.context is not None else self._guess


def _run(arguments: Sequence[str], asked: _Asked) -> int:
    try:
        # Not root.main(): click would turn a broken pipe into exit code 1, which says "no" here.
        with root.make_context(PROGRAM, list(arguments)) as context:
            asked.context = context
            result: Any = root.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
        return int(result) if isinstance(result, int) else ExitCode.OK
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.exceptions.Abort:
        return 130
    except _NoArguments as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except click.UsageError as error:
        failed_in = error.ctx
        hint = f"see '{failed_in.command_path} --help'" if failed_in is not None else None
        report_error(UsageFault(error.format_message(), hint=hint), asked.json)
        return ExitCode.USAGE
    except click.ClickException as error:
        report_error(UsageFault(error.format_message()), asked.json)
        return ExitCode.USAGE
    except ManagerError as error:
        report_error(error, asked.json)
        return error.exit_code


def _silence_stdout() -> None:
    _silence(1)


def _silence(descriptor: int) -> None:
    """The reader is gone: let the interpreter's own flush at exit, which would change the exit code, go nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    except OSError:
        pass


def _working_folder_is_gone() -> bool:
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _guarded(arguments: Sequence[str]) -> int:
    asked = _Asked(arguments)
    try:
        return _run(arguments, asked)
    except BrokenPipeError:
        _silence_stdout()
        return 128 + 13
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        gone = _working_folder_is_gone()
        on_stdout = error.filename is None and not gone
        if on_stdout:
            _silence_stdout()
        where = f"{error.filename}" if error.filename else "standard output or a file"
        said, hint = f"the system says: {error.strerror or error}", "check the disk and permissions"
        if gone and not error.filename:
            where, said, hint = "working folder", "it does not exist any more", "change to a folder that exists"
        report_error(
            BrokenState(said, where=where, hint=hint),
            asked.json and not on_stdout,
        )
        return ExitCode.BROKEN
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        kind = type(error).__name__
        report_error(
            BrokenState(
                f"the manager failed ({kind}: {error}); this is a fault of the manager, not of your command",
                name="internal",
                hint=f"please report it with the output of: {DEBUG_VARIABLE}=1 {PROGRAM} {shlex.join(arguments)}",
            ),
            asked.json,
        )
        return ExitCode.BROKEN


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETE_VARIABLE in os.environ:
        root.main(args=given, prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE)
    gc.disable()  # a short-lived process: collecting cycles would cost a fifth of its time and give nothing back
    code = _guarded(given)
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _silence(descriptor)
    sys.exit(int(code))
