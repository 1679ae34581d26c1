"""A request trace through the host's waiting queues and scheduler: a JSON line for every request, as they finish."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

from vllm_ascend_split_batch.command_group import CommandError
from vllm_ascend_split_batch.host_model.admission import Policy, TooManyJobs
from vllm_ascend_split_batch.planning.commands.engine_options import add_engine_arguments, setup_of
from vllm_ascend_split_batch.planning.commands.trace_options import add_trace_arguments, trace_of
from vllm_ascend_split_batch.planning.progress import progress_bar
from vllm_ascend_split_batch.planning.simulation import Setup, Simulation
from vllm_ascend_split_batch.planning.summary import Summary, summary_lines
from vllm_ascend_split_batch.planning.traces import Trace

HELP = "when each request of a trace is admitted, answered and done"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``simulate``."""
    add_trace_arguments(parser)
    add_engine_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON lines; default: standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no summary on standard error")


def run(options: argparse.Namespace) -> int:
    """Simulate; exit status 1 where some request can never run."""
    trace = trace_of(options)
    setup = setup_of(options, trace.requests)
    try:
        with options.out.open("w", encoding="utf-8") if options.out else nullcontext(sys.stdout) as out:
            summary = _simulate(setup, trace, out, options.quiet)
    except OSError as error:
        if options.out is None:
            raise
        raise CommandError(f"--out {options.out}: {error.strerror}") from None
    except TooManyJobs as error:
        raise CommandError(f"the host's engine would end here: {error} (--max-jobs)", 1) from None
    if not options.quiet:
        print("\n".join(summary_lines(summary)), file=sys.stderr)
    return 1 if summary.rejected or summary.unfinished else 0


def _simulate(setup: Setup, trace: Trace, out: TextIO, quiet: bool) -> Summary:
    simulation = Simulation(setup)
    summary = Summary(Policy(setup.engine.policy).value, simulation.totals)
    with progress_bar(len(trace.requests), "simulate", "requests", quiet=quiet) as bar:
        for outcome in simulation.run(trace.requests, bar.advance):
            summary.add(outcome)
            out.write(outcome.line() + "\n")
    return summary
