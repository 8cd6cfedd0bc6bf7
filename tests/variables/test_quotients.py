"""Quotients of quotients, simplified to one."""

from __future__ import annotations

import itertools

from ostinato import Variable
from ostinato.variables import evaluate, floor_div

N = Variable("n", 1, 99)


def test_a_quotient_of_a_shifted_quotient() -> None:
    for inner, shift, outer in itertools.product((2, 3, 4), (-9, -1, 0, 1, 5), (2, 5)):
        found = floor_div(floor_div(N + 3, inner) + shift, outer)
        for n in (1, 2, 3, 7, 8, 31, 32, 33, 98, 99):
            assert evaluate(found, {"n": n}) == ((n + 3) // inner + shift) // outer


def test_two_ways_to_halve_three_times() -> None:
    """The same rounding up, by one step or by three."""
    one = floor_div(N + 7, 8)
    steps = floor_div(floor_div(floor_div(N + 1, 2) + 1, 2) + 1, 2)
    assert one == steps


def test_a_size_rounded_up_to_a_multiple() -> None:
    for rounded in (N + (-N - 4 * floor_div(-N, 4)), -4 * floor_div(-N, 4)):
        assert rounded == 4 * floor_div(N + 3, 4)
        assert floor_div(rounded, 4) == floor_div(N + 3, 4)


def test_a_negative_fraction() -> None:
    assert floor_div(-2, N + 1) == -1
    assert floor_div(-3, N + 1) != -1  # n may be 1
