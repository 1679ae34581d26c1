"""Coefficients of the cost model from measured cells: least squares with no negative cost.

Both formulas of `cost_model` are linear in launch and request times and in the inverses of the rates. A cell's error
counts relative to its measured time, so that short cells are not drowned by long ones. With at most seven unknowns
every choice of which of them are zero is solved exactly, which is the certain way to the non-negative optimum.
Pure standard library.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from .cost_model import BYTES_PER_US, FLOPS_PER_US, LARGEST, AttentionShape, Coefficients, CostModel


class FitError(ValueError):
    """The cells do not determine the coefficients; the message says what is missing."""


@dataclass(frozen=True)
class Cell:
    """One measured batch: B, P, the sum of all S_b, and the attention time per layer of both arms in microseconds."""

    requests: int
    prefix_tokens: int
    suffix_tokens: int
    stock_us: float
    cascade_us: float


@dataclass(frozen=True)
class FitQuality:
    """How far the fitted times are from the measured ones, as shares of the measured ones, over both arms."""

    cells: int
    median_error: float
    largest_error: float


def non_negative_least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The x >= 0 with the smallest sum of squared differences between rows x and values.

    Raises:
        FitError: there are fewer rows than unknowns, or the rows leave every choice of unknowns undetermined.
    """
    width = len(rows[0]) if rows else 0
    if not width or len(rows) < width:
        raise FitError(f"{len(rows)} measurements cannot determine {width or 'any'} coefficients; measure more cells")
    # Unknowns of very different sizes are brought to one scale first.
    scales = [max(abs(row[column]) for row in rows) or 1.0 for column in range(width)]
    scaled = [[row[column] / scales[column] for column in range(width)] for row in rows]
    best: tuple[float, list[float]] | None = None
    for size in range(width, 0, -1):
        for chosen in combinations(range(width), size):
            solution = _normal_equations([[row[column] for column in chosen] for row in scaled], values)
            if solution is None or min(solution) < 0:
                continue
            x = [0.0] * width
            for column, value in zip(chosen, solution, strict=True):
                x[column] = value
            error = sum(
                (sum(a * b for a, b in zip(row, x, strict=True)) - value) ** 2
                for row, value in zip(scaled, values, strict=True)
            )
            if best is None or error < best[0] * (1 - 1e-12):
                best = (error, x)
    if best is None:
        raise FitError("the measurements determine no coefficient; measure cells that differ in batch and prefix")
    return [value / scale for value, scale in zip(best[1], scales, strict=True)]


def _normal_equations(rows: list[list[float]], values: Sequence[float]) -> list[float] | None:
    """The least-squares solution by Gaussian elimination on A^T A x = A^T b, or None where it is not unique."""
    size = len(rows[0])
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)]
        + [sum(row[i] * value for row, value in zip(rows, values, strict=True))]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda line: abs(matrix[line][column]))
        if abs(matrix[pivot][column]) < 1e-12 * len(rows):
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for line in range(size):
            if line != column:
                factor = matrix[line][column] / matrix[column][column]
                matrix[line] = [a - factor * b for a, b in zip(matrix[line], matrix[column], strict=True)]
    return [matrix[line][size] / matrix[line][line] for line in range(size)]


def fit(
    cells: Sequence[Cell], shape: AttentionShape, *, cascade_step_us: float, cache_mib: float | None
) -> tuple[Coefficients, FitQuality]:
    """The coefficients that explain both arms of all cells at once.

    Args:
        cells: measured attention times per layer. shape: the attention they were measured with.
        cascade_step_us: measured apart. cache_mib: known, not fitted.

    Raises:
        FitError: too few cells, or cells that do not differ in batch, prefix and suffix.
    """
    varied = {
        "requests": {cell.requests for cell in cells},
        "prefix": {cell.prefix_tokens for cell in cells},
        "suffix": {cell.suffix_tokens // cell.requests for cell in cells},
    }
    for name, values in varied.items():
        if len(values) < 2:
            raise FitError(f"all measured cells have the same {name}; measure at least two different ones")
    rows: list[list[float]] = []
    for cell in cells:
        read = (cell.prefix_tokens + cell.suffix_tokens) * shape.kv_bytes
        again = (cell.requests - 1) * cell.prefix_tokens * shape.kv_bytes
        merge = cell.requests * shape.merge_bytes
        flops = cell.requests * cell.prefix_tokens * shape.row_flops
        rows.append([value / cell.stock_us for value in (1.0, cell.requests, read, again, 0.0, 0.0, 0.0)])
        rows.append([value / cell.cascade_us for value in (0.0, 0.0, read + merge, 0.0, 1.0, cell.requests, flops)])
    x = non_negative_least_squares(rows, [1.0] * len(rows))
    coefficients = Coefficients(
        stock_launch_us=x[0],
        stock_request_us=x[1],
        cascade_launch_us=x[4],
        cascade_request_us=x[5],
        cascade_step_us=cascade_step_us,
        read_gb_s=_rate(x[2], BYTES_PER_US),
        reuse_gb_s=_rate(x[3], BYTES_PER_US),
        cache_mib=cache_mib,
        prefix_tflop_s=_rate(x[6], FLOPS_PER_US),
    )
    return coefficients, quality(cells, coefficients, shape)


def quality(cells: Sequence[Cell], coefficients: Coefficients, shape: AttentionShape) -> FitQuality:
    """How well the coefficients explain the cells; the once-a-step time is no part of a cell."""
    model = CostModel(coefficients, shape)
    errors: list[float] = []
    for cell in cells:
        batch = (cell.requests, cell.prefix_tokens, cell.suffix_tokens)
        errors.append(abs(model.stock_terms(*batch).total / cell.stock_us - 1))
        errors.append(abs(model.cascade_terms(*batch).total / cell.cascade_us - 1))
    return FitQuality(len(cells), statistics.median(errors), max(errors))


def _rate(inverse: float, unit: float) -> float | None:
    """None for a cost too small to be measured: one of nothing, or of more than any profile may hold."""
    return 1.0 / (inverse * unit) if inverse * unit >= 1 / LARGEST else None
