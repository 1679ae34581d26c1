"""Coefficients from cells: known ones are found again, costs are never negative, too little is an error."""

from __future__ import annotations

from itertools import product

import pytest

from tests.mutants import mutant  # noqa: F401
from vllm_ascend_split_batch.cascade import fitting
from vllm_ascend_split_batch.cascade.cost_model import AttentionShape, Coefficients, CostModel
from vllm_ascend_split_batch.cascade.fitting import Cell, FitError, fit, non_negative_least_squares

SHAPE = AttentionShape(9, 3, 64, 2)
TRUE = Coefficients(50, 4, 400, 9, 77, 3.0, 5.0, 100.0, 0.3)


def cells(coefficients: Coefficients = TRUE) -> list[Cell]:
    model = CostModel(coefficients, SHAPE)
    return [
        Cell(*batch, model.stock_terms(*batch).total, model.cascade_terms(*batch).total)
        for batch in ((b, p, b * s) for b, p, s in product((2, 8, 32), (128, 1024, 4096), (16, 256)))
    ]


def found(module) -> Coefficients:
    coefficients, _ = module.fit(cells(), SHAPE, cascade_step_us=77, cache_mib=100.0)
    return coefficients


def test_the_coefficients_that_made_the_cells_are_found():
    coefficients, quality = fit(cells(), SHAPE, cascade_step_us=77, cache_mib=100.0)
    assert vars(coefficients) == pytest.approx(vars(TRUE), rel=1e-6)
    assert quality.cells == 18
    assert quality.largest_error < 1e-6


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("again = (cell.requests - 1) *", "again = cell.requests *"),
        ("0.0, 0.0, read + merge, 0.0", "0.0, 0.0, read, 0.0"),
        ("matrix[line][size] / matrix[line][line]", "matrix[line][size]"),
    ],
)
def test_a_changed_fit_finds_others(mutant, old, new):  # noqa: F811
    assert vars(found(mutant(fitting, old, new))) != pytest.approx(vars(TRUE), rel=1e-6)


def test_no_cost_is_negative():
    # The unconstrained optimum of this system is (-1, 2).
    assert non_negative_least_squares([[1, 1], [1, 0], [0, 1]], [1, -1, 2]) == pytest.approx([0, 1.5])


def test_a_cost_of_zero_is_a_rate_of_none():
    free = Coefficients(50, 4, 400, 9, 0, 3.0, None, None, 0.3)
    coefficients, _ = fit(cells(free), SHAPE, cascade_step_us=0, cache_mib=None)
    assert coefficients.reuse_gb_s is None or coefficients.reuse_gb_s > 1e5


def test_a_rate_that_no_profile_may_hold_is_none():
    assert fitting._rate(1e-17, 1e3) == pytest.approx(1e14)
    assert fitting._rate(1e-19, 1e3) is None


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("requests", lambda cell: cell.requests),
        ("prefix", lambda cell: cell.prefix_tokens),
        ("suffix", lambda cell: cell.suffix_tokens // cell.requests),
    ],
)
def test_cells_that_do_not_differ_are_refused(name, of):
    same = [cell for cell in cells() if of(cell) == of(cells()[0])]
    with pytest.raises(FitError, match=f"same {name}; measure at least two"):
        fit(same, SHAPE, cascade_step_us=0, cache_mib=None)


def test_fewer_rows_than_unknowns_are_refused():
    with pytest.raises(FitError, match="2 measurements cannot determine 3 coefficients"):
        non_negative_least_squares([[1, 2, 3], [4, 5, 6]], [1, 2])
    with pytest.raises(FitError, match="0 measurements"):
        non_negative_least_squares([], [])
    with pytest.raises(FitError, match="no coefficient"):
        non_negative_least_squares([[1.0], [1.0]], [-1.0, -1.0])
