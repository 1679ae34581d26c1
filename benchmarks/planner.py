"""The split-batch planner: regret against an exhaustive search, time of a lookup, padding rows on bursty traces.

    python benchmarks/planner.py [--out FILE.json] [--ladders N] [--steps N] [--seed N]

* Regret: for ladders of up to 64 capture sizes and every batch up to 512 requests, the cost of the table's plan minus
  the least cost of any sequence of graphs that holds the batch. The least cost comes from a uniform-cost search over
  sequences of graphs, which shares no code with the planner; on small ladders every sequence is also written out one by
  one. Costs are whole numbers, so a regret of 0 is exact.
* Lookup: one `SplitTable.decide`, and the most memory that a thousand of them allocate at any time.
* Traces: decode batch sizes of generated bursty traffic through the host's own ladders. "stock" pads as the host does,
  "dual pad" is the published planner, the others are N-way plans. The cost of a launch is an assumption, given in rows;
  it is summed over the steps that the host runs in a graph too, since nothing here says what a step without one costs.

Bars: regret 0; a lookup under 2 us without allocation. Needs neither a host nor torch.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from pathlib import Path

from vllm_ascend_split_batch.host_model.padding import GraphMode, HostRelease, HostSettings, capture_sizes
from vllm_ascend_split_batch.planner import GraphCost, SplitTable, plan_dual_pad
from vllm_ascend_split_batch.planning.cost import ROWS_ONLY

MOST_SIZES, MOST_REQUESTS = 64, 512
BAR_US = 2.0
COSTS = (GraphCost(0, 1), GraphCost(7, 1), GraphCost(100, 3))
LAUNCH_ROWS = 16
LOOKUPS, ROUNDS = 100_000, 7


@dataclass(frozen=True)
class Regret:
    """How far plans of all tried ladders are from the least cost."""

    ladders: int
    plans: int
    written_out: int
    largest: float
    seconds: float


@dataclass(frozen=True)
class Lookup:
    """One decision out of a table of 512 batch sizes."""

    us: float
    allocated_bytes: int
    build_ms: float


@dataclass(frozen=True)
class Padding:
    """A trace through one planner."""

    ladder: str
    planner: str
    steps: int
    without_graph: int
    rows: int
    padding_rows: int
    graphs: int
    compared_cost_rows: int


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--ladders", type=int, default=60, help="random ladders to try; default 60")
    parser.add_argument("--steps", type=int, default=20_000, help="decode steps of a trace; default 20000")
    parser.add_argument("--seed", type=int, default=1, help="of ladders and traces; default 1")
    arguments = parser.parse_args()
    source = random.Random(arguments.seed)

    regret = measure_regret(source, arguments.ladders)
    print(
        f"regret   {regret.largest:g} on {regret.plans} plans for {regret.ladders} ladders "
        f"({regret.written_out} of them also against every sequence written out), {regret.seconds:.1f} s"
    )
    lookup = measure_lookup()
    print(
        f"lookup   {lookup.us:.3f} us, {lookup.allocated_bytes} bytes allocated in 1000; "
        f"table built in {lookup.build_ms:.1f} ms"
    )
    paddings = list(measure_traces(source, arguments.steps))
    print_paddings(paddings)

    met = regret.largest == 0 and lookup.us < BAR_US and lookup.allocated_bytes == 0
    print(f"bars: regret 0, a lookup under {BAR_US} us without allocation: {'met' if met else 'MISSED'}")
    if arguments.out:
        document = {
            "regret": asdict(regret),
            "lookup": asdict(lookup),
            "padding": [asdict(padding) for padding in paddings],
            "launch_rows": LAUNCH_ROWS,
            "bar_us": BAR_US,
            "python": sys.version,
        }
        arguments.out.write_text(json.dumps(document, indent=1))
    return 0 if met else 1


def measure_regret(source: random.Random, random_ladders: int) -> Regret:
    """Every plan of every ladder against the search."""
    started = time.perf_counter()
    ladders = [tuple(2**power for power in range(10)), *(default_ladder(most) for most in (3, 40, 256, 512))]
    for _ in range(random_ladders):
        largest = source.choice([MOST_SIZES, 128, MOST_REQUESTS])
        ladders.append(tuple(sorted(source.sample(range(1, largest + 1), source.randint(1, MOST_SIZES)))))
    plans = written_out = 0
    worst = 0.0
    for ladder in ladders:
        for cost in COSTS:
            tokens = source.choice([1, 1, 2, 3])
            table = SplitTable(
                main_capture_sizes=ladder, cost=cost, max_requests=MOST_REQUESTS, tokens_per_request=tokens
            )
            least = searched(ladder, cost, tokens)
            for requests in range(1, MOST_REQUESTS + 1):
                worst = max(worst, regret_of(table, requests, least[requests]))
                plans += 1
    small = [ladder[:5] for ladder in ladders]
    for ladder in small:
        table = SplitTable(main_capture_sizes=ladder, cost=COSTS[1], max_requests=MOST_REQUESTS)
        for requests in range(1, 9):
            worst = max(worst, regret_of(table, requests, enumerated(ladder, COSTS[1], requests)))
            written_out += 1
    return Regret(len(ladders), plans, written_out, worst, time.perf_counter() - started)


def regret_of(table: SplitTable, requests: int, least: float | None) -> float:
    """What the table's plan costs above the least cost; infinite where only one of the two is a plan."""
    plan, _ = table.decide(requests)
    if plan is None or least is None:
        return 0.0 if plan is None and least is None else float("inf")
    return plan.expected_us - least


