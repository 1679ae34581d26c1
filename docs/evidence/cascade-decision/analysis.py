"""Fits of the cost model to the published measurements, and how their decisions fare on measurements they have not seen.

Standard library only. What is known of each base: seconds of both arms for one base, relative changes for all three; the
relative changes of the other two are taken on the seconds of the host's own path of the first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from vllm_ascend_split_batch.cascade.cost_model import AttentionShape, Coefficients, CostModel
from vllm_ascend_split_batch.cascade.decision import Facts, State, decide
from vllm_ascend_split_batch.cascade.fitting import Cell, non_negative_least_squares, quality
from vllm_ascend_split_batch.cascade.profiles import Coverage, Fit, Key, Profile, Range

HERE = Path(__file__).resolve().parent
BASES = ("current", "older", "dev605")
DEVICE = "Ascend910B2"
MARGIN = 0.03
CACHE_MIB = 192.0
#: What the host does once a step for cascade; not published apart, so it is in the launch times.
STEP_US = 0.0


@dataclass(frozen=True)
class Published:
    """A published end-to-end cell of one base: B, P, S of each request, seconds of the arms."""

    base: str
    family: str
    requests: int
    prefix_tokens: int
    suffix_tokens: int
    off_s: float
    on_s: float

    @property
    def change(self) -> float:
        """(on - off) / off."""
        return self.on_s / self.off_s - 1

    @property
    def batch(self) -> tuple[int, int, int]:
        """B, P and the sum of all S."""
        return self.requests, self.prefix_tokens, self.requests * self.suffix_tokens


def read() -> dict[str, Any]:
    return json.loads((HERE / "published.json").read_text())


def shape_of(published: dict[str, Any]) -> AttentionShape:
    model = published["model"]
    return AttentionShape(*(model[name] for name in ("query_heads", "kv_heads", "head_size", "element_bytes", "layers")))


def cells_of(published: dict[str, Any], families: dict[str, int] | None = None) -> dict[str, list[Published]]:
    """The end-to-end cells by base. `families` replaces the shared tokens of a family."""
    end_to_end = published["end_to_end"]
    tokens = {name: family["prefix_tokens"] for name, family in end_to_end["families"].items()} | (families or {})
    suffix = end_to_end["suffix_tokens"]
    cells: dict[str, list[Published]] = {}
    for base in BASES:
        cells[base] = [
            Published(
                base,
                cell["family"],
                cell["requests"],
                tokens[cell["family"]],
                suffix,
                cell["off_s"],
                cell["on_s"] if base == "current" else cell["off_s"] * (1 + percent / 100),
            )
            for cell, percent in zip(end_to_end["cells"], end_to_end["change_percent"][base]["values"], strict=True)
        ]
    return cells


@dataclass(frozen=True)
class StockFit:
    """The host's own path: microseconds per call and request, inverse rates in microseconds per byte, and the seconds of
    everything else in a run: `rest_s` + `rest_request_s` B."""

    launch_us: float
    request_us: float
    read: float
    reuse: float
    rest_s: float
    rest_request_s: float


def fit_stock(published: dict[str, Any], cells: list[Published], *, without_batch: int | None = None) -> StockFit:
    """Memory rate and launch times from the microbenchmark, the rate of reading again from the end-to-end seconds."""
    shape = shape_of(published)
    micro = published["microbenchmark"]
    rows, values = [], []
    for cell in micro["cells"]:
        if cell["requests"] != without_batch:
            read_bytes = cell["requests"] * (cell["prefix_tokens"] + micro["suffix_tokens"]) * shape.kv_bytes
            rows.append([1 / cell["full_us"], cell["requests"] / cell["full_us"], read_bytes / cell["full_us"]])
            values.append(1.0)
    launch, request, read = non_negative_least_squares(rows, values)
    per_layer = published["decode_steps"] * shape.layers * 1e-6
    rows, values = [], []
    for cell in cells:
        requests, prefix, suffix = cell.batch
        known = per_layer * (launch + request * requests + (prefix + suffix) * shape.kv_bytes * read)
        again = per_layer * (requests - 1) * prefix * shape.kv_bytes
        rows.append([value / cell.off_s for value in (1.0, requests, again)])
        values.append((cell.off_s - known) / cell.off_s)
    rest, rest_request, reuse = non_negative_least_squares(rows, values)
    return StockFit(launch, request, read, reuse, rest, rest_request)


def fit_cascade(published: dict[str, Any], stock: StockFit, cells: list[Published]) -> Coefficients:
    """What two stages cost beyond the bytes, from the differences of the arms: launches, requests, prefix rows."""
    shape = shape_of(published)
    per_layer = published["decode_steps"] * shape.layers * 1e-6
    rows, values = [], []
    for cell in cells:
        requests, prefix, suffix = cell.batch
        stock_us = (
            stock.launch_us
            + stock.request_us * requests
            + (prefix + suffix) * shape.kv_bytes * stock.read
            + (requests - 1) * prefix * shape.kv_bytes * stock.reuse
        )
        bytes_us = ((prefix + suffix) * shape.kv_bytes + requests * shape.merge_bytes) * stock.read
        rest_us = stock_us + (cell.on_s - cell.off_s) / per_layer - bytes_us
        weight = per_layer / cell.off_s
        rows.append([weight * value for value in (1.0, requests, requests * prefix * shape.row_flops)])
        values.append(weight * rest_us)
    launch, request, flop = non_negative_least_squares(rows, values)
    return Coefficients(
        stock_launch_us=stock.launch_us,
        stock_request_us=stock.request_us,
        cascade_launch_us=launch,
        cascade_request_us=request,
        cascade_step_us=STEP_US,
        read_gb_s=1e-3 / stock.read,
        reuse_gb_s=1e-3 / stock.reuse,
        cache_mib=CACHE_MIB,
        prefix_tflop_s=1e-6 / flop if flop else None,
    )


def profile_of(
    published: dict[str, Any], coefficients: Coefficients, cells: list[Published], fit: Fit, sources: tuple[str, ...] = ("a fit",)
) -> Profile:
    shape = shape_of(published)
    suffix = published["end_to_end"]["suffix_tokens"]
    coverage = Coverage(
        AttentionShape(shape.query_heads, shape.kv_heads, shape.head_size, shape.element_bytes),
        Range(min(cell.requests for cell in cells), max(cell.requests for cell in cells)),
        Range(published["c3"]["prefix_tokens"], max(cell.prefix_tokens for cell in cells)),
        Range(suffix, published["c3"]["suffix_tokens"]),
    )
    return Profile(Key(DEVICE, "wheel", "graph"), sources, "shipped", MARGIN, coefficients, coverage, fit)


def change(published: dict[str, Any], coefficients: Coefficients, cell: Published) -> float:
    """The predicted (on - off) / off of the whole run, on the cell's own seconds of the host's path."""
    model = CostModel(coefficients, shape_of(published))
    return published["decode_steps"] * 1e-6 * (model.cascade_us(*cell.batch) - model.stock_us(*cell.batch)) / cell.off_s


def judge(published: dict[str, Any], profile: Profile, cells: list[Published], *, fitted_on: list[str]) -> list[dict[str, Any]]:
    """Every cell: what is predicted, what is decided from a standing start, and what that costs against the better arm."""
    rows = []
    for cell in cells:
        decision = decide(Facts(*cell.batch, shape_of(published)), profile, State())
        chosen, best = (cell.on_s if decision.use else cell.off_s), min(cell.on_s, cell.off_s)
        assert profile.coefficients is not None
        rows.append(
            {
                "fitted_on": fitted_on,
                "base": cell.base,
                "family": cell.family,
                "requests": cell.requests,
                "prefix_tokens": cell.prefix_tokens,
                "published_change": cell.change,
                "predicted_change": change(published, profile.coefficients, cell),
                "use": decision.use,
                "right": chosen == best,
                "regret_s": chosen - best,
                "best_s": best,
            }
        )
    return rows


def end_to_end(published: dict[str, Any], families: dict[str, int] | None = None) -> dict[str, Any]:
    """Every split of the three bases into fitted and unseen ones, and the fit to all three."""
    cells = cells_of(published, families)
    stock = fit_stock(published, cells["current"])
    unfit = Fit(1, 0.0, 0.0)
    splits: list[dict[str, Any]] = []
    for size in (1, 2):
        for fitted in combinations(BASES, size):
            coefficients = fit_cascade(published, stock, [cell for base in fitted for cell in cells[base]])
            profile = profile_of(published, coefficients, cells["current"], unfit)
            unseen = [cell for base in BASES if base not in fitted for cell in cells[base]]
            rows = judge(published, profile, unseen, fitted_on=list(fitted))
            splits.append({"fitted_on": list(fitted), "rows": rows, **totals(published, rows)})
    everything = [cell for base in BASES for cell in cells[base]]
    coefficients = fit_cascade(published, stock, everything)
    errors = sorted(abs(change(published, coefficients, cell) - cell.change) for cell in everything)
    fit = Fit(len(everything), (errors[8] + errors[9]) / 2, errors[-1])
    profile = profile_of(published, coefficients, everything, fit)
    rows = judge(published, profile, everything, fitted_on=list(BASES))
    c3 = published["c3"]
    c3_cell = Published("c3", "C3", c3["requests"], c3["prefix_tokens"], c3["suffix_tokens"], c3["off_s"], c3["on_s"])
    repeated = published["end_to_end"]["repeated_on_current"]
    again = [
        Published("repeated", c.family, c.requests, c.prefix_tokens, c.suffix_tokens, c.off_s, c.off_s * (1 + p / 100))
        for c, p, on in zip(cells["current"], repeated["values"], repeated["cascade_was_on"], strict=True)
        if on
    ]
    return {
        "stock": stock,
        "splits": splits,
        "all": {"rows": rows, **totals(published, rows)},
        "others": {
            "c3": judge(published, profile, [c3_cell], fitted_on=list(BASES)),
            "c3_by_split": [
                row
                for split in splits
                for row in judge(
                    published,
                    profile_of(
                        published,
                        fit_cascade(published, stock, [cell for base in split["fitted_on"] for cell in cells[base]]),
                        everything,
                        unfit,
                    ),
                    [c3_cell],
                    fitted_on=split["fitted_on"],
                )
            ],
            "repeated": judge(published, profile, again, fitted_on=list(BASES)),
        },
        "profile": profile,
    }


def noise(published: dict[str, Any]) -> dict[str, float]:
    """Two readings of the published noise: the host's path against itself, and the same cell of cascade measured twice."""
    end = published["end_to_end"]
    repeated = end["repeated_on_current"]
    first = end["change_percent"]["current"]["values"]
    pairs = list(zip(first, repeated["values"], repeated["cascade_was_on"], strict=True))
    return {
        "stock_against_itself": max(abs(again) for _, again, on in pairs if not on) / 100,
        "same_cell_twice": max(abs(once - again) for once, again, on in pairs if on) / 100,
    }


