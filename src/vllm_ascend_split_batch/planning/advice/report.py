"""Advice as text and as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from shlex import join
from typing import Any

from vllm_ascend_split_batch.host_model.admission import Policy
from vllm_ascend_split_batch.planning.advice.advise import Advice
from vllm_ascend_split_batch.planning.advice.graphs import WorstPadding
from vllm_ascend_split_batch.planning.advice.serve_arguments import lane_settings, serve_arguments
from vllm_ascend_split_batch.planning.summary import Summary, mean, percentile

SCHEMA = "vllm-ascend-split-batch.advice/1"

#: Rows of the table: name, figure, how it is printed.
_ROWS: tuple[tuple[str, Callable[[Summary], float], str], ...] = (
    ("requests answered", lambda one: one.finished, ",.0f"),
    ("waiting, mean (s)", lambda one: mean(one.waits), ",.3f"),
    ("waiting, median (s)", lambda one: percentile(one.waits, 0.5), ",.3f"),
    ("waiting, p95 (s)", lambda one: percentile(one.waits, 0.95), ",.3f"),
    ("waiting, longest (s)", lambda one: percentile(one.waits, 1), ",.3f"),
    ("first token, mean (s)", lambda one: mean(one.first_tokens), ",.3f"),
    ("first token, p95 (s)", lambda one: percentile(one.first_tokens, 0.95), ",.3f"),
    ("completion, mean (s)", lambda one: mean(one.latencies), ",.3f"),
    ("preemptions", lambda one: one.preemptions, ",.0f"),
    ("decode steps", lambda one: one.totals.num_decode_steps, ",.0f"),
    ("  without a graph", lambda one: one.totals.decode_steps_without_graph, ",.0f"),
    ("  padding rows", lambda one: one.totals.decode_padding, ",.0f"),
    ("  padding, of all rows (%)", lambda one: 100 * _share(one), ",.2f"),
    ("busy (s)", lambda one: one.totals.seconds, ",.1f"),
)


def text(advice: Advice) -> str:
    """What to set, the table of before and after, and what runs without a graph."""
    before, after = _summaries(advice)
    engine = advice.after.setup.engine
    lines = [
        *([f"the trace is too small for advice: {advice.too_small}", ""] if advice.too_small else []),
        "found in this trace, too small to rely on" if advice.too_small else "set",
        f"  policy                  {Policy(engine.policy).value}",
    ]
    if engine.policy is Policy.SHORT_REQUEST_FIRST:
        lanes = engine.short_request_first
        ageing = f"{lanes.long_max_wait_ms:g} ms" if lanes.long_max_wait_ms else "0 (no ageing)"
        lines += [f"  short threshold         {lanes.threshold} tokens", f"  long_max_wait_ms        {ageing}"]
    lines += [
        f"    because               {advice.lanes.why}",
        *_sizes(advice),
        *_split(advice),
        "",
        "serve so, beside your other arguments",
        "  vllm serve MODEL \\",
        *_continued([join(option) for option in serve_arguments(advice.after.setup)]),
        "",
        f"{'':<28}{'before':>14}{'after':>14}",
    ]
    lines += [f"{name:<28}{figure(before):>14{form}}{figure(after):>14{form}}" for name, figure, form in _ROWS]
    lines += ["", *(f"note: {sentence}" for sentence in advice.without_graph)]
    return "\n".join(lines)


def document(advice: Advice) -> dict[str, Any]:
    """The same as one JSON document."""
    before, after = _summaries(advice)
    engine = advice.after.setup.engine
    split = advice.split
    return {
        "schema": SCHEMA,
        "trace_too_small": advice.too_small or None,
        "set": {
            "policy": Policy(engine.policy).value,
            "additional_config": lane_settings(engine),
            "cudagraph_capture_sizes": list(advice.ladder_after),
            "keep_capture_sizes": advice.graphs.keep,
            "serve_arguments": [word for option in serve_arguments(advice.after.setup) for word in option],
            "split": None
            if split is None
            else {
                "padding_saved_threshold": split.padding_saved_threshold,
                "min_batch_size_for_split": split.min_batch_size_for_split,
                "steps": split.steps,
                "rows_saved": split.rows_saved,
                "seconds_saved": round(split.seconds_saved, 6),
            },
        },
        "why": advice.lanes.why,
        "why_capture_sizes": advice.graphs.why,
        "worst_padding": None if advice.worst is None else asdict(advice.worst),
        "padding_grown_most": None if advice.grown is None else asdict(advice.grown),
        "capture_sizes_before": list(advice.ladder_before),
        "before": _figures(before),
        "after": _figures(after),
        "tried": [
            {"name": one.name, **({"error": one.error} if one.summary is None else _figures(one.summary))}
            for one in advice.tried
        ],
        "without_graph": list(advice.without_graph),
    }


def _figures(summary: Summary) -> dict[str, float]:
    return {name.strip(): round(float(figure(summary)), 6) for name, figure, _ in _ROWS}


def _summaries(advice: Advice) -> tuple[Summary, Summary]:
    before, after = advice.before.summary, advice.after.summary
    assert before is not None  # advice is made of simulations that came to their end
    assert after is not None
    return before, after


def _sizes(advice: Advice) -> list[str]:
    now = f"{len(advice.ladder_before)} sizes, {_ends(advice.ladder_before)}"
    if advice.graphs.keep:
        whose = "the host's" if advice.after.setup.host.capture_sizes is None else "yours"
        lines = [f"  capture sizes           keep {whose}: {now}"]
    else:
        lines = [
            *_wrapped("  capture sizes           ", [str(size) for size in advice.ladder_after]),
            f"    instead of            {now}",
        ]
    lines.append(f"    because               {advice.graphs.why}")
    if advice.worst is not None:
        lines.append(f"  worst padding           {_padded(advice.worst)}")
    if advice.grown is not None:
        lines.append(f"    grows most            {_padded(advice.grown)}")
    return lines


def _padded(worst: WorstPadding) -> str:
    now = "without a graph" if worst.rows_now is None else f"by {worst.rows_now}"
    requests, rows = ("" if count == 1 else "s" for count in (worst.batch, worst.rows))
    return f"a batch of {worst.batch} request{requests} by {worst.rows} row{rows}; now {now}"


def _continued(options: Sequence[str]) -> list[str]:
    return [f"    {option} \\" for option in options[:-1]] + [f"    {options[-1]}"]


def _split(advice: Advice) -> list[str]:
    split = advice.split
    if split is None:
        return ["  split                   no: there are no graphs, or a row costs nothing"]
    if split.min_batch_size_for_split is None:
        return [f"  split                   never pays: no split saves more than {split.padding_saved_threshold} rows"]
    return [
        f"  min batch for split     {split.min_batch_size_for_split}",
        f"  padding saved threshold {split.padding_saved_threshold} rows",
        f"    would save            {split.rows_saved:,} rows, {split.seconds_saved:.2f} s in {split.steps:,} steps",
        "    but                   no executor replays splits yet: the planner component is not active",
    ]


def _share(summary: Summary) -> float:
    totals = summary.totals
    return totals.decode_padding / totals.decode_rows if totals.decode_rows else 0.0


def _ends(ladder: Sequence[int]) -> str:
    return f"{ladder[0]} to {ladder[-1]}" if ladder else "none"


def _wrapped(head: str, words: Sequence[str], width: int = 100) -> list[str]:
    lines, line = [], head
    for number, word in enumerate(words):
        piece = word + ("," if number < len(words) - 1 else "")
        if len(line) + len(piece) > width:
            lines.append(line)
            line = " " * len(head)
        line += piece
    return [*lines, line if words else head + "none"]
