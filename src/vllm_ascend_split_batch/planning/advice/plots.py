"""The two figures of advice, PNG and SVG. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_ascend_split_batch.host_model.padding import RuntimeMode
from vllm_ascend_split_batch.planning.advice.advise import Advice
from vllm_ascend_split_batch.planning.extra import INSTALL_EXTRA
from vllm_ascend_split_batch.planning.simulation import Setup, StepGraphs
from vllm_ascend_split_batch.planning.summary import Summary, mean, percentile

_BEFORE, _AFTER, _GREY, _NO_GRAPH = "#D55E00", "#0072B2", "#666666", "#CC3311"
_STYLE = {
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "planner-advice",
    "svg.fonttype": "none",
}


#: Width and opacity: what is before stays visible beneath what is after where the two are equal.
_UNDER, _OVER = {"linewidth": 3.2, "alpha": 0.5}, {"linewidth": 1.6, "alpha": 0.95}


class PlotsUnavailable(Exception):
    """matplotlib is not installed."""


def write_plots(advice: Advice, folder: Path) -> list[Path]:
    """Write padding.png, padding.svg, waiting.png and waiting.svg; returns their paths.

    Raises:
        PlotsUnavailable: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotsUnavailable(f"plots need matplotlib: {INSTALL_EXTRA}; or give --no-plots") from None
    written = []
    with rc_context(_STYLE):
        for name, size, draw in (("padding", (11, 7.5), _padding), ("waiting", (13, 5.6), _waiting)):
            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure, advice)
            for suffix, options in (
                ("png", {"dpi": 150, "metadata": {"Software": None}}),
                ("svg", {"metadata": {"Date": None}}),
            ):
                path = folder / f"{name}.{suffix}"
                figure.savefig(path, **options)
                written.append(path)
    return written


def _padding(figure: Any, advice: Advice) -> None:
    """How often each batch size occurs, and how many rows it is padded by, before and after."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    before, after = _summary(advice.before.summary), _summary(advice.after.summary)
    steps = after.totals.decode_steps
    all_steps = max(1, after.totals.num_decode_steps)
    most = max(*before.totals.decode_steps, *steps, 1)
    batches = list(range(1, most + 1))
    upper.bar(batches, [100 * steps.get(batch, 0) / all_steps for batch in batches], width=1.0, color=_GREY)
    upper.set_ylabel("share of decode steps (%)")
    upper.set_title("How often a batch size occurs (advised settings)", fontsize=12, loc="left")
    for summary, setup, colour, line, name in (
        (before, advice.before.setup, _BEFORE, _UNDER, "before"),
        (after, advice.after.setup, _AFTER, _OVER, "after"),
    ):
        graphs = StepGraphs(setup.host)
        steps_rows = [graphs.decode(batch) for batch in batches]
        # Without a graph nothing is padded; a line at 0 would look like a graph of that size.
        rows = [
            math.nan if step.mode is RuntimeMode.NONE else step.rows - batch
            for batch, step in zip(batches, steps_rows, strict=True)
        ]
        totals = summary.totals
        share = 100 * totals.decode_padding / max(1, totals.decode_rows)
        lower.step(
            batches, rows, where="mid", color=colour, **line,
            label=f"{name}: {len(graphs.ladder)} graphs, {totals.decode_padding:,} padding rows ({share:.1f} % of all)",
        )  # fmt: skip
    _mark_without_graph(lower, advice.before.setup, most)
    lower.set_ylabel("padding rows per step")
    lower.set_xlabel("requests in the decode batch")
    lower.set_xlim(0, most + 1)
    lower.set_ylim(bottom=0)
    lower.set_title("Padding rows of a batch", fontsize=12, loc="left")
    top = lower.get_ylim()[1]
    lower.set_ylim(top=max(1.0, top) * 1.35)
    lower.legend(loc="upper left", frameon=False, fontsize=10)
    figure.suptitle("Padding of decode steps, before and after")


def _mark_without_graph(axis: Any, setup: Setup, most: int) -> None:
    graphs = StepGraphs(setup.host)
    eager = [batch for batch in range(1, most + 1) if graphs.decode(batch).mode is RuntimeMode.NONE]
    if eager:
        axis.axvspan(
            eager[0] - 0.5, eager[-1] + 0.5, color=_NO_GRAPH, alpha=0.12, linewidth=0,
            label="before: no graph, runs operator by operator",
        )  # fmt: skip


def _waiting(figure: Any, advice: Advice) -> None:
    """Waiting times of short and long prompts before and after, and all settings tried."""
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    before, after = _summary(advice.before.summary), _summary(advice.after.summary)
    boundary = _boundary(advice, before)
    longest = max(percentile(before.waits, 0.999), percentile(after.waits, 0.999), 0.01)
    for summary, colour, line, name in ((before, _BEFORE, _UNDER, "before"), (after, _AFTER, _OVER, "after")):
        for kind, style, waits in (
            (f"prompts up to {boundary} tokens", "-", summary.waits_of(at_most=boundary)),
            (f"prompts above {boundary} tokens", "--", summary.waits_of(at_least=boundary + 1)),
        ):
            if waits:
                _cumulative(left, waits, longest, color=colour, linestyle=style, label=f"{name}, {kind}", **line)
    left.set_xlabel("waiting time, arrival to admission (s)")
    left.set_ylabel("requests that waited at most so long (%)")
    left.set_ylim(0, 102)
    left.set_xlim(0, longest)
    left.legend(loc="lower right", frameon=False, fontsize=10)
    left.set_title("Waiting times (the longest 0.1 % are cut off)", fontsize=12, loc="left")
    for policy, marker in (("fcfs", "s"), ("short-request-first", "o"), ("batch-job-aware", "^")):
        points = [
            (mean(one.summary.waits), percentile(one.summary.waits, 1))
            for one in advice.tried
            if one.summary is not None and one.name.startswith(policy)
        ]
        if points:
            right.scatter(
                *zip(*points, strict=True), marker=marker, s=46, color=_GREY, alpha=0.8, label=f"tried: {policy}"
            )
    for summary, colour, name, marker in ((before, _BEFORE, "before", "D"), (after, _AFTER, "after", "*")):
        right.scatter(
            [mean(summary.waits)],
            [percentile(summary.waits, 1)],
            marker=marker,
            s=150,
            color=colour,
            label=name,
            zorder=3,
        )
    right.set_xlabel("mean waiting time (s)")
    right.set_ylabel("longest waiting time (s)")
    right.set_xlim(left=0)
    right.set_ylim(bottom=0, top=right.get_ylim()[1] * 1.25)
    right.legend(loc="upper left", frameon=False, fontsize=10, ncols=2)
    right.set_title("Settings of waiting lanes (tried with the current graphs)", fontsize=12, loc="left")
    figure.suptitle("Waiting for admission, before and after")


def _cumulative(axis: Any, waits: Sequence[float], up_to: float, **style: Any) -> None:
    ordered = sorted(waits)
    count = len(ordered)
    shares = [100 * (number + 1) / count for number in range(count)]
    axis.step([*ordered, max(ordered[-1], up_to)], [*shares, 100], where="post", **style)


def _boundary(advice: Advice, summary: Summary) -> int:
    """Prompt tokens that part short from long: the advised threshold, else the median prompt."""
    engine = advice.after.setup.engine
    if engine.policy == "short-request-first":
        return engine.short_request_first.threshold
    return int(percentile(summary.prompts, 0.5))


def _summary(summary: Summary | None) -> Summary:
    assert summary is not None  # advice is made of simulations that came to their end
    return summary
