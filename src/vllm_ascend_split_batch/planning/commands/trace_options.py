"""What the commands that read a trace share: its options, and saying what was wrong in it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from vllm_ascend_split_batch.command_group import CommandError, positive
from vllm_ascend_split_batch.planning.traces import FORMATS, Trace, TraceError, read_trace
from vllm_ascend_split_batch.planning.traces.lines import Assumed

_NAMED = 10


def add_trace_arguments(
    parser: argparse.ArgumentParser, option: str = "--trace", *, formats: tuple[str, ...] = FORMATS
) -> None:
    """Declare the options of a trace."""
    group = parser.add_argument_group("trace")
    group.add_argument(option, type=Path, required=True, metavar="FILE", dest="trace", help="what arrived; may be .gz")
    group.add_argument(
        "--format", choices=("auto", *formats), default="auto", help="of the file; default: by its beginning"
    )
    group.add_argument("--strict", action="store_true", help="stop at the first malformed line")
    group.add_argument(
        "--problems", type=Path, metavar="FILE", help="write every line that yields no request here, as JSON lines"
    )
    group.add_argument(
        "--assume-prompt-tokens", type=positive, metavar="N", help="length of prompts that the source does not tell"
    )
    group.add_argument(
        "--assume-output-tokens", type=positive, metavar="N", help="length of outputs that the source does not tell"
    )


def trace_of(options: argparse.Namespace) -> Trace:
    """Read the trace and say on standard error what in it was no request.

    Raises:
        CommandError: it cannot be used.
    """
    assumed = Assumed(options.assume_prompt_tokens, options.assume_output_tokens)
    try:
        trace = read_trace(options.trace, format=options.format, assumed=assumed, strict=options.strict)
    except TraceError as error:
        raise CommandError(str(error)) from None
    if options.problems:
        try:
            options.problems.write_text("".join(json.dumps(asdict(one)) + "\n" for one in trace.problems), "utf-8")
        except OSError as error:
            raise CommandError(f"--problems {options.problems}: {error.strerror}") from None
    _say(options.trace, trace)
    return trace


def _say(path: Path, trace: Trace) -> None:
    for problem in trace.problems[:_NAMED]:
        kind = "" if problem.malformed else "not served: "
        print(f"{path}: line {problem.line}: {kind}{problem.reason}", file=sys.stderr)
    if len(trace.problems) > _NAMED:
        print(f"{path}: ... and {len(trace.problems) - _NAMED} more (--problems FILE writes all)", file=sys.stderr)
    if trace.problems:
        print(
            f"{path}: {len(trace.requests)} requests; left out {trace.malformed} malformed lines and "
            f"{len(trace.problems) - trace.malformed} requests that were not served",
            file=sys.stderr,
        )
    if trace.reordered:
        print(f"{path}: {trace.reordered} requests were out of order and have been sorted", file=sys.stderr)
