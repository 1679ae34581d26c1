"""A made-up trace: bursty arrivals, short and long prompts, jobs of different output lengths; repeatable by seed."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from vllm_ascend_split_batch.command_group import CommandError, positive
from vllm_ascend_split_batch.planning.traces import Workload, generate, write_trace

HELP = "a made-up trace"

_HELP = {
    "rate": "arrivals per second",
    "burstiness": "1: a Poisson process; above: bursts (squared variation of the times between arrivals)",
    "short_prompt": "median tokens of short prompts",
    "long_prompt": "median tokens of long prompts",
    "long_share": "share of long prompts, 0 to 1",
    "output": "median tokens produced",
    "spread": "standard deviation of the logarithm of lengths",
    "jobs": "jobs, each with outputs of its own length; 0: none",
    "most_prompt": "longest prompt",
    "most_output": "longest output",
    "seed": "the same seed gives the same trace",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``generate``."""
    parser.add_argument("--requests", type=positive, required=True, metavar="N", help="how many")
    for field in fields(Workload):
        if field.name in _HELP:
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                type=type(field.default),
                default=field.default,
                metavar="N",
                help=f"{_HELP[field.name]}; default {field.default:g}",
            )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the trace")


def run(options: argparse.Namespace) -> int:
    """Generate and write; exit status 0."""
    try:
        workload = Workload(requests=options.requests, **{name: getattr(options, name) for name in _HELP})
        written = write_trace(options.out, generate(workload))
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"--out {options.out}: {error.strerror}") from None
    print(f"{options.out}: {written} requests", file=sys.stderr)
    return 0
