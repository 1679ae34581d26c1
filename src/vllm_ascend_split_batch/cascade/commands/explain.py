"""Show whether a decode step would run in two stages, and the terms that the prediction is made of."""

from __future__ import annotations

import argparse
import json
from typing import Any

from vllm_ascend_split_batch.cascade.commands.model_config import read_shape
from vllm_ascend_split_batch.cascade.commands.settings import MIN_PREFIX, MIN_REQUESTS, setting
from vllm_ascend_split_batch.cascade.cost_model import AttentionShape, CostModel
from vllm_ascend_split_batch.cascade.decision import Decision, Facts, Reason, switched_on_from
from vllm_ascend_split_batch.cascade.prediction import Profiles
from vllm_ascend_split_batch.cascade.profiles import (
    TIERS,
    Key,
    Profile,
    ProfileError,
    device_key,
    missing_reason,
    shipped,
)
from vllm_ascend_split_batch.command_group import CommandError, positive

HELP = "whether a step would run in two stages, and why"

_PROFILE = "VLLM_ASCEND_CASCADE_PROFILE"
_LABELS = {
    "launches": "launches",
    "requests": "work per request",
    "read": "keys and values, read once",
    "reuse": "shared blocks, read again",
    "prefix_rows": "prefix stage, all rows",
    "merge": "merge",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``explain``."""
    parser.add_argument("--batch", type=positive, required=True, metavar="N", help="requests that share the prefix")
    parser.add_argument("--prefix", type=positive, required=True, metavar="N", help="shared tokens")
    parser.add_argument("--suffix", type=positive, default=256, metavar="N", help="further tokens of each request; 256")
    parser.add_argument("--model", required=True, metavar="DIR", help="the model's folder (its config.json is read)")
    parser.add_argument(
        "--tensor-parallel", type=positive, default=1, metavar="N", help="ranks that share the heads; 1"
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        help="profiles of your own, before the shipped ones; default: what VLLM_ASCEND_CASCADE_PROFILE says",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="the device, as in a profile; default: the device of this machine"
    )
    parser.add_argument("--tier", choices=TIERS, default="wheel", help="kernels; default wheel")
    parser.add_argument("--graph", action="store_true", help="in a captured graph instead of operator by operator")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Print the decision; exit status 0 whatever it is."""
    shape = read_shape(options.model, tensor_parallel=options.tensor_parallel)
    choice = options.profile or str(setting(_PROFILE))
    try:
        profiles = Profiles(choice)
    except ProfileError as error:
        raise CommandError(f"{'--profile' if options.profile else _PROFILE}: {error}") from None
    key = Key(options.device or _this_device(profiles), options.tier, "graph" if options.graph else "eager")
    group = profiles.group(key, shape)
    profile = group.profile
    facts = Facts(options.batch, options.prefix, options.batch * options.suffix, shape)
    decision = group.decide(options.batch, options.prefix, options.batch * (options.prefix + options.suffix - 1))
    floors = _floors(options.batch, options.prefix)
    if options.json:
        print(json.dumps(_document(facts, key, profile, decision, floors), indent=2))
    else:
        print(_text(facts, key, profile, decision, floors))
    return 0


def _this_device(profiles: Profiles) -> str:
    """The only device that the user's profiles are for; without such, the device of this machine."""
    devices = {profile.key.device for profile in profiles.own}
    if len(devices) == 1:
        return devices.pop()
    try:
        import torch  # noqa: F401 - torch_npu registers itself with it
        import torch_npu

        return device_key(torch_npu)
    except Exception:
        known = ", ".join(sorted({profile.key.device for profile in (*profiles.own, *shipped())}))
        raise CommandError(f"no NPU is found in this environment; name one with --device (profiles: {known})") from None


def _floors(requests: int, prefix: int) -> list[tuple[str, int, int, bool]]:
    """Name, value, the step's figure and whether it is met, of both hard floors as this environment sets them."""
    values = [(name, int(setting(name))) for name in (MIN_PREFIX, MIN_REQUESTS)]
    return [(name, value, is_, is_ >= value) for (name, value), is_ in zip(values, (prefix, requests), strict=True)]


def _why(key: Key, profile: Profile | None, decision: Decision, facts: Facts) -> str:
    if decision.reason is Reason.FLOORS_ONLY:
        return "nothing is predicted, as VLLM_ASCEND_CASCADE_PROFILE=floors asks: the floors alone decide"
    if profile is None:
        known = sorted({one.key.device for one in shipped()})
        others = "" if key.device in known else f" (profiles are shipped for {', '.join(known)})"
        return missing_reason(key) + others
    if decision.reason is Reason.LOST_WHEN_MEASURED:
        return str(profile.lost)
    saved = f"{abs(decision.saved):.1%} of the host's attention time"
    if decision.reason is Reason.OUTSIDE_PROFILE and profile.coverage is not None:
        coverage = profile.coverage
        return (
            f"{facts.requests} requests or {facts.prefix_tokens} shared tokens are fewer than were ever measured "
            f"({coverage.requests.low} requests, {coverage.prefix_tokens.low} tokens)"
        )
    saved += _measured_most(facts, profile)
    if decision.use:
        return f"two stages are predicted to save {saved}; {profile.margin:.0%} is needed"
    if decision.saved <= 0:
        return f"two stages are predicted to take {-decision.saved:.1%} more attention time than the host's own"
    return f"two stages are predicted to save {saved}, less than the margin of {profile.margin:.0%}"


def _measured_most(facts: Facts, profile: Profile) -> str:
    """Words for a step larger than what was measured: the table's figures are the step's, the decision's are not."""
    coverage = profile.coverage
    if coverage is None or (
        facts.requests <= coverage.requests.high and facts.prefix_tokens <= coverage.prefix_tokens.high
    ):
        return ""
    return (
        f" in the largest step that was measured ({coverage.requests.high} requests, "
        f"{coverage.prefix_tokens.high} tokens), beyond which nothing better is relied on"
    )


def _document(
    facts: Facts, key: Key, profile: Profile | None, decision: Decision, floors: list[tuple[str, int, int, bool]]
) -> dict[str, Any]:
    shape = facts.shape
    document: dict[str, Any] = {
        "use": decision.use and all(met for *_, met in floors),
        "reason": decision.reason.value,
        "why": _why(key, profile, decision, facts),
        "step": {
            "requests": facts.requests,
            "prefix_tokens": facts.prefix_tokens,
            "suffix_tokens": facts.suffix_tokens,
            "layers": shape.layers,
            "query_heads": shape.query_heads,
            "kv_heads": shape.kv_heads,
            "head_size": shape.head_size,
            "element_bytes": shape.element_bytes,
        },
        "floors": [{"name": name, "value": value, "is": is_, "met": met} for name, value, is_, met in floors],
        "profile": {"device": key.device, "tier": key.tier, "mode": key.mode, "origin": None, "sources": []},
        "prediction": None,
    }
    if profile is not None:
        document["profile"] |= {"origin": profile.origin, "sources": list(profile.sources)}
    if profile is not None and profile.coefficients is not None:
        model = CostModel(profile.coefficients, shape)
        batch = (facts.requests, facts.prefix_tokens, facts.suffix_tokens)
        document["prediction"] = {
            "stock_us": model.stock_us(*batch),
            "cascade_us": model.cascade_us(*batch),
            "cascade_step_us": profile.coefficients.cascade_step_us,
            "stock_terms_us_per_layer": dict(model.stock_terms(*batch).items()),
            "cascade_terms_us_per_layer": dict(model.cascade_terms(*batch).items()),
            "margin": profile.margin,
            "break_even_prefix_tokens": switched_on_from(facts.requests, facts.suffix_tokens, profile, shape),
        }
    return document


def _text(
    facts: Facts, key: Key, profile: Profile | None, decision: Decision, floors: list[tuple[str, int, int, bool]]
) -> str:
    shape = facts.shape
    lines = [
        f"step        {facts.requests} requests share {facts.prefix_tokens} tokens; {facts.suffix_tokens} more in all",
        f"model       {_shape_text(shape)}",
        f"profile     {key}: {'none' if profile is None else profile.origin}",
    ]
    for name, value, is_, met in floors:
        lines.append(f"floor       {name}={value}: {is_} {'meets it' if met else 'is below it, so cascade stays out'}")
    if profile is not None:
        lines += [f"source      {source}" for source in profile.sources]
    if profile is not None and profile.coefficients is not None:
        lines += ["", *_terms(CostModel(profile.coefficients, shape), facts, profile), ""]
    floors_met = all(met for *_, met in floors)
    verdict = "two stages" if decision.use and floors_met else "the host's own attention"
    why = _why(key, profile, decision, facts)
    if decision.use and not floors_met:
        why = f"a floor is not met (without the floors: {why})"
    return "\n".join([*lines, f"decision    {verdict}: {why}"])


def _shape_text(shape: AttentionShape) -> str:
    return (
        f"{shape.layers} layers, {shape.query_heads} query and {shape.kv_heads} KV heads of {shape.head_size} elements "
        f"of {shape.element_bytes} bytes"
    )


def _terms(model: CostModel, facts: Facts, profile: Profile) -> list[str]:
    batch = (facts.requests, facts.prefix_tokens, facts.suffix_tokens)
    stock, cascade = model.stock_terms(*batch), model.cascade_terms(*batch)
    rows = [f"{'us per layer':<30}{'stock':>12}{'cascade':>12}"]
    for (name, left), (_, right) in zip(stock.items(), cascade.items(), strict=True):
        rows.append(f"{_LABELS[name]:<30}{left:>12.1f}{right:>12.1f}")
    rows.append(f"{'sum':<30}{stock.total:>12.1f}{cascade.total:>12.1f}")
    step = model.coefficients.cascade_step_us
    rows.append(f"{'us once a step':<30}{0.0:>12.1f}{step:>12.1f}")
    rows.append(
        f"{'ms per step, all layers':<30}{model.stock_us(*batch) / 1e3:>12.3f}{model.cascade_us(*batch) / 1e3:>12.3f}"
    )
    tokens = switched_on_from(facts.requests, facts.suffix_tokens, profile, facts.shape)
    rows.append(
        f"break-even at {facts.requests} requests: "
        + ("none" if tokens is None else f"{tokens} shared tokens")
        + f", margin of {profile.margin:.0%} included, nothing below what was measured"
    )
    return rows
