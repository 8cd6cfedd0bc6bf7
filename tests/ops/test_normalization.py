"""Softmax and the norms against plain NumPy, one slice at a time."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


def softmax(x):
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def standardized(x, eps):
    return (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + eps)


def close(got, want, tolerance=1e-11):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1,), 0), ((7,), -1), ((3, 5), 0), ((3, 5), 1), ((2, 3, 4), -2), ((0, 3), 1)],
)
def test_softmax(run, rng, shape, axis):
    x = rng.standard_normal(shape) * 10
    wanted = np.apply_along_axis(softmax, axis, x) if x.size else x
    close(run(lambda g, x: g.softmax(x, axis), x), wanted)
    close(run(lambda g, x: g.log_softmax(x, axis), x), np.log(wanted))


def test_softmax_of_extremes(run):
    x = np.array([[1e4, -1e4, 0], [-np.inf, 0, 0], [3e38, 3e38, -3e38]], np.float32)
    close(run(lambda g, x: g.softmax(x), x), [[1, 0, 0], [0, 0.5, 0.5], [0.5, 0.5, 0]], 1e-6)
    close(run(lambda g, x: g.log_softmax(x), x[:1]), [[0, -2e4, -1e4]], 1e-6)


def test_softmax_of_nothing(run):
    assert run(lambda g, x: g.softmax(x), np.ones((3, 0))).shape == (3, 0)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_norms_of_other_dtypes(run, rng, dtype):
    x = (rng.standard_normal((4, 64)) * 3 + 100).astype(dtype)
    w, b = (rng.standard_normal(64).astype(dtype) for _ in range(2))
    exact = np.stack([standardized(row, 1e-5) for row in x.astype(np.float64)])
    result = run(lambda g, *xs: g.layer_norm(*xs), x, w, b)
    assert result.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(
        result, (exact * w.astype(np.float64) + b.astype(np.float64)).astype(dtype)
    )
    close(run(lambda g, x: g.softmax(x), x), np.stack([softmax(r) for r in x.astype(float)]), 1e-3)


def test_weights_may_be_wider(run, rng):
    x, w = rng.standard_normal((3, 8)).astype(np.float16), rng.standard_normal(8).astype(np.float32)
    result = run(lambda g, x, w: g.rms_norm(x, w), x, w)
    assert result.dtype == np.float16
    wide = x.astype(np.float64)
    scale = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_array_equal(result, (wide * scale * w).astype(np.float16))


@pytest.mark.parametrize(
    ("shape", "trailing"), [((5, 7), 1), ((2, 3, 4), 2), ((2, 1), 1), ((0, 3), 1)]
)
@pytest.mark.parametrize("given", [(), ("weight",), ("weight", "bias"), ("bias",)])
def test_layer_norm(run, rng, shape, trailing, given):
    x = rng.standard_normal(shape) + 3
    inner = shape[len(shape) - trailing :]
    vectors = {name: rng.standard_normal(inner) for name in given}
    rows = x.reshape(-1, *inner)
    wanted = np.stack([standardized(r, 1e-3) for r in rows]) if x.size else rows
    wanted = wanted * vectors.get("weight", 1) + vectors.get("bias", 0)
    result = run(
        lambda g, x, *vs: g.layer_norm(
            x, **dict(zip(given, vs, strict=True)), eps=1e-3, normalized_shape=inner
        ),
        x,
        *vectors.values(),
    )
    close(result, wanted.reshape(shape))


def test_which_axes_are_normalized(run, rng):
    x = rng.standard_normal((2, 3, 4))
    last = np.apply_along_axis(standardized, -1, x, 1e-5)
    both = np.stack([standardized(row, 1e-5) for row in x])
    close(run(lambda g, x: g.layer_norm(x), x), last)
    close(run(lambda g, x: g.layer_norm(x, axis=1), x), both)
    close(run(lambda g, x: g.layer_norm(x, axis=-2), x), both)
    close(run(lambda g, x: g.layer_norm(x, np.ones((3, 4))), x), both)


def test_rms_norm(run, rng):
    x, w = rng.standard_normal((3, 5)), rng.standard_normal(5)
    plain = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    close(run(lambda g, x: g.rms_norm(x), x), plain)
    close(run(lambda g, x, w: g.rms_norm(x, w), x, w), plain * w)
    whole = x / np.sqrt((x**2).mean() + 0.1)
    close(run(lambda g, x: g.rms_norm(x, eps=0.1, axis=0), x), whole)


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (1, 6, 3, 2), (0, 6, 2)])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("given", [0, 1, 2])
def test_group_norm(run, rng, shape, groups, given):
    x = rng.standard_normal(shape)
    vectors = [rng.standard_normal(6) for _ in range(given)]
    wanted = np.zeros(shape)
    size = 6 // groups
    for n in range(shape[0]):
        for group in range(groups):
            part = slice(group * size, (group + 1) * size)
            wanted[n, part] = standardized(x[n, part], 1e-5)
    for combine, vector in zip((np.multiply, np.add), vectors, strict=False):
        wanted = combine(wanted, vector.reshape(6, *(1,) * (len(shape) - 2)))
    close(run(lambda g, x, *vs: g.group_norm(x, groups, *vs), x, *vectors), wanted)


def test_instance_norm_and_lone_bias(run, rng):
    x, b = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal(3)
    wanted = np.zeros_like(x)
    for n, c in np.ndindex(2, 3):
        wanted[n, c] = standardized(x[n, c], 1e-5)
    close(run(lambda g, x: g.instance_norm(x), x), wanted)
    shifted = wanted + b[:, None, None]
    close(run(lambda g, x, b: g.instance_norm(x, bias=b), x, b), shifted)
    close(run(lambda g, x, b: g.group_norm(x, 3, bias=b), x, b), shifted)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 1)])
@pytest.mark.parametrize("given", [0, 1, 2])
def test_batch_norm(run, rng, shape, given):
    x, mean = rng.standard_normal(shape), rng.standard_normal(3)
    vectors = [mean, rng.random(3) + 0.1, *(rng.standard_normal(3) for _ in range(given))]
    wanted = np.zeros(shape)
    for c in range(3):
        scale = vectors[2][c] if given else 1
        wanted[:, c] = (x[:, c] - mean[c]) / np.sqrt(vectors[1][c] + 1e-5) * scale
        wanted[:, c] += vectors[3][c] if given == 2 else 0
    close(run(lambda g, *xs: g.batch_norm(*xs), x, *vectors), wanted)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
def test_local_response_norm(run, rng, size):
    x = rng.standard_normal((2, 7, 3)) * 5
    wanted = np.zeros_like(x)
    for c in range(7):
        window = x[:, max(c - (size - 1) // 2, 0) : c + size // 2 + 1]
        wanted[:, c] = x[:, c] / (2 + 0.3 / size * (window**2).sum(1)) ** 0.6
    close(run(lambda g, x: g.local_response_norm(x, size, 0.3, 0.6, 2.0), x), wanted)


def test_l2_normalize(run, rng):
    x = rng.standard_normal((3, 4))
    close(run(lambda g, x: g.l2_normalize(x), x), x / np.linalg.norm(x, axis=1, keepdims=True))
    close(run(lambda g, x: g.l2_normalize(x, axis=None), x), x / np.linalg.norm(x))
    close(run(lambda g, x: g.l2_normalize(x), np.zeros((2, 3))), np.zeros((2, 3)))


def test_symbolic_sizes(run, rng, type_of):
    n, m = Variable("n", 1, 8), Variable("m", 1, 8)
    norms = [
        lambda g, x: g.softmax(x),
        lambda g, x: g.log_softmax(x, 2),
        lambda g, x: g.layer_norm(x),
        lambda g, x: g.rms_norm(x, axis=1),
        lambda g, x: g.group_norm(x, 2),
        lambda g, x: g.instance_norm(x),
        lambda g, x: g.batch_norm(x, np.zeros(4, np.float32), np.ones(4, np.float32)),
        lambda g, x: g.local_response_norm(x, 3),
        lambda g, x: g.l2_normalize(x),
    ]
    for build in norms:
        assert type_of(build, (n, 4, m)) == "f32[n,4,m]"
        run(build, rng.standard_normal((3, 4, 5)).astype(np.float32), shapes=[(n, 4, m)])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g, x: g.softmax(x, 3), "axis 3 is out of range for 3 dimensions"),
        (lambda g, x: g.softmax(g.cast(x, "int32")), "x is int32, not a float"),
        (lambda g, x: g.layer_norm(x, g.input("w", (5,))), r"does not end in the shape \[5\]"),
        (lambda g, x: g.layer_norm(x, g.input("w", ())), "does not end in the shape"),
        (lambda g, x: g.layer_norm(x, g.input("w", (4,)), axis=1), r"weight is f32\[4\], expected"),
        (lambda g, x: g.layer_norm(x, eps=-1.0), "eps is a finite number >= 0"),
        (lambda g, x: g.layer_norm(x, eps=float("nan")), "eps is a finite number"),
        (lambda g, x: g.group_norm(x, 4), "6 channels do not divide into 4 groups"),
        (lambda g, x: g.group_norm(x, 0), "num_groups must be at least 1"),
        (lambda g, x: g.group_norm(x, 2, g.input("w", (4,))), "weight is .* expected shape"),
        (lambda g, x: g.batch_norm(x, g.input("m", (4,)), g.input("v", (6,))), "mean is"),
        (lambda g, x: g.instance_norm(g.input("y", (2, 3))), "spatial"),
        (lambda g, x: g.local_response_norm(x, 0), "size is an int >= 1"),
        (lambda g, x: g.l2_normalize(x, axis=(0, 0)), "twice"),
    ],
)
def test_refusals(build, message):
    g = Graph()
    with pytest.raises(GraphError, match=message):
        build(g, g.input("x", (2, 6, 4)))
