"""The transforms of Winograd's convolution: exact as matrices, the same as expressions."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from ostinato.dtypes import FLOAT64
from ostinato.lower.loopir.nodes import Apply, Number, Scalar
from ostinato.lower.rules.winograd_transforms import (
    POINTS,
    TAPS,
    Matrix,
    by_columns,
    by_rows,
    dense,
    transformed,
    transforms,
)


def times(matrix: Matrix, values: list[Fraction]) -> list[Fraction]:
    return [sum((c * v for c, v in zip(row, values, strict=True)), Fraction()) for row in matrix]


@pytest.mark.parametrize("outputs", POINTS)
def test_the_matrices_compute_windows_exactly(outputs: int) -> None:
    """For every pair of unit vectors, so by linearity for all elements and weights."""
    found = transforms(outputs)
    size = outputs + TAPS - 1
    for place, tap in product(range(size), range(TAPS)):
        x = [Fraction(i == place) for i in range(size)]
        w = [Fraction(i == tap) for i in range(TAPS)]
        products = [a * b for a, b in zip(times(found.x, x), times(found.w, w), strict=True)]
        expected = [sum(x[row + k] * w[k] for k in range(TAPS)) for row in range(outputs)]
        assert times(found.y, products) == expected


@pytest.mark.parametrize("outputs", POINTS)
def test_what_multiplies_data_is_exact_in_float32(outputs: int) -> None:
    found = transforms(outputs)
    for row in (*found.x, *found.y):
        assert all(Fraction(float(np.float32(float(c)))) == c for c in row)


def value_of(scalar: Scalar) -> float:
    if isinstance(scalar, Number):
        return float(scalar.value)
    assert isinstance(scalar, Apply)
    a, b = map(value_of, scalar.operands)
    return {"add": a + b, "subtract": a - b, "multiply": a * b}[scalar.op]


@pytest.mark.parametrize("outputs", POINTS)
@pytest.mark.parametrize("part", ["x", "w", "y"])
def test_expressions_are_the_matrices(outputs: int, part: str) -> None:
    matrix: Matrix = getattr(transforms(outputs), part)
    step = {"x": by_rows, "w": dense, "y": by_columns}[part]
    width = len(matrix[0])
    numbers = np.random.default_rng(outputs).standard_normal((width, width))
    grid = [[Number(float(v), FLOAT64) for v in row] for row in numbers]
    exact = np.array([[float(c) for c in row] for row in matrix])
    got = [[value_of(s) for s in row] for row in transformed(matrix, grid, step)]
    assert np.allclose(got, exact @ numbers @ exact.T, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("part", "step", "most"), [("x", by_rows, 22), ("y", by_columns, 17)])
def test_pairs_of_points_share_work(part: str, step: object, most: int) -> None:
    matrix: Matrix = getattr(transforms(4), part)
    values = [Number(1.0, FLOAT64) for _ in matrix[0]]
    seen: set[int] = set()
    waiting: list[Scalar] = list(step(matrix, values))  # type: ignore[operator]
    while waiting:
        scalar = waiting.pop()
        if isinstance(scalar, Apply) and id(scalar) not in seen:
            seen.add(id(scalar))
            waiting.extend(scalar.operands)
    assert len(seen) <= most
