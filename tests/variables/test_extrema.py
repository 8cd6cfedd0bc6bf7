"""Minima and maxima, and differences of ends that are clamped."""

from __future__ import annotations

import itertools

from ostinato import Variable
from ostinato.variables import difference, evaluate, maximum, minimum

N = Variable("n", 1, 99)


def test_an_end_within_the_axis_needs_no_clamp() -> None:
    start = maximum(N - 3, 0)
    assert minimum(start, N) == start
    assert maximum(start, N) == N
    assert maximum(minimum(N, 5), N) == N


def test_differences_of_clamped_ends() -> None:
    assert difference(N, maximum(N - 3, 0)) == minimum(3, N)
    assert difference(N, minimum(3, N)) == maximum(N - 3, 0)
    ends = [N, maximum(N - 3, 0), minimum(N, 7), maximum(2 * N, 50), N + 4, 60]
    for a, b in itertools.product(ends, ends):
        for n in (1, 2, 3, 4, 25, 26, 99):
            values = {"n": n}
            assert evaluate(difference(a, b), values) == evaluate(a, values) - evaluate(b, values)
