"""Which capture sizes, split thresholds and waiting lanes suit a trace, with waiting and padding before and after.

The engine's current settings are simulated, then other waiting lanes side by side, then the best of them with the
capture sizes that pad the trace's batches least. Times rest on the step times given: measure them first.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from vllm_ascend_split_batch.command_group import CommandError, positive
from vllm_ascend_split_batch.planning.commands.engine_options import add_engine_arguments, setup_of
from vllm_ascend_split_batch.planning.commands.trace_options import add_trace_arguments, trace_of
from vllm_ascend_split_batch.planning.extra import INSTALL_EXTRA

HELP = "capture sizes, split thresholds and waiting lanes for a trace"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``advise``."""
    add_trace_arguments(parser)
    add_engine_arguments(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("planner-advice"),
        metavar="DIR",
        help="a new folder for plots and advice.json; default %(default)s",
    )
    parser.add_argument("--no-plots", action="store_true", help="do without matplotlib")
    parser.add_argument("--json", action="store_true", help="print the JSON document instead of the table")
    parser.add_argument("--max-graphs", type=positive, metavar="N", help="most capture sizes; default: as now")
    parser.add_argument(
        "--longest-wait-factor",
        type=float,
        default=2.0,
        metavar="F",
        help="nobody may wait longer than F times the longest wait now; default 2",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=positive, metavar="N", help="processes; default: as many as cores")
    where.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="spread simulations over a Ray cluster (default: the one this machine belongs to; local: start one here)",
    )


def run(options: argparse.Namespace) -> int:
    """Advise, write the plots and print; exit status 0."""
    from vllm_ascend_split_batch.planning.advice import Limits, advise, plots, report
    from vllm_ascend_split_batch.planning.progress import progress_bar
    from vllm_ascend_split_batch.planning.sweep import Sweep, SweepError, over_processes, over_ray

    if not options.no_plots:
        _needs_matplotlib()
    if options.longest_wait_factor < 1:
        raise CommandError(f"--longest-wait-factor {options.longest_wait_factor:g}: at least 1 is needed")
    _new_folder(options.out)
    trace = trace_of(options)
    setup = setup_of(options, trace.requests)
    spread: AbstractContextManager[Sweep] = (
        over_ray(trace.requests, options.ray) if options.ray else over_processes(trace.requests, options.workers)
    )
    limits = Limits(options.max_graphs, options.longest_wait_factor)
    try:
        with progress_bar(0, "advise", "simulations", quiet=options.json) as bar, spread as sweep:
            advice = advise(trace.requests, setup, sweep, limits=limits, progress=bar.advance)
    except (ValueError, SweepError) as error:
        raise CommandError(str(error), 1) from None
    document = json.dumps(report.document(advice), indent=1) + "\n"
    try:
        (options.out / "advice.json").write_text(document, "utf-8")
        written = [] if options.no_plots else plots.write_plots(advice, options.out)
    except OSError as error:
        raise CommandError(f"--out {options.out}: {error.strerror}") from None
    print(document if options.json else report.text(advice), end="" if options.json else "\n")
    print(f"written: {', '.join(str(path) for path in (options.out / 'advice.json', *written))}", file=sys.stderr)
    return 0


def _new_folder(out: Path) -> None:
    """Refused before anything is simulated; an empty one may be left behind."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise CommandError(f"--out {out}: is there already and not empty; name a new folder")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out {out}: {error.strerror}") from None


def _needs_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise CommandError(f"plots need matplotlib: {INSTALL_EXTRA}; or give --no-plots") from None
