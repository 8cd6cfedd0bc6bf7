"""Histograms, bags, distances: against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


def test_bincount(run, rng):
    x = rng.integers(-2, 9, (3, 7))
    weights = rng.standard_normal((3, 7))
    inside = (x >= 0) & (x < 6)
    counts, sums = run(
        lambda g, x, w: (g.bincount(x, length=6), g.bincount(x, w, length=6)), x, weights
    )
    np.testing.assert_array_equal(counts, np.bincount(x[inside], minlength=6))
    np.testing.assert_allclose(sums, np.bincount(x[inside], weights[inside], 6))
    assert counts.dtype == np.int64
    n = Variable("n", 0, 40)
    for values, least in ((x.ravel(), 2), (x.ravel(), 12), (x.ravel()[:0], 3), (x.ravel()[:0], 0)):
        got = run(lambda g, x, m=least: g.bincount(x, minlength=m, bound=12), values, shapes=[(n,)])
        np.testing.assert_array_equal(got, np.bincount(values[values >= 0], minlength=least))
    g = Graph()
    with pytest.raises(GraphError, match="expected length, or a bound"):
        g.bincount(g.input("x", (3,), "int32"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_histc(run, rng, dtype):
    x = rng.uniform(-1, 2, 60).astype(dtype)
    x[:5] = [0, 1, np.nan, np.inf, -np.inf]
    got = run(lambda g, x: g.histc(x, 4, 0, 1), x)
    wanted = np.histogram(x[np.isfinite(x)].astype(np.float64), 4, (0, 1))[0]
    np.testing.assert_array_equal(got, wanted.astype(dtype), strict=True)
    got = run(lambda g, x: (g.histc(x, 3), g.histc(g.full((4,), 2.0), 2)), x[5:])
    np.testing.assert_array_equal(got[0], np.histogram(x[5:].astype(np.float64), 3)[0])
    np.testing.assert_array_equal(got[1], [0, 4])


def test_histogram(run, rng):
    x = rng.integers(0, 9, (4, 9)).astype(np.float32)
    x[0, 0] = np.nan
    edges = np.array([1, 2, 4.5, 8], np.float32)
    counts, density = run(
        lambda g, x, e: (g.histogram(x, e), g.histogram(x, e, density=True)), x, edges
    )
    flat = x.ravel()[1:]
    np.testing.assert_array_equal(counts, np.histogram(flat, edges)[0])
    np.testing.assert_allclose(density, np.histogram(flat, edges, density=True)[0], rtol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(run, rng, mode):
    table = rng.standard_normal((6, 3)).astype(np.float32)
    ids = rng.integers(0, 6, 9)
    starts = np.array([0, 2, 2, 7])

    def bag(rows):
        return getattr(np, mode)(rows, 0) if len(rows) else np.zeros(3)

    wanted = [bag(table[part]) for part in np.split(ids, starts[1:])]
    got = run(lambda g, t, i, o: g.embedding_bag(t, i, o, mode=mode), table, ids, starts)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    got = run(
        lambda g, t, i, o: g.embedding_bag(
            t, i, o, mode=mode, padding_id=int(ids[0]), include_last_offset=True
        ),
        table,
        ids,
        np.append(starts, 9),
    )
    kept = [part[part != ids[0]] for part in np.split(ids, starts[1:])]
    np.testing.assert_allclose(got, [bag(table[part]) for part in kept], rtol=1e-5, atol=1e-6)
    got = run(lambda g, t, i: g.embedding_bag(t, i, mode=mode), table, ids.reshape(3, 3))
    np.testing.assert_allclose(
        got, [bag(table[r]) for r in ids.reshape(3, 3)], rtol=1e-5, atol=1e-6
    )


def test_weighted_bags(run, rng):
    table, weights = rng.standard_normal((6, 3)), rng.standard_normal((2, 4))
    ids = rng.integers(0, 6, (2, 4))
    got = run(lambda g, t, i, w: g.embedding_bag(t, i, mode="sum", weights=w), table, ids, weights)
    np.testing.assert_allclose(got, (table[ids] * weights[..., None]).sum(1))


@pytest.mark.parametrize("p", [0, 1, 2, 3.5, np.inf])
def test_distances(run, rng, p):
    x, y = rng.integers(-2, 3, (2, 5, 3)).astype(np.float64), rng.standard_normal((4, 3))
    apart = np.abs(x[:, :, None] - y)
    wanted = (apart != 0).sum(-1) if p == 0 else np.linalg.norm(apart, p, -1)
    np.testing.assert_allclose(run(lambda g, x, y: g.cdist(x, y, p), x, y), wanted)
    pairs = np.abs(y[:, None] - y)[np.triu_indices(4, 1)]
    wanted = (pairs != 0).sum(-1) if p == 0 else np.linalg.norm(pairs, p, -1)
    n = Variable("n", 1, 9)
    for shapes in (None, [(n, 3)]):
        np.testing.assert_allclose(run(lambda g, y: g.pdist(y, p), y, shapes=shapes), wanted)
    assert run(lambda g, y: g.pdist(y, p), y[:1]).shape == (0,)


def test_cross_products_and_bounded_norms(run, rng):
    x, y = rng.standard_normal((2, 3, 4)), rng.standard_normal((3, 1))
    got = run(lambda g, x, y: g.cross(x, y, 1), x, y)
    np.testing.assert_allclose(got, np.cross(x, np.broadcast_to(y, x.shape), axis=1), atol=1e-12)
    got = run(lambda g, x: g.renorm(x, 2, 1, 1.5), x)
    length = np.linalg.norm(np.moveaxis(x, 1, 0).reshape(3, -1), axis=1)
    scale = np.where(length > 1.5, 1.5 / (length + 1e-7), 1)
    np.testing.assert_allclose(got, x * scale[:, None])
    g = Graph()
    with pytest.raises(GraphError, match="3 elements"):
        g.cross(g.input("x", (2,)), g.input("y", (2,)))


def test_statistics_without_nan(run, rng):
    x = rng.integers(0, 3, (3, 5)).astype(np.float32)
    x[0, 1] = np.nan
    x[2] = np.nan
    got = run(
        lambda g, x: (
            g.nansum(x, 1),
            g.nanmean(x, 1, keepdims=True),
            g.count_nonzero(x, 0),
            *g.aminmax(x, 1),
            *g.var_mean(x, 0, 1),
            *g.std_mean(x[:2], 0),
        ),
        x,
    )
    np.testing.assert_array_equal(got[0], np.nansum(x, 1))
    np.testing.assert_allclose(got[1][:2], np.nanmean(x[:2], 1, keepdims=True))
    assert np.isnan(got[1][2, 0])
    np.testing.assert_array_equal(got[2], np.count_nonzero(x, 0))
    np.testing.assert_array_equal(got[3], x.min(1))
    np.testing.assert_array_equal(got[4], x.max(1))
    np.testing.assert_allclose(got[5], x.var(0, ddof=1), rtol=1e-6)
    np.testing.assert_allclose(got[8], x[:2].mean(0))


@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "float16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_extremes(run, rng, dtype, axis):
    x = (rng.integers(0, 5, (6, 7)) > (2 if dtype == "bool" else -1)).astype(dtype)
    if dtype != "bool":
        x = rng.integers(0, 5, (6, 7)).astype(dtype)
    if dtype[0] == "f":
        x[2, 3] = np.nan
    high, high_at, low, low_at = run(lambda g, x: (*g.cummax(x, axis), *g.cummin(x, axis)), x)
    np.testing.assert_array_equal(high, np.maximum.accumulate(x, axis), strict=True)
    np.testing.assert_array_equal(low, np.minimum.accumulate(x, axis), strict=True)
    for value, at in ((high, high_at), (low, low_at)):
        np.testing.assert_array_equal(np.take_along_axis(x, at, axis), value)
        assert (np.diff(at, axis=axis) >= 0).all()
    if dtype == "int8":
        np.testing.assert_array_equal(run(lambda g, x: g.cummax(x, 0)[1], x[:1] * 0), x[:1] * 0)
        np.testing.assert_array_equal(
            run(lambda g, x: g.cummax(x, 0)[1], np.array([1, 1, 0, 1])), [0, 1, 1, 3]
        )


def test_running_log_sums(run):
    x = np.array([-np.inf, -1000, -1000, 2, 1000, np.inf, 3, np.nan, 1], np.float64)
    got = run(lambda g, x: g.logcumsumexp(x), x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, np.logaddexp.accumulate(x))
    with pytest.raises(GraphError, match="before the first"):
        from ostinato.ops import OPS

        OPS["cummax"].infer(Graph().input("x", (3,)).type, axis=0, exclusive=True, reverse=False)
