"""The cheapest graphs for one uniform decode batch.

Without a measured cost, padding rows alone are minimised, with at most two slices unless --max-slices says otherwise.
"""

from __future__ import annotations

import argparse
import json

from vllm_ascend_split_batch.command_group import CommandError, positive, sizes
from vllm_ascend_split_batch.planning.cost import ROWS_ONLY, GraphCost
from vllm_ascend_split_batch.planning.reasons import Reason
from vllm_ascend_split_batch.planning.split import SplitDecision, SplitPlan, plan_split

HELP = "the cheapest graphs for one batch"
_UNMEASURED_SLICES = 2

_WHY = {
    Reason.SPLIT: "several graphs cost less than one, or no single graph holds the batch",
    Reason.EXACT_GRAPH_HIT: "a captured graph fits exactly",
    Reason.SINGLE_GRAPH_CHEAPEST: "no split costs less than the padded graph",
    Reason.NO_CAPTURE_SIZES: "no capture size holds one request",
    Reason.EXCEEDS_MAX_SIZE: "the allowed slices hold fewer requests than the batch has",
}


def add_arguments(plan: argparse.ArgumentParser) -> None:
    """Declare the options of ``plan``."""
    plan.add_argument("--batch", type=positive, required=True, metavar="N", help="requests in the batch")
    plan.add_argument(
        "--capture-sizes", type=sizes, required=True, metavar="N,N,...", help="the host's capture sizes, in tokens"
    )
    plan.add_argument(
        "--parallel-capture-sizes",
        type=sizes,
        metavar="N,N,...",
        help="capture sizes of every slice but the first; default: the same; an empty string: there are none",
    )
    plan.add_argument(
        "--tokens-per-request", type=positive, default=1, metavar="K", help="1 + speculative tokens; default 1"
    )
    plan.add_argument("--max-slices", type=positive, metavar="N", help="most graphs that a batch may be cut into")
    plan.add_argument("--launch-us", type=float, metavar="US", help="measured microseconds of one more graph replay")
    plan.add_argument("--row-us", type=float, metavar="US", help="measured microseconds of one more row in a replay")
    plan.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Plan and print; the exit status is 0 with a plan, 1 where the batch has none."""
    if (options.launch_us is None) != (options.row_us is None):
        raise CommandError("give --launch-us and --row-us together: a time needs both")
    measured = options.launch_us is not None
    try:
        decision = plan_split(
            num_requests=options.batch,
            main_capture_sizes=options.capture_sizes,
            parallel_capture_sizes=options.parallel_capture_sizes,
            tokens_per_request=options.tokens_per_request,
            cost=GraphCost(options.launch_us, options.row_us) if measured else ROWS_ONLY,
            max_slices=options.max_slices or (None if measured else _UNMEASURED_SLICES),
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    if options.json:
        print(json.dumps(_document(decision, measured), indent=2))
    else:
        print(_text(decision, options.batch, options.tokens_per_request, measured))
    return 0 if decision.plan else 1


def _document(decision: SplitDecision, measured: bool) -> dict[str, object]:
    plan = decision.plan
    document: dict[str, object] = {"reason": decision.reason.value, "plan": None}
    if plan is not None:
        document["plan"] = {
            "requests": plan.num_requests,
            "tokens_per_request": plan.tokens_per_request,
            "slices": [
                {
                    "requests": [piece.request_start, piece.request_stop],
                    "tokens": [piece.token_start, piece.token_stop],
                    "capture_size": piece.padded_tokens,
                }
                for piece in plan.slices
            ],
            "rows": plan.rows,
            "padding_rows": plan.padding_rows,
            "unsplit_rows": plan.unsplit_rows,
            "padding_rows_saved": plan.rows_saved,
            "expected_us": plan.expected_us if measured else None,
            "unsplit_us": plan.unsplit_us if measured else None,
        }
    return document


def _text(decision: SplitDecision, batch: int, tokens_per_request: int, measured: bool) -> str:
    plan = decision.plan
    lines = [
        f"batch          {batch} requests x {tokens_per_request} tokens",
        f"reason         {decision.reason}: {_WHY[decision.reason]}",
    ]
    if plan is None:
        return "\n".join([*lines, "plan           none: the batch runs without a graph"])
    for number, piece in enumerate(plan.slices):
        lines.append(
            f"{'plan' if number == 0 else '':<15}requests {piece.request_start} to {piece.request_stop - 1}: "
            f"{piece.token_stop - piece.token_start} tokens in the graph of {piece.padded_tokens}"
        )
    return "\n".join([*lines, *_rows(plan), *_time(plan, measured)])


def _rows(plan: SplitPlan) -> list[str]:
    if plan.unsplit_rows is None:
        return [f"padding rows   {plan.padding_rows}; unsplit no graph holds the batch and it runs without one"]
    return [
        f"padding rows   {plan.padding_rows}, unsplit {plan.unsplit_rows - plan.total_tokens}; saved {plan.rows_saved}"
    ]


def _time(plan: SplitPlan, measured: bool) -> list[str]:
    if not measured:
        return ["expected time  not known: measure your device and give --launch-us and --row-us"]
    unsplit = "without a graph: not known" if plan.unsplit_us is None else f"unsplit {plan.unsplit_us:g} us"
    return [f"expected time  {plan.expected_us:g} us, {unsplit}"]
