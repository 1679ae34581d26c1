"""Cases of two-stage attention with everything hostile that a paged cache can hold, and the float64 answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One decode step: requests, prefix keys, own keys of each request (0: a padding row), heads, sizes, page."""

    own: tuple[int, ...]
    prefix: int
    kv_heads: int
    group: int
    head_size: int
    page: int
    dtype: torch.dtype = torch.float32
    splits: int = 1
    spread: float = 1.0
    seed: int = 0

    @property
    def scale(self) -> float:
        return self.head_size**-0.5


@dataclass
class Inputs:
    """The tensors of a case; the arguments that both calls share are `common`."""

    case: Case
    query: Tensor
    key: Tensor
    value: Tensor
    table: Tensor
    lengths: Tensor
    prefix: Tensor

    @property
    def common(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value, self.table


def inputs(case: Case, *, repeat: bool = True) -> Inputs:
    """Tensors of a case.

    Block ids are permuted; with `repeat` the first page of the prefix is listed twice where it has two whole pages.
    Whatever is not a key of the step is NaN: foreign pages, slots behind a request's last key, the keys of others.
    Where the prefix ends inside a page, each request holds the beginning of that page in a page of its own. Columns
    that no request reads hold an id far outside the cache.
    """
    generator = torch.Generator().manual_seed(case.seed)
    whole, rest = divmod(case.prefix, case.page)
    requests = len(case.own)
    own_pages = max(1, -(-(rest + max(case.own)) // case.page))
    blocks = whole + requests * own_pages + 3
    order = torch.randperm(blocks, generator=generator).tolist()
    shape = (blocks, case.page, case.kv_heads, case.head_size)
    key, value = (torch.full(shape, math.nan, dtype=torch.float32) for _ in range(2))

    def fill(block: int, begin: int, end: int) -> None:
        count = (end - begin, case.kv_heads, case.head_size)
        key[block, begin:end] = torch.randn(count, generator=generator) * case.spread
        value[block, begin:end] = torch.randn(count, generator=generator)

    shared = [order.pop() for _ in range(whole)]
    if repeat and whole > 1:
        shared[1] = shared[0]
    for block in shared:
        fill(block, 0, case.page)
    table = torch.full((requests, whole + own_pages + 1), 2**30, dtype=torch.int32)
    for request, count in enumerate(case.own):
        table[request, :whole] = torch.tensor(shared, dtype=torch.int32)
        end = rest + count
        for page in range(-(-end // case.page)):
            block = order.pop()
            table[request, whole + page] = block
            fill(block, 0, min(case.page, end - page * case.page))
            if page == 0 and rest and request:
                first = int(table[0, whole])
                key[block, :rest], value[block, :rest] = key[first, :rest], value[first, :rest]
    query = torch.randn(requests, case.kv_heads * case.group, case.head_size, generator=generator) * case.spread
    return Inputs(
        case,
        query.to(case.dtype),
        key.to(case.dtype),
        value.to(case.dtype),
        table,
        torch.tensor([case.prefix + count for count in case.own], dtype=torch.int32),
        torch.tensor([case.prefix], dtype=torch.int32),
    )


def keys_of(given: Inputs, request: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Keys and values `begin` to `end` of a request, (keys, K, D), by its block table."""
    page = given.case.page
    slots = [(int(given.table[request, j // page]), j % page) for j in range(begin, end)]
    if not slots:
        empty = given.key[0, :0]
        return empty, empty
    block, slot = (torch.tensor(part) for part in zip(*slots, strict=True))
    return given.key[block, slot], given.value[block, slot]


def one_pass(given: Inputs) -> Tensor:
    """Attention of each request over all its keys at once, in float64: (B, H, D)."""
    return torch.stack([
        attention(given, request, 0, int(given.lengths[request]))[0] for request in range(given.query.shape[0])
    ])


def attention(given: Inputs, request: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """One request's row over some of its keys in float64: out (H, D), lse (H,)."""
    case = given.case
    key, value = keys_of(given, request, begin, end)
    query = given.query[request].double().view(case.kv_heads, case.group, case.head_size)
    scores = torch.einsum("kgd,jkd->kgj", query, key.double()) * case.scale
    out = torch.einsum("kgj,jkd->kgd", torch.softmax(scores, -1), value.double())
    return out.reshape(-1, case.head_size), torch.logsumexp(scores, -1).reshape(-1)


def one_pass_in_its_type(given: Inputs) -> Tensor:
    """The ordinary path as a device takes it: one pass, float32 softmax, weights and result rounded to the type."""
    case = given.case
    rows = []
    for request in range(given.query.shape[0]):
        key, value = keys_of(given, request, 0, int(given.lengths[request]))
        query = given.query[request].float().view(case.kv_heads, case.group, case.head_size)
        if not len(key):
            rows.append(torch.zeros(case.kv_heads * case.group, case.head_size))
            continue
        scores = torch.einsum("kgd,jkd->kgj", query, key.float()) * case.scale
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        out = torch.einsum("kgj,jkd->kgd", weights.to(case.dtype).float(), value.float())
        rows.append((out / weights.sum(-1, keepdim=True)).reshape(-1, case.head_size))
    return torch.stack(rows).to(case.dtype)


def error_bar(given: Inputs, expected: Tensor) -> float:
    """How far a two-stage result may be from float64: 1.5 times the error of the ordinary path, and 1e-5."""
    return 1.5 * float((one_pass_in_its_type(given).double() - expected).abs().max()) + 1e-5