def searched(ladder: Sequence[int], cost: GraphCost, tokens_per_request: int) -> list[float | None]:
    """Least cost of a sequence of graphs that holds at least so many requests, by uniform-cost search."""
    graphs = [(size // tokens_per_request, cost.time_us(1, size)) for size in ladder if size >= tokens_per_request]
    most = MOST_REQUESTS + max((held for held, _ in graphs), default=0)
    reached: dict[int, float] = {}
    frontier = [(0.0, 0)]
    while frontier:
        spent, held = heapq.heappop(frontier)
        if held in reached:
            continue
        reached[held] = spent
        for more, price in graphs:
            if held < MOST_REQUESTS and held + more not in reached and held + more <= most:
                heapq.heappush(frontier, (spent + price, held + more))
    least: list[float | None] = [None] * (most + 1)
    best: float | None = None
    for held in range(most, -1, -1):
        if held in reached and (best is None or reached[held] < best):
            best = reached[held]
        least[held] = best
    return least


def enumerated(ladder: Sequence[int], cost: GraphCost, requests: int) -> float | None:
    """The same for one token per request, with every choice of graphs written out."""
    return min(
        (
            cost.time_us(len(sizes), sum(sizes))
            for graphs in range(1, requests + 1)
            for sizes in combinations_with_replacement(ladder, graphs)
            if sum(sizes) >= requests
        ),
        default=None,
    )


def default_ladder(max_num_seqs: int, *, few_graphs: bool = False) -> tuple[int, ...]:
    """The host's own ladder for an engine that takes so many requests."""
    mode = GraphMode.FULL_AND_PIECEWISE if few_graphs else GraphMode.FULL_DECODE_ONLY
    return capture_sizes(HostSettings(HostRelease.V0_27_1, mode, max_num_seqs=max_num_seqs, few_graphs=few_graphs))


def measure_lookup() -> Lookup:
    """The fastest of some rounds over many batch sizes."""
    started = time.perf_counter()
    table = SplitTable(main_capture_sizes=default_ladder(512), cost=COSTS[1], max_requests=MOST_REQUESTS)
    build_ms = (time.perf_counter() - started) * 1e3
    decide = table.decide
    batches = [1 + (37 * step) % 600 for step in range(1000)]

    def look_up() -> None:
        for batch in batches:
            decide(batch)

    def loop() -> None:
        for _ in batches:
            pass

    us = min(timeit.repeat(look_up, number=LOOKUPS // len(batches), repeat=ROUNDS)) / LOOKUPS * 1e6
    tracemalloc.start()
    # The first round fills the interpreter's own caches; reading the counters costs a few bytes by itself.
    allocated = min(peak_bytes(look_up) for _ in range(ROUNDS)) - min(peak_bytes(loop) for _ in range(ROUNDS))
    tracemalloc.stop()
    return Lookup(us, allocated, build_ms)


def peak_bytes(call: Callable[[], None]) -> int:
    """Most bytes allocated at any time of a call above those before it."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    call()
    return tracemalloc.get_traced_memory()[1] - before


def bursty_batches(source: random.Random, steps: int, most: int) -> list[int]:
    """Requests in each decode step: arrivals that come in bursts, each request staying for its output length."""
    running: list[int] = []
    waiting = 0
    burst = 0
    batches: list[int] = []
    while len(batches) < steps:
        if burst == 0 and source.random() < 0.008:
            burst = source.randint(5, 60)
        waiting += poisson(source, 2.5 if burst else 0.15)
        burst -= burst > 0
        while waiting and len(running) < most:
            waiting -= 1
            running.append(1 + int(source.expovariate(1 / 80)))
        if running:
            batches.append(len(running))
        running = [left - 1 for left in running if left > 1]
    return batches


def poisson(source: random.Random, mean: float) -> int:
    """Arrivals in one step."""
    count, left = 0, source.expovariate(mean)
    while left < 1.0:
        count += 1
        left += source.expovariate(mean)
    return count


def measure_traces(source: random.Random, steps: int) -> Iterator[Padding]:
    """One trace through every planner on three ladders."""
    most = 128
    batches = bursty_batches(source, steps, most)
    powers = tuple(2**power for power in range(7))
    ladders = {
        "host's default": default_ladder(most),
        "host's, few graphs": default_ladder(most, few_graphs=True),
        "powers of two to 64": powers,
    }
    launch = GraphCost(LAUNCH_ROWS, 1)
    for name, ladder in ladders.items():
        yield measured(name, "stock", batches, {n: stock(n, ladder) for n in set(batches)}, ladder)
        yield measured(name, "dual pad", batches, {n: dual_pad(n, ladder) for n in set(batches)}, ladder)
        for planner, cost in (("N-way, rows alone", ROWS_ONLY), (f"N-way, launch = {LAUNCH_ROWS} rows", launch)):
            table = SplitTable(main_capture_sizes=ladder, cost=cost, max_requests=most)
            yield measured(name, planner, batches, {n: n_way(n, table) for n in set(batches)}, ladder)


def stock(batch: int, ladder: Sequence[int]) -> tuple[int, ...]:
    """Capture sizes that a batch replays as the host does by itself."""
    fitting = [size for size in ladder if size >= batch]
    return (min(fitting),) if fitting else ()


def dual_pad(batch: int, ladder: Sequence[int]) -> tuple[int, ...]:
    """The same with the published planner, which leaves what it refuses to the host."""
    plan, _ = plan_dual_pad(num_requests=batch, total_tokens=batch, main_capture_sizes=ladder)
    return stock(batch, ladder) if plan is None else tuple(piece.padded_tokens for piece in plan.slices)


def n_way(batch: int, table: SplitTable) -> tuple[int, ...]:
    """The same with a table."""
    plan, _ = table.decide(batch)
    return () if plan is None else tuple(piece.padded_tokens for piece in plan.slices)


def measured(
    name: str, planner: str, batches: Sequence[int], sizes: dict[int, tuple[int, ...]], ladder: Sequence[int]
) -> Padding:
    """Totals of a trace; a step without a graph has no padding rows."""
    rows = sum(sum(sizes[batch]) or batch for batch in batches)
    return Padding(
        ladder=name,
        planner=planner,
        steps=len(batches),
        without_graph=sum(not sizes[batch] for batch in batches),
        rows=rows,
        padding_rows=rows - sum(batches),
        graphs=sum(len(sizes[batch]) for batch in batches),
        compared_cost_rows=sum(
            sum(sizes[batch]) + LAUNCH_ROWS * len(sizes[batch]) for batch in batches if batch <= ladder[-1]
        ),
    )


def print_paddings(paddings: Sequence[Padding]) -> None:
    """The table of traces."""
    print(
        f"\n{'ladder':<21}{'planner':<25}{'steps':>7}{'no graph':>10}{'padding rows':>14}{'of all':>8}"
        f"{'graphs/step':>13}{'cost, rows':>12}"
    )
    for one in paddings:
        replayed = one.steps - one.without_graph
        print(
            f"{one.ladder:<21}{one.planner:<25}{one.steps:>7}{one.without_graph:>10}{one.padding_rows:>14}"
            f"{one.padding_rows / one.rows:>8.1%}{one.graphs / max(1, replayed):>13.2f}{one.compared_cost_rows:>12}"
        )
    print(f"cost: rows, and {LAUNCH_ROWS} rows for each launch (assumed), of the steps that stock runs in a graph\n")


if __name__ == "__main__":
    sys.exit(main())
