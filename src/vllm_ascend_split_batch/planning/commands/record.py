"""A trace out of what a server gave per request: its request log lines, or its spans where tracing is on.

Start the server with --enable-log-requests --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG and keep what it writes;
or with --otlp-traces-endpoint, and have the collector write OTLP JSON. The other formats are taken too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vllm_ascend_split_batch.command_group import CommandError
from vllm_ascend_split_batch.planning.commands.trace_options import add_trace_arguments, trace_of
from vllm_ascend_split_batch.planning.traces import write_trace

HELP = "a trace out of a server's request log or spans"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``record``."""
    add_trace_arguments(parser, "--from")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the trace")


def run(options: argparse.Namespace) -> int:
    """Read and write; exit status 0."""
    trace = trace_of(options)
    try:
        written = write_trace(options.out, trace.requests)
    except OSError as error:
        raise CommandError(f"--out {options.out}: {error.strerror}") from None
    print(f"{options.out}: {written} requests of {options.trace} ({trace.format})", file=sys.stderr)
    return 0
