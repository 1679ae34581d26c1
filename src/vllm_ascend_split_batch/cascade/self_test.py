"""The start-up self-test: every call form of a tier against the definition of attention, on the device, once.

A fused attention that returns its LSE to another base, that ignores lengths and answers with the plain average of all
values, or a merge that takes another layout, gives plausible text. Each of these has been seen on some stack. So before
a tier serves its first step, three small requests are computed with it and compared with attention in float64 on the
CPU; what differs is named. It costs a few milliseconds and a handful of copies to the host, once an engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .step_plan import StepPlan
from .tiers import FusedTier, OwnTier
from .two_stage import Heads, prefix_fp32, prefix_stage, suffix_stage

#: Accepted difference from float64, as a share of the largest value, by element type: a few roundings of the type.
TOLERANCE = {"torch.float32": 1e-4, "torch.float16": 4e-3, "torch.bfloat16": 3e-2}
#: The LSE is computed in float32 from products of the type's values, which are exact in float32.
LSE_TOLERANCE = 2e-3

#: What lies in the cache where no request may look. Not NaN: hardware multiplies masked values by zero.
POISON = 300.0


@dataclass(frozen=True)
class Case:
    """Three requests: one own key, a page and a bit, exactly a page; and one padding row.

    Attributes:
        query: [4, H, D]. key_cache, value_cache: [pages, block size, K, D]. known: the same three on the host, float64.
        plan: as a step would have it. keys: per row the positions (page, slot) it attends to, prefix first.
        prefix_keys: how many of them are the prefix.
    """

    query: Any
    key_cache: Any
    value_cache: Any
    known: tuple[Any, Any, Any]
    plan: StepPlan
    keys: list[list[tuple[int, int]]]
    prefix_keys: int


@dataclass(frozen=True)
class Outcome:
    """What is wrong with a tier in words, or None; and how many copies to the host the test took."""

    problem: str | None
    host_copies: int


class _Host:
    """Brings results to the host, in float64, and counts."""

    def __init__(self) -> None:
        self.copies = 0

    def __call__(self, tensor: Any) -> Any:
        self.copies += 1
        return tensor.cpu().double()


def run(tier: FusedTier | OwnTier, device: Any, dtype: Any, heads: Heads, block_size: int) -> Outcome:
    """Run `tier` on a small case of the model's shape.

    Args:
        device: where the model runs. dtype: the model's element type. heads: a layer's shape. block_size: of a page.
    """
    host = _Host()
    problem = _problem(host, tier, device, dtype, heads, block_size)
    return Outcome(problem, host.copies)


def failure(tier: FusedTier | OwnTier, device: Any, dtype: Any, heads: Heads, block_size: int) -> str | None:
    """What is wrong with a tier, in words, or None; the arguments are those of `run`."""
    return run(tier, device, dtype, heads, block_size).problem


def _problem(
    host: _Host, tier: FusedTier | OwnTier, device: Any, dtype: Any, heads: Heads, block_size: int
) -> str | None:
    import torch

    case = make_case(torch, device, dtype, heads, block_size)
    mask = torch.triu(torch.ones(2048, 2048, device=device), diagonal=1).to(torch.int8)
    tolerance = TOLERANCE[str(dtype)]
    whole, _ = expected(torch, case, heads, 0, None)
    shape = case.query.shape
    if isinstance(tier, FusedTier):
        ops, cache = tier.ops, (case.key_cache, case.value_cache)
        if tier.fp32_prefix:
            out, lse = prefix_fp32(ops, case.query, *cache, case.plan)
            lse = lse.view(case.plan.rows, heads.query, -1)[..., :1]
        else:
            out, lse = prefix_stage(ops, case.query, *cache, case.plan, heads)
        shared = (0, case.prefix_keys)
        if found := _compare_stage(torch, host, "the prefix stage", case, heads, shared, out, lse, tolerance):
            return found
        out, lse = suffix_stage(ops, case.query, *cache, case.plan, heads, mask)
        own = (case.prefix_keys, None)
        if found := _compare_stage(torch, host, "the suffix stage", case, heads, own, out, lse, tolerance):
            return found
    merged = tier.attend(case.query, case.key_cache, case.value_cache, case.plan, heads, mask)
    off = _largest_difference(host(merged).view(shape), whole, case.plan.requests)
    if off > tolerance:
        return f"the merged result is off by {off:.2g} of the largest value, accepted are {tolerance:g}"
    return None


def make_case(torch: Any, device: Any, dtype: Any, heads: Heads, block_size: int) -> Case:
    """The case, the same in every process."""
    generator = torch.Generator().manual_seed(20)
    rows, requests = 4, 3
    own = [1, block_size + 3, block_size]
    pages = 7
    size = (pages, block_size, heads.kv, heads.size)
    # Logits spread over about +-4, so that no row's result lies near the plain average of its values.
    spread = 4.0 / (heads.scale * math.sqrt(heads.size))
    query = torch.randn((rows, heads.query, heads.size), generator=generator) * spread
    keys, values = (torch.randn(size, generator=generator) for _ in range(2))
    table = torch.tensor([[5, 2, 0], [5, 6, 1], [5, 4, 0], [0, 0, 0]], dtype=torch.int32)
    visible: list[list[tuple[int, int]]] = []
    used = torch.zeros(pages, block_size, dtype=torch.bool)
    for row in range(rows):
        count = (block_size if row < requests else 0) + (own[row] if row < requests else 1)
        places = [(int(table[row, at // block_size]), at % block_size) for at in range(count)]
        visible.append(places)
        for page, slot in places:
            used[page, slot] = True
    keys[~used] = POISON
    values[~used] = POISON
    lengths = [block_size + count for count in own] + [0]
    plan = StepPlan(
        rows=rows,
        requests=requests,
        prefix_tokens=block_size,
        block_size=block_size,
        block_table=table.to(device),
        device_lengths=torch.tensor(lengths, dtype=torch.int32).to(device),
        suffix_lengths=[*own, 1],
        query_ends=list(range(1, rows + 1)),
    )
    rounded = [tensor.to(dtype) for tensor in (query, keys, values)]
    on_device = [tensor.to(device) for tensor in rounded]
    known = (rounded[0].double(), rounded[1].double(), rounded[2].double())
    return Case(on_device[0], on_device[1], on_device[2], known, plan, visible, block_size)


def expected(torch: Any, case: Case, heads: Heads, first: int, last: int | None) -> tuple[Any, Any]:
    """Attention of the real rows over their keys first..last, by definition in float64: out [3, H, D], lse [3, H]."""
    group = heads.query // heads.kv
    query, keys, values = case.known
    outs, lses = [], []
    for row in range(case.plan.requests):
        places = case.keys[row][first:last]
        index = tuple(torch.tensor(part) for part in zip(*places, strict=True))
        k = keys[index].repeat_interleave(group, dim=1)
        v = values[index].repeat_interleave(group, dim=1)
        logits = torch.einsum("hd,nhd->hn", query[row], k) * heads.scale
        outs.append(torch.einsum("hn,nhd->hd", logits.softmax(-1), v))
        lses.append(logits.logsumexp(-1))
    return torch.stack(outs), torch.stack(lses)


def _compare_stage(
    torch: Any,
    host: _Host,
    what: str,
    case: Case,
    heads: Heads,
    part: tuple[int, int | None],
    out: Any,
    lse: Any,
    tolerance: float,
) -> str | None:
    wanted_out, wanted_lse = expected(torch, case, heads, *part)
    rows = case.plan.requests
    outs = host(out).view(case.query.shape)
    off = _largest_difference(outs, wanted_out, rows)
    if off > tolerance:
        average = _average(torch, case, heads, part)
        if _largest_difference(outs, average, rows) <= tolerance:
            return f"{what} returns the plain average of the values: queries and keys do not count"
        return f"{what} is off by {off:.2g} of the largest value, accepted are {tolerance:g}"
    found = host(lse).reshape(case.plan.rows, heads.query)[:rows]
    if (found - wanted_lse).abs().max() <= LSE_TOLERANCE * max(1.0, float(wanted_lse.abs().max())):
        return None
    if (found - wanted_lse / math.log(2)).abs().max() <= 2 * LSE_TOLERANCE * max(1.0, float(wanted_lse.abs().max())):
        return f"{what} returns its LSE to base 2, the merge takes natural logarithms"
    return f"{what} returns an LSE that is off by {float((found - wanted_lse).abs().max()):.2g}"


def _average(torch: Any, case: Case, heads: Heads, part: tuple[int, int | None]) -> Any:
    values = case.known[2].repeat_interleave(heads.query // heads.kv, dim=2)
    rows = []
    for row in range(case.plan.requests):
        index = tuple(torch.tensor(axis) for axis in zip(*case.keys[row][slice(*part)], strict=True))
        rows.append(values[index].mean(0))
    return torch.stack(rows)


def _largest_difference(found: Any, wanted: Any, rows: int) -> float:
    return float((found[:rows] - wanted).abs().max() / wanted.abs().max())