def totals(published: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Total regret, and the wrong cells outside of each noise band."""
    bands = noise(published)
    return {
        "total_regret": sum(row["regret_s"] for row in rows) / sum(row["best_s"] for row in rows),
        "wrong_outside": {
            name: [
                f"{row['base']} {row['family']} B={row['requests']} ({row['published_change']:+.1%})"
                for row in rows
                if not row["right"] and abs(row["published_change"]) > band
            ]
            for name, band in bands.items()
        },
    }


def microbenchmark(published: dict[str, Any]) -> list[dict[str, Any]]:
    """The nine cells of the microbenchmark, each predicted from the other two batch sizes.

    Its requests share no block, so the model reads the prefix once per request from memory: `reuse` = `read`.
    """
    shape = shape_of(published)
    one_layer = AttentionShape(shape.query_heads, shape.kv_heads, shape.head_size, shape.element_bytes)
    micro = published["microbenchmark"]
    rows = []
    for left_out in sorted({cell["requests"] for cell in micro["cells"]}):
        stock = fit_stock(published, cells_of(published)["current"], without_batch=left_out)
        lines, values = [], []
        for cell in micro["cells"]:
            if cell["requests"] != left_out:
                requests, prefix = cell["requests"], cell["prefix_tokens"]
                read = (prefix + requests * micro["suffix_tokens"]) * shape.kv_bytes + requests * shape.merge_bytes
                lines.append([x / cell["cascade_us"] for x in (1.0, requests, requests * prefix * shape.row_flops)])
                values.append((cell["cascade_us"] - read * stock.read) / cell["cascade_us"])
        launch, request, flop = non_negative_least_squares(lines, values)
        rate = 1e-3 / stock.read
        coefficients = Coefficients(
            stock.launch_us, stock.request_us, launch, request, 0.0, rate, rate, None, 1e-6 / flop if flop else None
        )
        model = CostModel(coefficients, one_layer)
        for cell in micro["cells"]:
            if cell["requests"] == left_out:
                batch = (left_out, cell["prefix_tokens"], left_out * micro["suffix_tokens"])
                full, cascade = model.stock_us(*batch), model.cascade_us(*batch)
                use = full - cascade > MARGIN * full
                rows.append(
                    {
                        **cell,
                        "predicted_full_us": full,
                        "predicted_cascade_us": cascade,
                        "use": use,
                        "right": use == (cell["cascade_us"] < cell["full_us"]),
                    }
                )
    return rows


def emulated_quality(profile: Profile, measured: dict[str, Any]) -> tuple[list[Cell], Any]:
    """The emulated NPU's cells and how the shipped profile explains them."""
    cells = [
        Cell(*(cell[name] for name in ("requests", "prefix_tokens", "suffix_tokens", "stock_us", "cascade_us")))
        for cell in measured["cells"]
    ]
    assert profile.coefficients is not None
    assert profile.coverage is not None
    return cells, quality(cells, profile.coefficients, profile.coverage.shape)
