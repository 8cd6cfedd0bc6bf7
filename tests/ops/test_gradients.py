"""Gradients against differences of the forward methods, and statistics against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato import reference
from ostinato.errors import GraphError
from ostinato.ops.builder import Graph

STEP = 1e-6


def evaluated(build, *arrays):
    g = Graph("test")
    results = build(g, *(g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)))
    g.set_outputs(list(results) if isinstance(results, tuple) else [results])
    return reference.evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})


def check(forward, backward, *leaves):
    """``backward(g, grad, *leaves)`` gives the slopes of ``sum(grad * forward(g, *leaves))``."""
    (result,) = evaluated(forward, *leaves)
    grad = np.random.default_rng(5).standard_normal(result.shape)
    found = evaluated(backward, grad, *leaves)
    for index, mine in enumerate(found[: len(leaves)]):
        for place in list(np.ndindex(leaves[index].shape))[::3]:
            ends = []
            for sign in (1, -1):
                moved = [leaf.copy() for leaf in leaves]
                moved[index][place] += sign * STEP
                ends.append(np.sum(grad * evaluated(forward, *moved)[0]))
            slope = (ends[0] - ends[1]) / (2 * STEP)
            np.testing.assert_allclose(mine[place], slope, rtol=1e-5, atol=1e-7)


def test_convolution(rng):
    for stride, padding, dilation, groups in ((2, 1, 1, 1), ((1, 3), ((0, 2), (1, 0)), 2, 2)):
        geometry = (stride, padding, dilation, groups)
        x, w = rng.standard_normal((2, 4, 6, 7)), rng.standard_normal((4, 4 // groups, 3, 2))
        check(
            lambda g, x, w, geo=geometry: g.conv(x, w, None, *geo),
            lambda g, d, x, w, geo=geometry: g.conv_backward(d, x, w, *geo)[:2],
            x,
            w,
        )


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pools(rng, ceil_mode):
    x, size = rng.standard_normal((1, 2, 5, 6)), (5, 6)
    for include in (False, True):
        pool = (3, 2, 1, ceil_mode, include)
        check(
            lambda g, x, p=pool: g.avg_pool(x, p[0], p[1], p[2], 1, p[3], p[4]),
            lambda g, d, x, p=pool: g.avg_pool_backward(d, size, *p),
            x,
        )

    def backward(g, d, x):
        _, places = g.max_pool(x, 3, 2, 1, 1, ceil_mode, return_indices=True)
        return g.max_pool_backward(d, places, size)

    check(lambda g, x: g.max_pool(x, 3, 2, 1, 1, ceil_mode), backward, x)


def test_activations(rng):
    x = rng.standard_normal((3, 4))
    for approximate in (False, True):
        check(
            lambda g, x, a=approximate: g.gelu(x, a),
            lambda g, d, x, a=approximate: g.gelu_backward(d, x, a),
            x,
        )
    check(lambda g, x: g.silu(x), lambda g, d, x: g.silu_backward(d, x), x)
    for name in ("softmax", "log_softmax", "sigmoid", "tanh"):
        axis = {"axis": 0} if "softmax" in name else {}

        def forward(g, x, name=name, axis=axis):
            return getattr(g, name)(x, **axis)

        def backward(g, d, x, name=name, axis=axis):
            return getattr(g, f"{name}_backward")(d, getattr(g, name)(x, **axis), **axis)

        check(forward, backward, x)


def test_norms(rng):
    x = rng.standard_normal((3, 4, 2))
    w, b = rng.standard_normal((4, 2)), rng.standard_normal((4, 2))
    check(
        lambda g, x, w, b: g.layer_norm(x, w, b),
        lambda g, d, x, w, b: g.layer_norm_backward(
            d, x, *g.native_layer_norm(x, w, b)[1:], w, axis=1
        ),
        x,
        w,
        b,
    )
    w, b = w[:, 0], b[:, 0]
    check(
        lambda g, x, w, b: g.group_norm(x, 2, w, b),
        lambda g, d, x, w, b: g.group_norm_backward(
            d, x, *g.native_group_norm(x, 2, w, b)[1:], 2, w
        ),
        x,
        w,
        b,
    )
    check(
        lambda g, x, w, b: g.batch_norm_training(x, w, b)[0],
        lambda g, d, x, w, b: g.batch_norm_backward(d, x, *g.batch_norm_training(x, w, b)[1:], w),
        x,
        w,
        b,
    )
    out, mean, inverse = evaluated(lambda g, x: g.batch_norm_training(x), x)
    np.testing.assert_allclose(mean, x.mean((0, 2)), rtol=1e-12)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(x.var((0, 2)) + 1e-5), rtol=1e-12)
    np.testing.assert_allclose(out, (x - mean[:, None]) * inverse[:, None], rtol=1e-12)


def test_attention(rng):
    q = rng.standard_normal((1, 4, 3, 2))
    k, v = rng.standard_normal((2, 1, 2, 4, 2))
    attrs = {"causal": True, "window": 3, "softcap": 2.0}

    def backward(g, d, q, k, v):
        results = g.attention(q, k, v, **attrs, return_logsumexp=True)
        return g.attention_backward(d, q, k, v, *results, **attrs)

    check(lambda g, q, k, v: g.attention(q, k, v, **attrs), backward, q, k, v)


def test_attention_of_many_queries_is_computed_in_blocks(rng):
    g = Graph()
    q = g.input("q", (1, 8, 2048, 4))
    _, sums = g.attention(q, q, q, return_logsumexp=True)
    g.set_outputs([sums])
    assert max(node.outputs[0].type.size for node in g.nodes) <= 2**22
    q = rng.standard_normal((1, 2, 5, 3)).astype(np.float32)
    _, got = evaluated(lambda g, q: g.attention(q, q, q, return_logsumexp=True), q)
    scores = np.einsum("bhqd,bhkd->bhqk", q, q) / np.sqrt(3)
    np.testing.assert_allclose(got, np.log(np.exp(scores).sum(-1)), rtol=1e-5)


def test_a_query_that_attends_to_nothing(rng):
    q = rng.standard_normal((1, 1, 2, 3))
    mask = np.array([[True, False], [False, False]])
    out, sums = evaluated(
        lambda g, q, m: g.attention(q, q, q, mask=m, return_logsumexp=True), q, mask
    )
    assert sums[0, 0, 1] == -np.inf
    assert not out[0, 0, 1].any()
    found = evaluated(
        lambda g, d, q, m, o, s: g.attention_backward(d, q, q, q, o, s, mask=m),
        np.ones_like(q), q, mask, out, sums,
    )  # fmt: skip
    assert all(np.isfinite(part).all() for part in found)
    assert not found[0][0, 0, 1].any()


def test_embedding():
    ids = np.array([[1, 3, 1], [0, 2, 3]])
    grad = np.arange(12.0).reshape(2, 3, 2)
    truth = np.zeros((5, 2))
    np.add.at(truth, ids, grad)
    (got,) = evaluated(lambda g, d, i: g.embedding_backward(d, i, 5), grad, ids)
    np.testing.assert_array_equal(got, truth)
    truth[3] = 0
    (got,) = evaluated(lambda g, d, i: g.embedding_backward(d, i, 5, 3), grad, ids)
    np.testing.assert_array_equal(got, truth)


def test_refusals():
    g = Graph()
    grad, ids = g.input("grad", (2, 3, 4)), g.input("ids", (3, 2), "int64")
    with pytest.raises(GraphError, match=r"expected a gradient"):
        g.embedding_backward(grad, ids, 5)
    with pytest.raises(GraphError, match="expected positions and sizes"):
        g.max_pool_backward(grad, ids, (7,))
    with pytest.raises(GraphError, match="expected floats"):
        g.silu_backward(grad, ids)
