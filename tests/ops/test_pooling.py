"""Pooling against loops over windows."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


def windows(x, kernel, stride, padding, dilation, ceil_mode):
    """For every window: where it is, its elements inside ``x``, how many lie within the padding."""
    counts = []
    geometry = list(zip(x.shape[2:], kernel, stride, padding, dilation, strict=True))
    for size, k, s, (low, high), d in geometry:
        starts = range(-low, size + high + s, s)
        fits = [i for i in starts if i + d * (k - 1) < size + high]
        last = fits[-1]
        hangs = ceil_mode and last + d * (k - 1) < size + high - 1 and last + s < size
        counts.append(len(fits) + hangs)
    for at in np.ndindex(*x.shape[:2], *counts):
        inside, padded = [], 0
        for k in np.ndindex(*kernel):
            index = [
                i * s + j * d - low
                for i, j, (_, _, s, (low, _), d) in zip(at[2:], k, geometry, strict=True)
            ]
            padded += all(i < n + p[1] for i, (n, _, _, p, _) in zip(index, geometry, strict=True))
            if all(0 <= i < n for i, n in zip(index, x.shape[2:], strict=True)):
                inside.append(x[(*at[:2], *index)])
        yield (*x.shape[:2], *counts), at, inside, padded


def pool_by_loops(x, value, *geometry):
    result = None
    for shape, at, inside, padded in windows(x, *geometry):
        result = np.zeros(shape) if result is None else result
        result[at] = value(inside, padded)
    return result


CASES = [
    # x, kernel, stride, padding, dilation
    ((1, 1, 1), (1,), (1,), ((0, 0),), (1,)),
    ((2, 3, 7), (3,), (2,), ((1, 1),), (1,)),
    ((1, 2, 10), (2,), (3,), ((1, 0),), (2,)),
    ((1, 1, 6), (2,), (4,), ((0, 1),), (1,)),
    ((2, 2, 5, 7), (2, 3), (2, 3), ((0, 0), (1, 1)), (1, 1)),
    ((1, 1, 6, 6), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    ((1, 2, 4, 3, 5), (2, 1, 3), (1, 1, 2), ((1, 0), (0, 0), (2, 2)), (1, 1, 1)),
]


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_max_pool(run, rng, case, ceil_mode):
    shape, *geometry = case
    x = rng.standard_normal(shape)
    result = run(lambda g, x: g.max_pool(x, *geometry, ceil_mode=ceil_mode), x)
    wanted = pool_by_loops(x, lambda inside, _: max(inside, default=-np.inf), *geometry, ceil_mode)
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_avg_pool(run, rng, case, ceil_mode, include):
    shape, *geometry = case
    x = rng.standard_normal(shape)
    result = run(lambda g, x: g.avg_pool(
        x, *geometry, ceil_mode=ceil_mode, count_include_pad=include), x)  # fmt: skip
    wanted = pool_by_loops(
        x,
        lambda inside, padded: sum(inside) / max(padded if include else len(inside), 1),
        *geometry,
        ceil_mode,
    )
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float16"])
def test_max_pool_of_other_dtypes(run, rng, dtype):
    x = (rng.standard_normal((1, 2, 6)) * 50).astype(np.int8).astype(dtype)
    result = run(lambda g, x: g.max_pool(x, 3, 1, padding=1), x)
    assert result.dtype == np.dtype(dtype)
    padded = [x[..., max(i - 1, 0) : i + 2].max(-1) for i in range(6)]
    np.testing.assert_array_equal(result, np.stack(padded, -1))


def test_nan_wins(run):
    x = np.array([[[1.0, np.nan, 2.0, 3.0]]])
    np.testing.assert_array_equal(run(lambda g, x: g.max_pool(x, 2), x), [[[np.nan, 3.0]]])


def test_stride_is_the_kernel_and_same_padding_covers(run):
    x = np.arange(7.0).reshape(1, 1, 7)
    np.testing.assert_array_equal(run(lambda g, x: g.max_pool(x, 3), x), [[[2, 5]]])
    same = run(lambda g, x: g.max_pool(x, 3, 2, padding="same"), x)
    np.testing.assert_array_equal(same, [[[1, 3, 5, 6]]])


def test_ceil_mode_may_leave_one_window_that_hangs_over(run):
    x = np.array([[[1.0, 2.0]]])
    np.testing.assert_array_equal(run(lambda g, x: g.max_pool(x, 3, 2, ceil_mode=True), x), [[[2]]])
    mean = run(lambda g, x: g.avg_pool(x, 3, 2, ceil_mode=True), x)
    np.testing.assert_array_equal(mean, [[[1.5]]])


def test_zero_batch(run):
    assert run(lambda g, x: g.avg_pool(x, 2), np.ones((0, 3, 4, 4))).shape == (0, 3, 2, 2)


def test_global_pools(run, rng):
    x = rng.standard_normal((2, 3, 4, 5))
    np.testing.assert_allclose(
        run(lambda g, x: g.global_avg_pool(x), x), x.mean((2, 3), keepdims=True), rtol=1e-12
    )
    np.testing.assert_array_equal(
        run(lambda g, x: g.global_max_pool(x), x), x.max((2, 3), keepdims=True)
    )


def test_symbolic_sizes(run, type_of):
    n, h = Variable("n", 1, 8), Variable("h", 2, 64)
    assert type_of(lambda g, x: g.max_pool(x, 2), (n, 3, 2 * h, 6)) == "f32[n,3,h,3]"
    assert type_of(lambda g, x: g.max_pool(x, 3, 1, padding=1), (n, 3, h)) == "f32[n,3,h]"
    assert type_of(lambda g, x: g.global_avg_pool(x), (n, 3, h, h)) == "f32[n,3,1,1]"
    for size in (2, 3, 9):
        x = np.arange(float(size)).reshape(1, 1, size)
        result = run(lambda g, x: g.max_pool(x, 2, 2, ceil_mode=True), x, shapes=[(n, 1, h)])
        assert result.shape == (1, 1, (size + 1) // 2)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 3), {"kernel": 2}, "1 to 3 spatial axes"),
        ((1, 3, 1), {"kernel": 2}, "a window of 2 positions does not fit on 1"),
        ((1, 3, 5), {"kernel": 2, "padding": 2}, "nothing but padding"),
        ((1, 3, 5), {"kernel": 0}, "kernel must be at least 1"),
        ((1, 3, 5), {"kernel": (2, 2)}, "kernel .* has 2 entries for 1"),
    ],
)
@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_pools_refuse(name, shape, options, message):
    g = Graph()
    with pytest.raises(GraphError, match=message):
        getattr(g, name)(g.input("x", shape), **options)


def test_pools_refuse_dtypes():
    g = Graph()
    with pytest.raises(GraphError, match="expected floats, got int32"):
        g.avg_pool(g.input("i", (1, 1, 4), "int32"), 2)
    with pytest.raises(GraphError, match="expected numbers, got bool"):
        g.max_pool(g.input("b", (1, 1, 4), "bool"), 2)


def test_equal_bins_are_ordinary_pools():
    g = Graph()
    x, open_ = g.input("x", (2, 3, 12, 8)), g.input("y", (2, 3, Variable("n", 1, 9), 8))
    for value, bins, ops in (
        (x, 1, {"mean", "max"}),
        (open_, 1, {"mean", "max"}),
        (x, (4, 2), {"avg_pool", "max_pool"}),
    ):
        made = {g.adaptive_avg_pool(value, bins), g.adaptive_max_pool(value, bins)}
        assert {result.node.op.name for result in made} == ops


def test_adaptive_pools_against_loops(run, rng):
    x = rng.standard_normal((2, 3, 7, 5))
    x[0, 0, 2, 2:4] = 9.0
    for bins in ((3, 2), (7, 1), (9, 5)):
        mean, best, places = run(
            lambda g, x, b=bins: (
                g.adaptive_avg_pool(x, b),
                *g.adaptive_max_pool(x, b, return_indices=True),
            ),
            x,
        )
        for i, j in np.ndindex(*bins):
            rows = slice(i * 7 // bins[0], -(-(i + 1) * 7 // bins[0]))
            columns = slice(j * 5 // bins[1], -(-(j + 1) * 5 // bins[1]))
            seen = x[:, :, rows, columns]
            np.testing.assert_allclose(mean[:, :, i, j], seen.mean((2, 3)))
            np.testing.assert_array_equal(best[:, :, i, j], seen.max((2, 3)))
            first = seen.reshape(2, 3, -1).argmax(2)
            width = seen.shape[3]
            truth = (first // width + rows.start) * 5 + first % width + columns.start
            np.testing.assert_array_equal(places[:, :, i, j], truth)


def test_positions_of_maxima(run):
    x = np.array([[[[1, 5, 5, np.nan], [2, 0, np.nan, 3], [-np.inf, -np.inf, 1, 1]]]])
    best, places = run(lambda g, x: g.max_pool(x, 2, 1, 1, return_indices=True), x)
    assert places[0, 0].tolist() == [
        [0, 1, 1, 3, 3],
        [4, 1, 6, 6, 3],
        [4, 4, 6, 6, 7],
        [8, 8, 10, 10, 11],
    ]
    np.testing.assert_array_equal(best.ravel(), x.ravel()[places.ravel()])
    back = run(lambda g, v, i: g.max_unpool(v, i, (3, 4)), best[..., :1, :], places[..., :1, :])
    np.testing.assert_array_equal(back, [[[[1, 5, 0, np.nan], [0] * 4, [0] * 4]]])


def test_other_pools(run, rng):
    x = rng.standard_normal((1, 2, 5, 6))
    got = run(lambda g, x: g.avg_pool(x, 2, divisor_override=3), x)
    windows = x[:, :, :4].reshape(1, 2, 2, 2, 3, 2)
    np.testing.assert_allclose(got, windows.sum((3, 5)) / 3)
    for p in (1, 2, 3):
        got = run(lambda g, x, p=p: g.lp_pool(x, 2, p=p), x)
        np.testing.assert_allclose(got, (abs(windows) ** p).sum((3, 5)) ** (1 / p))
    g = Graph()
    x = g.input("x", (1, 2, 0, 6))
    with pytest.raises(GraphError, match="is empty"):
        g.adaptive_avg_pool(x, 2)
    with pytest.raises(GraphError, match="2 sizes for 1 spatial axes"):
        g.adaptive_max_pool(g.input("y", (1, 2, 3)), (2, 2))
    with pytest.raises(GraphError, match="divisor_override is not 0"):
        g.avg_pool(g.input("z", (1, 2, 3)), 2, divisor_override=0)
