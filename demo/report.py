"""What the demo prints and what it keeps as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import traffic
from .client import Answer, median_times
from .compare import NEAR_TIE, Difference, differences

if TYPE_CHECKING:
    from .run import ArmResult

SHOWN_ANSWERS = 2


def traffic_table(stock: ArmResult, cascade: ArmResult, requests: int, layers: int, shared: int) -> dict[str, Any]:
    """KV bytes per full decode step: stock, cascade's two-stage steps, and the ideal. None where no such step was."""
    measured = traffic.traffic(stock.calls, requests, layers)
    two_stage = traffic.traffic(cascade.calls, requests, layers, two_stage=True)
    ideal = traffic.ideal_bytes(stock.calls, requests, layers, shared)
    return {
        "stock": asdict(measured) if measured else None,
        "cascade": asdict(two_stage) if two_stage else None,
        "ideal_bytes_per_step": ideal,
    }


def show(found: dict[str, Any]) -> None:
    """Print the report, at most 80 columns wide but for log lines and answers."""
    stock: ArmResult = found["stock"]
    prompt = found["prompt_tokens"]
    print("\n" + "=" * 78)
    print(f"{found['settings']['model']}, {len(prompt)} requests, {min(prompt)} to {max(prompt)} prompt tokens each,")
    print(f"of which {found['shared_tokens']} in whole pages are shared; bfloat16, eager, emulated NPU")
    for arm in [stock, *found["arms"]]:
        show_arm(arm)
    show_traffic(found["traffic"])
    print("\nTokens, against stock")
    show_differences("stock in another order", stock.answers, stock.reordered)
    for arm in found["arms"]:
        show_differences(arm.name, stock.answers, arm.answers)
    print("\nAll of this ran on an emulated NPU: it shows what is computed, how often and")
    print("from where, not how fast an Ascend device does it. Times are of this machine's")
    print("processor, and of whatever else ran on it.")


def show_arm(arm: ArmResult) -> None:
    print(f"\n{arm.name}")
    print(f"  {arm.marker}")
    for answer in arm.answers[:SHOWN_ANSWERS]:
        print(f"  > {' '.join(answer.text.split())}")
    first, per_token = median_times(arm.answers)
    prompt, generated = (sum(a.prompt_tokens for a in arm.answers), sum(len(a.tokens) for a in arm.answers))
    print(f"  tokens: {prompt} prompt, {generated} generated")
    per_token_text = f", {per_token * 1e3:.0f} ms per output token" if per_token is not None else ""
    print(f"  median: {first:.2f} s to the first token{per_token_text}")
    if arm.carrier is None:
        return
    carrier = arm.carrier
    print(f"  steps that ran two-stage: {carrier['engaged']} of {carrier['calls']} ({carrier['state']})")
    for reason, count in sorted(carrier["reasons"].items(), key=lambda item: -item[1]):
        print(f"    not: {reason} {count}")
    if carrier["state_reason"]:
        print(f"    {carrier['state_reason']}")
    if carrier["failures"]:
        print(f"    fell back: {carrier['failures']}")


def show_traffic(table: dict[str, Any]) -> None:
    print("\nKV bytes read per decode step that all requests take part in (all layers)")
    ideal = table["ideal_bytes_per_step"]
    for name in ("stock", "cascade"):
        row = table[name]
        if row is None:
            print(f"  {name:8} no full decode step ran this way")
        else:
            ratio = f", {row['bytes_per_step'] / ideal:5.2f} times the ideal" if ideal else ""
            print(f"  {name:8} {row['bytes_per_step'] / 1e6:8.1f} MB over {row['steps']:.0f} steps{ratio}")
    if ideal:
        print(f"  {'ideal':8} {ideal / 1e6:8.1f} MB (the shared pages once, and every request's own keys)")


def show_differences(name: str, reference: list[Answer], other: list[Answer]) -> None:
    found = differences(reference, other)
    print(f"  {name}: {len(reference) - len(found)} of {len(reference)} answers identical")
    for difference in found:
        print(f"    first difference in {difference}{'' if difference.near_tie else '  <- no near tie'}")
    if found:
        print(f"    (a near tie: at most {NEAR_TIE} apart in stock's own logprobs; bfloat16 rounds a sum")
        print("    of two parts differently. Identity of tokens is tested in float32.)")


def as_json(found: dict[str, Any], faults: list[str]) -> dict[str, Any]:
    """The raw figures of a run."""
    stock: ArmResult = found["stock"]

    def difference(item: Difference) -> dict[str, Any]:
        return asdict(item) | {"near_tie": item.near_tie}

    def arm(result: ArmResult) -> dict[str, Any]:
        first, per_token = median_times(result.answers)
        return {
            "name": result.name,
            "marker": result.marker,
            "carrier": result.carrier,
            "seconds_to_health": round(result.seconds_to_health, 1),
            "seconds_of_requests": round(result.seconds_of_requests, 1),
            "median_seconds_to_first_token": first,
            "median_seconds_per_output_token": per_token,
            "generated_tokens": sum(len(answer.tokens) for answer in result.answers),
            "texts": [answer.text for answer in result.answers],
            "tokens": [answer.tokens for answer in result.answers],
            "differences_to_stock": [difference(item) for item in differences(stock.answers, result.answers)],
        }

    return {
        "settings": found["settings"],
        "layers": found["layers"],
        "shared_tokens": found["shared_tokens"],
        "prompt_tokens": found["prompt_tokens"],
        "traffic": found["traffic"],
        "stock_in_another_order": [difference(item) for item in differences(stock.answers, stock.reordered)],
        "arms": [arm(result) for result in [stock, *found["arms"]]],
        "faults": faults,
    }
