"""Losses against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph

REDUCTIONS = {"none": lambda v: v, "sum": np.sum, "mean": np.mean}


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_distances(run, rng, reduction):
    x, y = rng.standard_normal((2, 4, 5))
    d = np.abs(x - y)
    truths = {
        "l1_loss": (d, {}),
        "mse_loss": (d * d, {}),
        "smooth_l1_loss": (np.where(d < 0.5, d * d, d - 0.25), {"beta": 0.5}),
        "huber_loss": (np.where(d <= 0.5, d * d / 2, 0.5 * (d - 0.25)), {"delta": 0.5}),
        "soft_margin_loss": (np.log1p(np.exp(-x * y)), {}),
    }
    for name, (truth, attrs) in truths.items():
        got = run(lambda g, x, y, n=name, a=attrs: getattr(g, n)(x, y, reduction, **a), x, y)
        np.testing.assert_allclose(got, REDUCTIONS[reduction](truth), rtol=1e-12)


def test_probabilities(run, rng):
    p, t = rng.uniform(0, 1, (2, 3, 4))
    p[0, :2], t[0, :2] = (0, 1), (1, 1)
    truth = -t * np.maximum(np.log(np.maximum(p, 1e-300)), -100)
    truth -= (1 - t) * np.maximum(np.log1p(-np.minimum(p, 1 - 1e-16)), -100)
    got = run(lambda g, p, t: g.binary_cross_entropy(p, t, reduction="none"), p, t)
    np.testing.assert_allclose(got, truth, rtol=1e-12)
    x = rng.standard_normal((3, 4)) * 300
    loss = run(lambda g, x, t: g.binary_cross_entropy_with_logits(x, t, reduction="none"), x, t)
    np.testing.assert_allclose(loss, np.maximum(x, 0) - x * t + np.log1p(np.exp(-abs(x))))
    t[1, 0] = 0.0
    divergence = np.where(t > 0, t * np.log(np.maximum(t, 1e-300)), 0) - t * x
    got = run(lambda g, x, t: g.kl_div(x, t, "batchmean"), x, t)
    np.testing.assert_allclose(got, divergence.sum() / 3, rtol=1e-12)


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3)])
def test_classes(run, rng, shape):
    axis = len(shape) > 1
    x = rng.standard_normal(shape)
    weight = rng.uniform(0.5, 2, 5)
    classes = rng.integers(0, 5, (shape[0], *shape[2:]) if axis else ())
    scores = np.moveaxis(x, int(axis), -1).reshape(-1, 5)
    scores = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    flat = classes.reshape(-1)
    ignored = int(flat[0]) if flat.size > 1 else -100
    used = flat != ignored
    factors = weight[flat] * used
    loss = -scores[np.arange(flat.size), flat] * factors
    smooth = -(scores * weight).sum(-1) * used
    for smoothing in (0.0, 0.3):
        total = (1 - smoothing) * loss + smoothing / 5 * smooth
        for reduction in REDUCTIONS:
            got = run(
                lambda g, x, t, w, r=reduction, s=smoothing: g.cross_entropy(
                    x, t, w, r, ignored, s
                ),
                x, classes, weight,
            )  # fmt: skip
            truth = {
                "none": total.reshape(classes.shape),
                "sum": total.sum(),
                "mean": total.sum() / factors.sum(),
            }
            np.testing.assert_allclose(got, truth[reduction], rtol=1e-12, atol=1e-14)


def test_refusals():
    g = Graph()
    x, t = g.input("x", (4, 5)), g.input("t", (3,), "int64")
    with pytest.raises(GraphError, match=r"the classes .* do not fit"):
        g.cross_entropy(x, t)
    with pytest.raises(GraphError, match="the reduction is none, sum or mean, got 'max'"):
        g.mse_loss(x, x, "max")
    with pytest.raises(GraphError, match="label_smoothing is from 0 to 1, got 2"):
        g.cross_entropy(x, t, label_smoothing=2)
