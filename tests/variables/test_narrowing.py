"""Conditions on sizes, and the Variables for which they hold."""

from __future__ import annotations

import pytest

from ostinato.variables import (
    Requirement,
    Variable,
    bounds,
    evaluate,
    floor_div,
    maximum,
    minimum,
    narrowings,
    symbols,
)

S = Variable("s", 1, 512)


def held(requirement: Requirement, values: range) -> list[int]:
    """The values for which a condition holds."""
    sizes = [evaluate(requirement.size, {"s": value}) for value in values]
    return [
        v for v, n in zip(values, sizes, strict=True) if n == 0 or (n > 0 and not requirement.equal)
    ]


@pytest.mark.parametrize(
    ("requirement", "low", "high"),
    [
        (Requirement(minimum(S, 64) - S, equal=True), 1, 64),
        (Requirement(S - 65, equal=False), 65, 512),
        (Requirement(100 - S, equal=False), 1, 100),
        (
            Requirement(maximum(floor_div(S, 10) - 1, 0) - (floor_div(S, 10) - 1), equal=True),
            10,
            512,
        ),
        (Requirement(floor_div(floor_div(S + 64, 256) + 1, 2) - 1, equal=True), 192, 512),
        (Requirement(floor_div(S, 8) - 1, equal=True), 8, 15),
    ],
)
def test_the_largest_range_comes_first(requirement, low, high):
    first = next(iter(narrowings(requirement, S.symbol)))
    assert bounds(first) == (low, high)
    assert symbols(first) == {Variable("s", low, high).symbol}
    assert requirement.at(S.symbol, first).certain
    assert held(requirement, range(1, 513)) == [*range(low, high + 1)]


def test_multiples():
    requirement = Requirement(4 * floor_div(S, 4) - S, equal=True)
    certain = [
        dim for dim in narrowings(requirement, S.symbol) if requirement.at(S.symbol, dim).certain
    ]
    assert [str(dim) for dim in certain] == [
        f"{factor}*s_by_{factor}" for factor in (4, 8, 16, 32, 64)
    ]
    assert bounds(certain[0]) == (4, 512)


def test_what_never_holds_has_no_range():
    never = Requirement(-S, equal=False)
    assert [*narrowings(never, S.symbol)] == []


T = Variable("t", 1, 512)


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (S - T, T),
        (3 + T - S, T + 3),
        (3 * S - 6, 2),
        (7 - S, 7),
        (3 * S - 7, None),
        (S - 600, None),
        (S - T + 5, None),  # it would be negative for some
        (2 * S - T, None),
    ],
)
def test_equal_sizes_are_one(size, found):
    first = next(iter(narrowings(Requirement(size, equal=True), S.symbol)))
    if found is None:
        assert "_by_" in str(first)
    else:
        assert first == found
        assert Requirement(size, equal=True).at(S.symbol, found).certain


def test_quotients_within_one_multiple_are_numbers():
    assert floor_div(Variable("s", 8, 15), 8) == 1
    assert floor_div(Variable("s", 0, 15), 16) == 0
    assert floor_div(Variable("s", 8, 16), 8) != 1
