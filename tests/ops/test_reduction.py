"""Reductions and scans against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError, VariableError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable

AXES = [None, 0, -1, (0, 2), (1,), ()]
REDUCTIONS = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "any": np.any,
    "all": np.all,
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_floats(run, rng, name, axis, keepdims, dtype):
    from ostinato.dtypes import DType

    x = rng.uniform(0.5, 1.5, (2, 3, 4)).astype(DType.parse(dtype).numpy)
    got = run(lambda g, x: getattr(g, name)(x, axis=axis, keepdims=keepdims), x)
    wanted = REDUCTIONS[name](x.astype(np.float64), axis=axis, keepdims=keepdims)
    assert got.dtype == (bool if name in ("any", "all") else x.dtype)
    assert got.shape == wanted.shape
    tolerance = {"bfloat16": 8e-3, "float16": 1e-3, "float32": 1e-7, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(got.astype(float), wanted, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_sums_and_products_of_integers_keep_their_dtype(run, rng, dtype):
    x = rng.integers(1, 100, (4, 6)).astype(dtype)
    for name in ("sum", "prod", "cumsum", "cumprod"):
        got = run(lambda g, x, name=name: getattr(g, name)(x, axis=1), x)
        np.testing.assert_array_equal(got, getattr(np, name)(x, axis=1, dtype=dtype), strict=True)
    assert run(lambda g, x: g.mean(x), x).dtype == np.float32
    np.testing.assert_allclose(run(lambda g, x: g.mean(x), x), x.mean(), rtol=1e-6)
    np.testing.assert_array_equal(run(lambda g, x: g.max(x, 0), x), x.max(0), strict=True)


def test_bools_are_counted(run):
    x = np.array([True, False, True])
    total, running, some, every = run(lambda g, x: (g.sum(x), g.cumsum(x), g.any(x), g.all(x)), x)
    assert (total, total.dtype) == (2, np.int64)
    np.testing.assert_array_equal(running, [1, 1, 2])
    assert some
    assert not every


def test_var_with_correction(run, rng):
    x = rng.standard_normal((3, 5))
    got, root = run(lambda g, x: (g.var(x, 1, correction=1), g.std(x, correction=1.0)), x)
    np.testing.assert_allclose(got, x.var(1, ddof=1))
    np.testing.assert_allclose(root, x.std(ddof=1))
    assert np.isnan(run(lambda g, x: g.var(x, correction=1), np.array([2.0])))


def test_means_of_large_halves_do_not_overflow(run):
    x = np.full((3000,), 60000, np.float16)
    mean, var, norm = run(lambda g, x: (g.mean(x), g.var(x), g.norm(x, np.inf)), x)
    assert (mean, var, norm) == (60000, 0, 60000)


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_logsumexp(run, rng, axis):
    x = rng.uniform(-700, 700, (2, 3, 4))
    for keepdims in (False, True):
        got = run(lambda g, x, k=keepdims: g.logsumexp(x, axis=axis, keepdims=k), x)
        high = x.max(axis=axis, keepdims=True)
        wanted = np.log(np.exp(x - high).sum(axis=axis, keepdims=True)) + high
        np.testing.assert_allclose(got, wanted.reshape(got.shape))


def test_logsumexp_of_infinities(run):
    inf = np.inf
    x = np.array([[-inf, -inf], [inf, 0], [inf, -inf], [1e4, 1e4]], np.float32)
    got = run(lambda g, x: g.logsumexp(x, axis=1), x)
    np.testing.assert_allclose(got, [-inf, inf, inf, 1e4 + np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("order", [1, 2, 3, 0.5, np.inf, -np.inf])
def test_norm(run, rng, order):
    x = rng.standard_normal((4, 5))
    got = run(lambda g, x: g.norm(x, order, axis=1), x)
    np.testing.assert_allclose(got, np.linalg.norm(x, order, axis=1))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_extremes(run, rng, name):
    x = rng.integers(0, 5, (3, 4, 5)).astype(np.float32)
    function = getattr(np, name)
    for axis in (None, 0, 1, -1):
        for keep in (False, True):
            got = run(lambda g, x, a=axis, k=keep: getattr(g, name)(x, a, k), x)
            np.testing.assert_array_equal(got, function(x, axis, keepdims=keep), strict=True)
    x[1, 2, 3] = np.nan
    assert run(lambda g, x: getattr(g, name)(x), x) == 1 * 20 + 2 * 5 + 3


def test_scans(run, rng):
    x = rng.uniform(0.5, 1.5, (3, 4))
    for name, neutral in (("cumsum", 0), ("cumprod", 1)):
        function = getattr(np, name)
        for axis in (0, 1):
            plain, back, later, both = run(
                lambda g, x, f=name, a=axis: (
                    getattr(g, f)(x, a),
                    getattr(g, f)(x, a, reverse=True),
                    getattr(g, f)(x, a, exclusive=True),
                    getattr(g, f)(x, a, exclusive=True, reverse=True),
                ),
                x,
            )
            first = np.full_like(np.take(x, [0], axis), neutral)
            rest = np.take(x, range(x.shape[axis] - 1), axis)
            np.testing.assert_allclose(plain, function(x, axis))
            np.testing.assert_allclose(back, np.flip(function(np.flip(x, axis), axis), axis))
            shifted = function(np.concatenate([first, rest], axis), axis)
            np.testing.assert_allclose(later, shifted)
            rest = np.take(np.flip(x, axis), range(x.shape[axis] - 1), axis)
            shifted = function(np.concatenate([first, rest], axis), axis)
            np.testing.assert_allclose(both, np.flip(shifted, axis))


def test_nan_is_the_extreme(run):
    x = np.array([1, np.nan, 3], np.float32)
    high, low = run(lambda g, x: (g.max(x), g.min(x)), x)
    assert np.isnan(high)
    assert np.isnan(low)


def test_reductions_of_nothing(run):
    x = np.zeros((0, 3), np.float32)
    total, product, some, every, mean, lse, none = run(
        lambda g, x: (
            g.sum(x, 0),
            g.prod(x, 0),
            g.any(x, 0),
            g.all(x, 0),
            g.mean(x, 0),
            g.logsumexp(x, 1),
            g.max(x, 1),
        ),
        x,
    )
    np.testing.assert_array_equal(total, [0, 0, 0])
    np.testing.assert_array_equal(product, [1, 1, 1])
    assert not some.any()
    assert every.all()
    assert np.isnan(mean).all()
    assert lse.shape == none.shape == (0,)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_the_extreme_of_an_empty_axis_is_refused(name):
    g = Graph()
    with pytest.raises(GraphError, match=rf"f32\[0,3\] has no elements .* there is no {name}"):
        getattr(g, name)(g.input("x", (0, 3)), axis=0)


@pytest.mark.parametrize("method", ["max", "min", "argmax"])
def test_an_axis_that_turns_out_empty(run, method):
    n = Variable("n", 0, 4)
    x = np.zeros((0, 3), np.int32)
    with pytest.raises(
        VariableError, match=f"no elements along axis 0, so there is no .*{method[-3:]}"
    ):
        run(lambda g, x: getattr(g, method)(x, 0), x, shapes=[(n, 3)])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_symbolic_means(run, rng, dtype):
    n = Variable("n", 1, 16)
    x = rng.standard_normal((5, 3)).astype(dtype)
    mean, var = run(lambda g, x: (g.mean(x), g.var(x, 0, correction=1)), x, shapes=[(n, 3)])
    np.testing.assert_allclose(mean, x.astype(float).mean(), rtol=1e-3)
    np.testing.assert_allclose(var, x.astype(float).var(0, ddof=1), rtol=1e-3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g, x: g.sum(x, 2), "axis 2 is out of range for 2 dimensions"),
        (lambda g, x: g.sum(x, (0, -2)), "names a dimension twice"),
        (lambda g, x: g.sum(x, 1.0), "an axis is an int"),
        (lambda g, x: g.max(x > 0), "expected a numeric operand, got bool"),
        (lambda g, x: g.norm(x, 0), "ord is a number other than 0"),
        (lambda g, x: g.cumsum(x, 5), "axis 5 is out of range"),
        (lambda g, x: g.argmax(x, (0, 1)), "an axis is an int"),
    ],
)
def test_reductions_that_make_no_sense(build, message):
    g = Graph()
    with pytest.raises(GraphError, match=message):
        build(g, g.input("x", (2, 3)))
