"""Quotients and remainders of polynomials: simplified where they come out even, and right."""

from __future__ import annotations

import random

import pytest

from ostinato.variables import Dim, Variable, bounds, evaluate, floor_div, remainder

N, M = Variable("N", 1, 30), Variable("M", 1, 30)


@pytest.mark.parametrize(
    ("quotient", "divisor"),
    [
        (8 * N + 8, N + 2),
        (N + M, (M + 2) * (N + 1)),
        (N * N - N * M + M * M, N + M),
        (3 * M, N * N + M),
    ],
)
@pytest.mark.parametrize("rest", [0, 1])
def test_long_division(quotient: Dim, divisor: Dim, rest: int) -> None:
    assert floor_div(quotient * divisor + rest, divisor) == quotient
    assert remainder(quotient * divisor + rest, divisor) == rest


@pytest.mark.parametrize("seed", range(300))
def test_random_polynomials(seed: int) -> None:
    rng = random.Random(seed)
    divisor = _polynomial(rng, rng.randint(1, 3), 0, rng.randint(1, 5))
    dividend = _polynomial(rng, rng.randint(0, 3), -1, rng.randint(0, 5))
    if rng.random() < 0.7:
        dividend = dividend * divisor + rng.randint(0, 3)
    assert bounds(divisor)[0] > 0
    quotient, rest = floor_div(dividend, divisor), remainder(dividend, divisor)
    for _ in range(5):
        values = {"N": rng.randint(1, 30), "M": rng.randint(1, 30)}
        a, b = evaluate(dividend, values), evaluate(divisor, values)
        assert (evaluate(quotient, values), evaluate(rest, values)) == divmod(a, b)


def _polynomial(rng: random.Random, terms: int, least: int, constant: int) -> Dim:
    total: Dim = constant
    for _ in range(terms):
        total = total + rng.randint(least, 4) * rng.choice([N, M, N * N, N * M, M * M])
    return total
