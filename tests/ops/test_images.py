"""Resizing and sampling against weights that are written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


def kernel(name, a=-0.75):
    if name == "linear":
        return lambda d: max(1 - abs(d), 0.0)

    def cubic(d):
        d = abs(d)
        if d <= 1:
            return ((a + 2) * d - (a + 3)) * d * d + 1
        return ((d - 5) * d + 8) * d * a - 4 * a if d < 2 else 0.0

    return cubic


def weights(size, target, name, *, align_corners=False, antialias=False):
    """The matrix that resizes an axis, as PyTorch documents it."""
    scale = size / target
    if align_corners:
        scale = (size - 1) / max(target - 1, 1)
    stretch = max(scale, 1.0) if antialias else 1.0
    f = kernel(name, -0.5 if antialias else -0.75)
    matrix = np.zeros((target, size))
    for i in range(target):
        at = i * scale if align_corners else (i + 0.5) * scale - 0.5
        for j in range(-8 * size - 8, 9 * size + 8):
            weight = f((j - at) / stretch)
            if antialias and not 0 <= j < size:
                continue
            matrix[i, min(max(j, 0), size - 1)] += weight
    return matrix / matrix.sum(1, keepdims=True)


@pytest.mark.parametrize("attrs", [{}, {"align_corners": True}, {"antialias": True}])
@pytest.mark.parametrize(("mode", "name"), [("bilinear", "linear"), ("bicubic", "cubic")])
def test_smooth(run, rng, mode, name, attrs):
    x = rng.standard_normal((2, 1, 7, 4))
    for sizes in ((3, 9), (7, 1), (14, 3)):
        got = run(lambda g, x, s=sizes: g.resize(x, s, mode=mode, **attrs), x)
        rows, columns = (weights(n, t, name, **attrs) for n, t in zip((7, 4), sizes, strict=True))
        np.testing.assert_allclose(got, rows @ x @ columns.T, rtol=1e-12, atol=1e-12)


def test_nearest(run):
    x = np.arange(7.0).reshape(1, 1, 7)
    for target in (1, 3, 7, 10, 21):
        got = run(lambda g, x, t=target: (g.resize(x, t), g.resize(x, t, mode="nearest-exact")), x)
        places = np.arange(target) * 7 / target, (np.arange(target) + 0.5) * 7 / target
        for mine, at in zip(got, places, strict=True):
            np.testing.assert_array_equal(mine[0, 0], np.floor(at + 1e-9))


def test_whole_factors_need_no_gather():
    g = Graph()
    g.resize(g.input("x", (1, 2, 5, 4)), scales=3.0)
    assert "take" not in {node.op.name for node in g.nodes}


def test_scales_map_positions(run):
    x = np.arange(5.0).reshape(1, 1, 5)
    got = run(lambda g, x: g.resize(x, scales=1.5, mode="linear"), x)
    at = np.clip((np.arange(7) + 0.5) / 1.5 - 0.5, 0, 4)
    np.testing.assert_allclose(got[0, 0], at)
    got = run(lambda g, x: g.resize(x, 6, 1.5, mode="linear"), x)
    np.testing.assert_allclose(got[0, 0], at[:6])


def test_area_is_adaptive_and_integers_are_rounded(run):
    x = np.arange(12).reshape(1, 1, 3, 4)
    area = run(lambda g, x: g.resize(x, (1, 2), mode="area"), x.astype(float))
    np.testing.assert_allclose(area, [[[[4.5, 6.5]]]])
    got = run(lambda g, x: g.resize(x, (3, 7), mode="bilinear"), x.astype(np.uint8))
    assert got.dtype == np.uint8
    assert got[0, 0, 0].tolist() == [0, 0, 1, 2, 2, 3, 3]


def test_grid_sample(run, rng):
    x = rng.standard_normal((1, 2, 3, 4))
    columns, rows = [-0.9, 0.1, 1.4], [0.3, -1.2, 0.95]
    grid = np.array([[list(zip(columns, rows, strict=True))]])
    for align in (False, True):
        at = [
            [(v + 1) / 2 * (n - 1) if align else ((v + 1) * n - 1) / 2 for v in line]
            for line, n in ((rows, 3), (columns, 4))
        ]
        for padding in ("zeros", "border"):
            truth = np.zeros((2, 3))
            for i, (r, c) in enumerate(zip(*at, strict=True)):
                if padding == "border":
                    r, c = min(max(r, 0), 2), min(max(c, 0), 3)  # noqa: PLW2901
                for a in (math.floor(r), math.floor(r) + 1):
                    for b in (math.floor(c), math.floor(c) + 1):
                        if 0 <= a < 3 and 0 <= b < 4:
                            truth[:, i] += (1 - abs(r - a)) * (1 - abs(c - b)) * x[0, :, a, b]
            got = run(
                lambda g, x, y, p=padding, q=align: g.grid_sample(x, y, "bilinear", p, q), x, grid
            )
            np.testing.assert_allclose(got[0, :, 0], truth, rtol=1e-12, atol=1e-12)


def test_the_grid_of_no_change_is_the_image(run, rng):
    x = rng.standard_normal((2, 3, 4, 5))
    theta = np.broadcast_to(np.eye(2, 3), (2, 2, 3))
    for align in (False, True):
        got = run(
            lambda g, x, t, q=align: g.grid_sample(
                x, g.affine_grid(t, x.shape, q), align_corners=q
            ),
            x, theta,
        )  # fmt: skip
        np.testing.assert_allclose(got, x, rtol=1e-12, atol=1e-12)


def test_refusals():
    g = Graph()
    x, n = g.input("x", (1, 2, 3, 4)), Variable("n", 1, 9)
    with pytest.raises(GraphError, match=r"the mode is one of .* got 'soft'"):
        g.resize(x, 3, mode="soft")
    with pytest.raises(GraphError, match="expected sizes, or positive scales, got the scale None"):
        g.resize(x)
    with pytest.raises(GraphError, match="3 sizes for 2 axes"):
        g.resize(x, (1, 2, 3))
    with pytest.raises(GraphError, match="depends on a Variable: n; fix its size"):
        g.resize(g.input("y", (1, 2, n)), 3, mode="linear", antialias=True)
    with pytest.raises(GraphError, match=r"expected x \[N, C, \*spatial\] and a grid"):
        g.grid_sample(x, g.input("grid", (1, 5, 3)))
    with pytest.raises(GraphError, match="the padding mode is one of"):
        g.grid_sample(x, g.input("points", (1, 5, 5, 2)), padding_mode="wrap")
    with pytest.raises(GraphError, match=r"expected floats \[N, 2, 3\]"):
        g.affine_grid(x, (1, 2, 3, 4))
