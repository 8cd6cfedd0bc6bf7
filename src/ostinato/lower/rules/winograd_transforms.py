"""The transforms of Winograd's convolution: as exact matrices, and applied to scalar expressions.

They follow Cook and Toom: a tile, as a polynomial, is evaluated at points, products of values are
the values of the product, and it is found again by interpolation. The points decide how much
rounding errors grow. For tiles of four, the customary 0, ±1, ±2 make the largest errors four times
as large as 0, ±5/8, ±3/2, the best of those that ``bench/winograd_error.py --scan`` tries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import TypeAlias

from ostinato.lower.loopir.nodes import Apply, Number, Scalar
from ostinato.records import dataclass

__all__ = [
    "POINTS",
    "TAPS",
    "Grid",
    "Matrix",
    "Transforms",
    "by_columns",
    "by_rows",
    "dense",
    "make_transforms",
    "transformed",
    "transforms",
]

TAPS = 3
"""The extent of the windows along each axis."""

POINTS: dict[int, tuple[Fraction, ...]] = {
    2: tuple(map(Fraction, ("0", "1", "-1"))),
    4: tuple(map(Fraction, ("0", "5/8", "-5/8", "3/2", "-3/2"))),
}
"""By tile size, where polynomials are evaluated; the last point is infinity."""

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]
Grid: TypeAlias = Sequence[Sequence[Scalar]]


@dataclass(frozen=True)
class Transforms:
    """``y = A^T [(G w) * (B^T x)]`` for one axis, as exact matrices.

    Attributes:
        x: ``B^T``, points by elements.
        w: ``G``, points by taps.
        y: ``A^T``, results by points.
    """

    x: Matrix
    w: Matrix
    y: Matrix


@cache
def transforms(outputs: int) -> Transforms:
    """The transforms of ``F(outputs, 3)`` that kernels use."""
    return make_transforms(POINTS[outputs], outputs)


def make_transforms(points: Sequence[Fraction], outputs: int) -> Transforms:
    """The transforms of ``F(outputs, 3)`` by way of ``points``, one fewer than a tile has."""
    size = outputs + TAPS - 1
    zero, one = Fraction(0), Fraction(1)
    x = [_polynomial([q for q in points if q != p], size) for p in points]
    w = [
        tuple(p**tap / _product(p - q for q in points if q != p) for tap in range(TAPS))
        for p in points
    ]
    y = [(*(p**row for p in points), one if row == outputs - 1 else zero) for row in range(outputs)]
    at_infinity = (*(zero,) * (TAPS - 1), one)
    return Transforms((*x, _polynomial(points, size)), (*w, at_infinity), tuple(y))


def _polynomial(roots: Sequence[Fraction], size: int) -> tuple[Fraction, ...]:
    """The coefficients of the polynomial with these roots, lowest first, ``size`` of them."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [*(root * c for c in found), Fraction(0)]
        found = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return (*found, *(Fraction(0),) * (size - len(found)))


def _product(factors: Iterable[Fraction]) -> Fraction:
    return math.prod(factors, start=Fraction(1))


# -- applied to scalar expressions ---------------------------------------------------------------


def transformed(matrix: Matrix, grid: Grid, step: Callable[..., list[Scalar]]) -> Grid:
    """``matrix · grid · matrix^T``."""
    columns = [step(matrix, column) for column in zip(*grid, strict=True)]
    return [step(matrix, row) for row in zip(*columns, strict=True)]


def dense(matrix: Matrix, values: Sequence[Scalar]) -> list[Scalar]:
    """``matrix · values``."""
    return [_sum(row, values) for row in matrix]


def by_rows(matrix: Matrix, values: Sequence[Scalar]) -> list[Scalar]:
    """``matrix · values``; rows of ``p`` and ``-p`` differ in the signs of odd terms."""
    found: list[Scalar] = []
    for number, row in enumerate(matrix):
        mirrored = tuple(-c if k % 2 else c for k, c in enumerate(row))
        if number and mirrored == matrix[number - 1]:
            found[-1:] = _sum_and_difference(
                _sum(_every_second(mirrored, 0), values), _sum(_every_second(mirrored, 1), values)
            )
        else:
            found.append(_sum(row, values))
    return found


def by_columns(matrix: Matrix, values: Sequence[Scalar]) -> list[Scalar]:
    """``matrix · values``; columns of ``p`` and ``-p`` differ in the signs of odd rows."""
    columns: list[tuple[Fraction, ...]] = []
    operands: list[Scalar] = []
    for column, value in zip(zip(*matrix, strict=True), values, strict=True):
        mirrored = tuple(-c if k % 2 else c for k, c in enumerate(column))
        if columns and any(column) and mirrored == columns[-1]:
            columns[-1:] = [_every_second(mirrored, 0), _every_second(mirrored, 1)]
            operands[-1:] = _sum_and_difference(operands[-1], value)
        else:
            columns.append(column)
            operands.append(value)
    return dense(tuple(zip(*columns, strict=True)), operands)


def _every_second(coefficients: Sequence[Fraction], first: int) -> tuple[Fraction, ...]:
    return tuple(c if k % 2 == first else Fraction(0) for k, c in enumerate(coefficients))


def _sum_and_difference(a: Scalar, b: Scalar) -> list[Scalar]:
    return [Apply("add", (a, b), a.dtype), Apply("subtract", (a, b), a.dtype)]


def _sum(coefficients: Sequence[Fraction], values: Sequence[Scalar]) -> Scalar:
    """The sum of ``values`` times ``coefficients``, of which one is not zero at least."""
    dtype = values[0].dtype
    total: Scalar | None = None
    for factor, value in zip(coefficients, values, strict=True):
        if not factor:
            continue
        term = value
        if abs(factor) != 1 or (total is None and factor < 0):
            size = factor if total is None else abs(factor)
            term = Apply("multiply", (value, Number(float(size), dtype)), dtype)
        if total is None:
            total = term
        else:
            total = Apply("add" if factor > 0 else "subtract", (total, term), dtype)
    assert total is not None
    return total
