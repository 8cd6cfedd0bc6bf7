"""Sorts, searches and ranks: against NumPy, with ties, NaN, and axes without elements."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


@pytest.fixture
def ties(rng):
    """Floats of which many are equal, and some NaN."""
    x = rng.integers(0, 4, (4, 9)).astype(np.float32)
    x[1, [2, 5]] = np.nan
    x[3] = np.nan
    return x


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64"])
def test_argsort_is_stable(run, rng, dtype):
    x = rng.integers(0, 2 if dtype == "bool" else 4, (3, 17)).astype(dtype)
    got = run(lambda g, x: g.argsort(x, 1), x)
    np.testing.assert_array_equal(got, np.argsort(x, 1, kind="stable"))
    got = run(lambda g, x: g.argsort(x, 0, descending=True), x)
    key = -x.astype(np.float64)
    np.testing.assert_array_equal(got, np.argsort(key, 0, kind="stable"))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7, 64])
def test_searchsorted(run, rng, size, right):
    line = np.sort(rng.integers(0, 9, size).astype(np.float32))
    line[max(size - 2, size // 2) :] = np.nan
    values = np.array([[-1, 0, 3, 4.5], [8, 9, np.inf, np.nan]], np.float32)
    side = "right" if right else "left"
    n = Variable("n", 0, 99)
    for shape in ((size,), (n,)):
        got = run(
            lambda g, s, v: g.searchsorted(s, v, right=right),
            line,
            values,
            shapes=[shape, values.shape],
        )
        np.testing.assert_array_equal(got, np.searchsorted(line, values, side), strict=True)


def test_searchsorted_by_row_and_through_a_sorter(run, rng):
    rows, values = rng.integers(0, 9, (3, 8)), rng.integers(0, 9, (3, 2)).astype(np.int32)
    order = np.argsort(rows, 1, kind="stable")
    got = run(lambda g, s, v, o: g.searchsorted(s, v, sorter=o), rows, values, order)
    wanted = [np.searchsorted(np.sort(r), v) for r, v in zip(rows, values, strict=True)]
    np.testing.assert_array_equal(got, wanted)
    edges = np.array([1, 3, 5.0])
    got = run(lambda g, x, e: g.bucketize(x, e, right=True), values, edges)
    np.testing.assert_array_equal(got, np.digitize(values, edges))
    g = Graph()
    with pytest.raises(GraphError, match="one for each row"):
        g.searchsorted(g.input("s", (2, 3)), g.input("v", (3, 3)))


def test_kthvalue(run, ties):
    for k in (1, 4, 9):
        value, index = run(lambda g, x, k=k: g.kthvalue(x, k, 1, keepdims=True), ties)
        np.testing.assert_array_equal(value, np.sort(ties, 1)[:, k - 1 : k])
        np.testing.assert_array_equal(index, np.argsort(ties, 1, kind="stable")[:, k - 1 : k])
    g = Graph()
    for k in (0, 10):
        with pytest.raises(GraphError, match="k is from 1 to 9"):
            g.kthvalue(g.input(f"x{k}", (4, 9)), k)


def test_median_is_the_lower_one(run, ties):
    value, index = run(lambda g, x: g.median(x, 1), ties)
    wanted = np.sort(ties, 1)[:, 4].copy()
    wanted[np.isnan(ties).any(1)] = np.nan
    np.testing.assert_array_equal(value, wanted)
    np.testing.assert_array_equal(ties[np.arange(4), index], wanted)
    value, index = run(lambda g, x: g.nanmedian(x, 1, keepdims=True), ties)
    np.testing.assert_array_equal(value[1:2, 0], [np.sort(ties[1])[3]])
    np.testing.assert_array_equal(np.isnan(value[:, 0]), [False, False, False, True])
    np.testing.assert_array_equal(np.take_along_axis(ties, index, 1), value)
    whole = np.array([[5, 1], [7, 3]])
    value, index = run(lambda g, x: g.median(x, keepdims=True), whole)
    np.testing.assert_array_equal(value, [[3]])
    np.testing.assert_array_equal(index, [[3]])


def test_mode(run, ties, rng):
    x = np.array([[2, 1, 2, 1, 3], [5, 4, 3, 2, 1], [0, 0, 1, 0, 1]])
    value, index = run(lambda g, x: g.mode(x), x)
    np.testing.assert_array_equal(value, [1, 1, 0])
    np.testing.assert_array_equal(index, [3, 4, 3])
    value, index = run(lambda g, x: g.mode(x, 1, keepdims=True), ties)
    np.testing.assert_array_equal(np.take_along_axis(ties, index, 1), value)
    assert np.isnan(value[3, 0])
    flags = rng.random((7, 3)) < 0.5
    value, _ = run(lambda g, x: g.mode(x, 0), flags)
    np.testing.assert_array_equal(value, flags.sum(0) > 3)


@pytest.mark.parametrize("name", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles(run, ties, name):
    q = [0.0, 0.1, 0.5, 0.77, 1.0]
    got = run(lambda g, x: g.quantile(x, q, 1, interpolation=name), ties)
    np.testing.assert_allclose(got, np.quantile(ties, q, 1, method=name), rtol=1e-6)
    got = run(lambda g, x: g.nanquantile(x, q, 0, True, interpolation=name), ties)
    np.testing.assert_allclose(
        got, np.nanquantile(ties, q, 0, method=name, keepdims=True), rtol=1e-6
    )
    got = run(lambda g, x, q: g.quantile(x, q, interpolation=name), ties[0], np.float64(0.4))
    np.testing.assert_allclose(got, np.quantile(ties[0], 0.4, method=name), rtol=1e-6)


def test_a_computed_fraction_meets_an_element(run):
    x = np.arange(11, dtype=np.float32)
    for q in np.float32([0.1, 0.3, 0.7]):
        for name in ("lower", "higher"):
            got = run(lambda g, x, q, n=name: g.quantile(x, q, interpolation=n), x, q)
            assert got == np.round(q * 10)


def test_quantiles_of_infinities_and_wrong_fractions(run):
    x = np.array([1, np.inf, np.inf], np.float16)
    got = run(lambda g, x: g.quantile(x, [0.5, 0.75]), x)
    np.testing.assert_array_equal(got, [np.inf, np.inf], strict=False)
    g = Graph()
    x = g.input("x", (3,))
    for q in (-0.1, [0.5, 1.5], float("nan")):
        with pytest.raises(GraphError, match="fractions from 0 to 1"):
            g.quantile(x, q)
    with pytest.raises(GraphError, match="interpolation is one of"):
        g.quantile(x, 0.5, interpolation="cubic")


@pytest.mark.parametrize("name", ["median", "nanmedian", "mode", "quantile"])
def test_nothing_has_no_rank(name):
    g = Graph()
    given = (0.5,) if name == "quantile" else ()
    with pytest.raises(GraphError, match=rf"{name}.*axis 1 of f32\[2,0\] has no elements"):
        getattr(g, name)(g.input("x", (2, 0)), *given, 1)


def test_ranks_along_symbolic_axes(run, ties):
    n = Variable("n", 3, 20)

    def build(g, x):
        return (*g.median(x, 1), g.quantile(x, 0.3, 1), *g.mode(x, 1), *g.kthvalue(x, n - 2, 1))

    got = run(build, ties, shapes=[(4, n)])
    for mine, truth in zip(got, run(lambda g, x: build_fixed(g, x), ties), strict=True):
        np.testing.assert_array_equal(mine, truth)


def build_fixed(g, x):
    return (*g.median(x, 1), g.quantile(x, 0.3, 1), *g.mode(x, 1), *g.kthvalue(x, 7, 1))
