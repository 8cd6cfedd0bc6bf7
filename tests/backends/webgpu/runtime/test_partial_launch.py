"""Runs on the first rows launch the workgroups that these need, and copy their results alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost

UPPER = 600

Build = Callable[[ost.Graph, ost.Value], ost.Value]


def chain(g, x):
    return g.exp(x) * 2


def softmax(g, x):
    return g.softmax(x, -1)


def product(g, x):
    w = g.constant(np.ones((64, 24), np.float32))
    return g.matmul(x, w)


def row_of_each(g, x):
    """A matmul of one row for each row."""
    w = g.constant(np.ones((UPPER, 64, 24), np.float32))
    return g.reshape(g.matmul(g.reshape(x, (UPPER, 1, 64)), w), (UPPER, 24))


def bytes_of_words(g, x):
    return g.cast(x, "int8")


@pytest.mark.parametrize(
    "build", [chain, softmax, product, row_of_each, bytes_of_words], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("optimize", [True, False])
def test_workgroups_and_results_shrink(session: ost.Session, build: Build, optimize: bool) -> None:
    g = ost.Graph(build.__name__)
    g.set_outputs([build(g, g.input("x", (UPPER, 64)))])
    compiled = session.compile(g, options=ost.CompileOptions(optimize=optimize))
    executable = compiled._execution.executable
    x = np.random.default_rng(0).normal(size=(UPPER, 64)).astype(np.float32)
    (full,) = compiled.run({"x": x})
    for actual in (0, 1, 7, UPPER - 1):
        out = np.full_like(full, 55)
        with compiled.active_extent(actual, UPPER):
            limits = executable.program.row_limits()
            compiled.run({"x": x}, out=[out])
        assert limits is not None
        assert limits.extent == (actual, UPPER)
        np.testing.assert_array_equal(out[:actual], full[:actual])
        assert (out[actual:] == 55).all()
        if actual < 8:
            counts = executable.program._runner._counts_at([])
            assert all(
                limit is not None and limit <= max(1, x_ * y // 8)
                for limit, (x_, y) in zip(limits.groups, counts, strict=True)
            )
    assert executable.program.row_limits() is None


def test_a_sum_over_all_rows_is_made_in_full(session: ost.Session) -> None:
    g = ost.Graph()
    x = g.input("x", (UPPER, 8))
    y = g.exp(x)
    g.set_outputs([y, g.sum(y, axis=0)])
    compiled = session.compile(g)
    array = np.random.default_rng(0).normal(size=(UPPER, 8)).astype(np.float32)
    full = compiled.run({"x": array})
    with compiled.active_extent(3, UPPER):
        found = compiled.run({"x": array})
    np.testing.assert_array_equal(found[1], full[1])
    np.testing.assert_array_equal(found[0][:3], full[0][:3])
