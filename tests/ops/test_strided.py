"""Windows, diagonals and strided views: against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


@pytest.fixture
def x(rng):
    return rng.standard_normal((3, 4, 6)).astype(np.float32)


def test_strided_views(run, x):
    flat = x.reshape(-1)
    for shape, strides, offset in [
        ((5, 8), (1, 2), 3),
        ((4, 6, 3), (6, 1, 24), 0),
        ((2, 5), (0, -1), 10),
        ((), (), 7),
        ((0, 3), (9, 9), 0),
    ]:
        got = run(lambda g, x, a=(shape, strides, offset): g.as_strided(x, *a), x)
        wanted = np.lib.stride_tricks.as_strided(flat[offset:], shape, [4 * s for s in strides])
        np.testing.assert_array_equal(got, wanted)
    g = Graph()
    with pytest.raises(GraphError, match="reaches beyond axis 0"):
        g.as_strided(g.input("x", (4,)), (3,), (2,))
    with pytest.raises(GraphError, match="reaches beyond"):
        g.as_strided(g.input("y", (4,)), (3,), (-1,), 1)
    n = Variable("n", 0, 9)
    with pytest.raises(GraphError, match="the sign of a step is fixed"):
        g.as_strided(g.input("z", (n, 9)), (3,), (n - 4,), 5)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_windows(run, x, axis):
    size = x.shape[axis]
    n = Variable("n", 1, 9)
    symbolic = [n if a == axis % 3 else d for a, d in enumerate(x.shape)]
    for length in (0, 1, 2, size):
        for step in (1, 2):
            wanted = np.lib.stride_tricks.sliding_window_view(x, max(length, 1), axis)
            wanted = wanted[(slice(None),) * (axis % 3) + (slice(None, None, step),)]
            if length:
                shapes = [tuple(symbolic)] if length == 1 else None
                got = run(lambda g, x, a=(length, step): g.unfold(x, axis, *a), x, shapes=shapes)
                np.testing.assert_array_equal(got, wanted)
    g = Graph()
    with pytest.raises(GraphError, match="does not fit on 2"):
        g.unfold(g.input("x", (2,)), 0, 3)


def test_no_windows_where_a_size_turns_out_too_small(run, x):
    n = Variable("n", 0, 9)
    for length in (0, 1, 2, 3):
        got = run(
            lambda g, x: (g.unfold(x, 0, 3, 2), g.im2col(g.expand_dims(x, (0, 1)), (3, 1))),
            x[0, :length],
            shapes=[(n, 6)],
        )
        assert got[0].shape == (int(length == 3), 6, 3)
        assert got[1].shape == (1, 3, 6 * int(length == 3))


def folded(columns, sizes, kernel, stride, padding, dilation):
    """The sum of windows, tap by tap."""
    n, channels = columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1])
    padded = np.zeros((n, channels, sizes[0] + 2 * padding, sizes[1] + 2 * padding), columns.dtype)
    counts = [
        (p - dilation * (k - 1) - 1) // stride + 1
        for p, k in zip(padded.shape[2:], kernel, strict=True)
    ]
    blocks = columns.reshape(n, channels, *kernel, *counts)
    for place in np.ndindex(*kernel):
        rows, cols = (
            slice(p * dilation, p * dilation + stride * (c - 1) + 1, stride)
            for p, c in zip(place, counts, strict=True)
        )
        padded[:, :, rows, cols] += blocks[:, :, place[0], place[1]]
    return padded[:, :, padding : padding + sizes[0], padding : padding + sizes[1]]


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2)])
def test_columns_and_back(run, rng, dtype, stride, padding, dilation):
    x = rng.integers(-4, 5, (2, 3, 7, 6)).astype(dtype)
    columns = run(lambda g, x: g.im2col(x, (3, 2), stride, padding, dilation), x)
    wide = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    taps = [
        wide[:, :, i * dilation :, j * dilation :][
            :,
            :,
            : wide.shape[2] - 2 * dilation : stride,
            : wide.shape[3] - dilation : stride,
        ]
        for i in range(3)
        for j in range(2)
    ]
    np.testing.assert_array_equal(columns, np.stack(taps, 2).reshape(2, 18, -1))
    image = run(lambda g, c: g.col2im(c, (7, 6), (3, 2), stride, padding, dilation), columns)
    np.testing.assert_array_equal(image, folded(columns, (7, 6), (3, 2), stride, padding, dilation))


def test_a_nan_stays_in_its_place(run):
    columns = np.zeros((1, 4, 4), np.float32)
    columns[0, 3, 0] = np.nan
    image = run(lambda g, c: g.col2im(c, (3, 3), 2), columns)
    np.testing.assert_array_equal(np.argwhere(np.isnan(image)), [[0, 0, 1, 1]])


@pytest.mark.parametrize("offset", [-5, -1, 0, 2, 6])
def test_diagonals(run, x, rng, offset):
    for axes in ((0, 1), (2, 0), (-2, -1)):
        wanted = np.diagonal(x, offset, *axes)
        got = run(lambda g, x, a=axes: g.diagonal(x, offset, *a), x)
        np.testing.assert_array_equal(got, wanted)
        traced = run(lambda g, x, a=axes: g.trace(x, offset, *a), x)
        np.testing.assert_allclose(traced, np.trace(x, offset, *axes), rtol=1e-5, atol=1e-6)
        new = rng.standard_normal(wanted.shape).astype(np.float32)
        replaced = x.copy()
        moved = np.moveaxis(replaced, axes, (-2, -1))
        for i in range(wanted.shape[-1]):
            moved[..., i + max(-offset, 0), i + max(offset, 0)] = new[..., i]
        got = run(lambda g, x, n, a=axes: g.diagonal_scatter(x, n, offset, *a), x, new)
        np.testing.assert_array_equal(got, replaced)
    got = run(lambda g, x: g.diag_embed(x, offset, 0, -1), x[0])
    wanted = np.stack([np.diag(row, offset) for row in x[0]])
    np.testing.assert_array_equal(got, np.moveaxis(wanted, 1, 0))


def test_symbolic_diagonals(run, x):
    n = Variable("n", 1, 9)
    got = run(lambda g, x: (g.diagonal(x, 1), g.diag_embed(x)), x[0], shapes=[(4, n)])
    np.testing.assert_array_equal(got[0], np.diagonal(x[0], 1))
    np.testing.assert_array_equal(got[1][2], np.diag(x[0, 2]))


def test_indices_of_triangles(run):
    for offset in (-2, 0, 1):
        got = run(
            lambda g, x, o=offset: (g.tril_indices(4, 3, o), g.triu_indices(3, 5, o)), np.zeros(1)
        )
        np.testing.assert_array_equal(got[0], np.tril_indices(4, offset, 3))
        np.testing.assert_array_equal(got[1], np.triu_indices(3, offset, 5))
    n = Variable("n", 0, 9)
    got = run(
        lambda g, x: (g.tril_indices(n, 3, -1), g.triu_indices(3, n)), np.zeros(5), shapes=[(n,)]
    )
    np.testing.assert_array_equal(got[0], np.tril_indices(5, -1, 3))
    np.testing.assert_array_equal(got[1], np.triu_indices(3, 0, 5))


def test_turns(run, x):
    for k in range(-1, 5):
        got = run(lambda g, x, k=k: g.rot90(x, k, (0, 2)), x)
        np.testing.assert_array_equal(got, np.rot90(x, k, (0, 2)))


def test_rolls(run, x):
    n = Variable("n", 1, 9)
    for shift in (0, 1, -2, 5, -13):
        for shapes in (None, [(3, n, 6)]):
            got = run(lambda g, x, s=shift: g.roll(x, s, 1), x, shapes=shapes)
            np.testing.assert_array_equal(got, np.roll(x, shift, 1))
    got = run(lambda g, x: (g.roll(x, 5), g.roll(x, (1, -1), (0, 2))), x)
    np.testing.assert_array_equal(got[0], np.roll(x, 5))
    np.testing.assert_array_equal(got[1], np.roll(x, (1, -1), (0, 2)))
