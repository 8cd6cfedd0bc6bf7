"""Attention, rotary embedding and embedding against loops over heads and positions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


def attention_by_loops(q, k, v, mask=None, causal=False, window=None, scale=None, softcap=None):
    """One query at a time, over a list of the keys that it attends to."""
    batch, heads, queries, depth = q.shape
    keys, per_group = k.shape[2], heads // k.shape[1]
    result = np.zeros((batch, heads, queries, v.shape[3]))
    if mask is not None:
        mask = np.broadcast_to(mask, (batch, heads, queries, keys))
    for b, h, i in np.ndindex(batch, heads, queries):
        group, position = h // per_group, i + keys - queries
        scores = {}
        for j in range(keys):
            score = q[b, h, i] @ k[b, group, j] * (1 / math.sqrt(depth) if scale is None else scale)
            if softcap is not None:
                score = softcap * math.tanh(score / softcap)
            attends = not (causal and j > position)
            attends &= window is None or position - j < window
            if mask is not None:
                attends &= bool(mask[b, h, i, j]) if mask.dtype == bool else True
                score += 0 if mask.dtype == bool else mask[b, h, i, j]
            if attends and score > -math.inf:
                scores[j] = score
        if scores:
            greatest = max(scores.values())
            weights = {j: math.exp(s - greatest) for j, s in scores.items()}
            total = sum(weights.values())
            result[b, h, i] = sum(w / total * v[b, group, j] for j, w in weights.items())
    return result


SIZES = [
    # batch, heads, key heads, queries, keys, depth, value depth
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 5, 5, 4, 4),
    (1, 6, 2, 3, 7, 5, 2),
    (2, 4, 1, 7, 3, 2, 3),
    (0, 2, 2, 3, 3, 4, 4),
    (1, 2, 2, 3, 0, 4, 4),
    (1, 2, 1, 0, 3, 4, 4),
]


def operands(rng, batch, heads, groups, queries, keys, depth, width):
    return (
        rng.standard_normal((batch, heads, queries, depth)),
        rng.standard_normal((batch, groups, keys, depth)),
        rng.standard_normal((batch, groups, keys, width)),
    )


OPTIONS = [
    {},
    {"causal": True},
    {"window": 2},
    {"causal": True, "window": 3},
    {"scale": 0.5, "softcap": 1.5},
    {"causal": True, "window": 1, "scale": -2.0},
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("options", OPTIONS)
def test_attention(run, rng, sizes, options):
    arrays = operands(rng, *sizes)
    result = run(lambda g, *xs: g.attention(*xs, **options), *arrays)
    np.testing.assert_allclose(
        result, attention_by_loops(*arrays, **options), rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (1, 1, 3, 5), (2, 1, 1, 5), (3, 5), (5,), ()])
@pytest.mark.parametrize("kind", [bool, float])
@pytest.mark.parametrize("causal", [False, True])
def test_masks(run, rng, shape, kind, causal):
    arrays = operands(rng, 2, 4, 2, 3, 5, 4, 3)
    mask = rng.random(shape) < 0.5 if kind is bool else np.asarray(rng.standard_normal(shape))
    result = run(lambda g, q, k, v, m: g.attention(q, k, v, mask=m, causal=causal), *arrays, mask)
    wanted = attention_by_loops(*arrays, mask=mask, causal=causal)
    np.testing.assert_allclose(result, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mask", [False, -math.inf])
def test_queries_that_attend_to_nothing_give_zeros(run, rng, mask):
    arrays = operands(rng, 1, 1, 1, 2, 3, 4, 4)
    result = run(lambda g, *xs: g.attention(*xs[:3], mask=xs[3]), *arrays, np.full((2, 3), mask))
    np.testing.assert_array_equal(result, np.zeros((1, 1, 2, 4)))


def test_nan_is_not_hidden(run, rng):
    q, k, v = operands(rng, 1, 1, 1, 2, 3, 4, 4)
    q[0, 0, 1, 2] = np.nan
    result = run(lambda g, *xs: g.attention(*xs), q, k, v)
    assert np.isnan(result[0, 0, 1]).all()
    assert np.isfinite(result[0, 0, 0]).all()


def test_halves_round_once(run, rng):
    arrays = [x.astype(np.float16) for x in operands(rng, 1, 4, 2, 8, 8, 16, 16)]
    mask = rng.standard_normal((8, 8)).astype(np.float32)
    result = run(lambda g, *xs: g.attention(*xs[:3], mask=xs[3], causal=True), *arrays, mask)
    exact = attention_by_loops(*(x.astype(np.float64) for x in arrays), mask=mask, causal=True)
    np.testing.assert_array_equal(result, exact.astype(np.float16))


def test_symbolic_lengths(run, rng, type_of):
    b, n, m = Variable("b", 1, 4), Variable("n", 1, 16), Variable("m", 0, 16)
    shapes = [(b, 4, n, 8), (b, 2, n + m, 8), (b, 2, n + m, 3)]
    build = lambda g, *xs: g.attention(*xs, causal=True, window=3)  # noqa: E731
    assert type_of(build, *shapes) == "f32[b,4,n,3]"
    arrays = operands(rng, 2, 4, 2, 3, 7, 8, 3)
    wanted = attention_by_loops(*arrays, causal=True, window=3)
    np.testing.assert_allclose(run(build, *arrays, shapes=shapes), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4)), {}, "q is .batch, heads"),
        (((2, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)), {}, "batch sizes"),
        (((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 3, 4)), {}, "lengths of k and v differ"),
        (((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 5)), {}, "head dimensions 4 of q and 5 of k"),
        (((1, 3, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)), {}, "3 query heads are no multiple of 2"),
        (((1, 3, 3, 4), (1, 0, 3, 4), (1, 0, 3, 4)), {}, "no multiple of 0"),
        (((1, 2, 3, 4),) * 3, {"window": 0}, "window is an int >= 1"),
        (((1, 2, 3, 4),) * 3, {"softcap": 0.0}, "softcap must be positive"),
        (((1, 2, 3, 4),) * 3, {"scale": math.nan}, "scale is a finite number"),
        (
            ((1, 2, 3, 4),) * 3,
            {"mask": np.ones((3, 4), bool)},
            "do not broadcast|does not broadcast",
        ),
        (((1, 2, 3, 4),) * 3, {"mask": np.ones((2, 1, 2, 3, 3), bool)}, "does not broadcast"),
        (((1, 2, 3, 4),) * 3, {"mask": np.ones((3, 3), np.int32)}, "the mask is bool or a float"),
    ],
)
def test_attention_refuses(shapes, options, message):
    g = Graph()
    with pytest.raises(GraphError, match=message):
        g.attention(*(g.input(f"x{i}", shape) for i, shape in enumerate(shapes)), **options)


def test_attention_refuses_dtypes():
    g = Graph()
    q, h = g.input("q", (1, 2, 3, 4)), g.input("h", (1, 2, 3, 4), "float16")
    i = g.input("i", (1, 2, 3, 4), "int32")
    with pytest.raises(GraphError, match="q is float32 and k float16"):
        g.attention(q, h, q)
    with pytest.raises(GraphError, match="q is int32, not a float"):
        g.attention(i, i, i)


def rope_by_loops(x, cos, sin, interleaved):
    result = x.copy()
    cos = np.broadcast_to(cos, (*x.shape[:-1], cos.shape[-1]))
    sin = np.broadcast_to(sin, cos.shape)
    pairs = cos.shape[-1]
    for at in np.ndindex(*cos.shape):
        *lead, pair = at
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        turned = complex(x[(*lead, a)], x[(*lead, b)]) * complex(cos[at], sin[at])
        result[(*lead, a)], result[(*lead, b)] = turned.real, turned.imag
    return result


ROPES = [
    *itertools.product([(2, 3, 5, 8)], [(5, 4), (5, 2), (2, 1, 5, 4), (1, 4), (4,)], [False, True]),
    ((6,), (3,), True),
    ((1, 2), (1, 1), False),
    ((0, 4), (0, 2), True),
    ((2, 3), (2, 0), False),
]


@pytest.mark.parametrize(("shape", "angles", "interleaved"), ROPES)
def test_rope(run, rng, shape, angles, interleaved):
    x, angle = rng.standard_normal(shape), rng.standard_normal(angles)
    result = run(
        lambda g, *xs: g.rope(*xs, interleaved=interleaved), x, np.cos(angle), np.sin(angle)
    )
    wanted = rope_by_loops(x, np.cos(angle), np.sin(angle), interleaved)
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-13)


def test_symbolic_rope(type_of):
    n = Variable("n", 1, 16)
    for interleaved in (False, True):
        build = lambda g, *xs: g.rope(*xs, interleaved=interleaved)  # noqa: B023, E731
        assert type_of(build, (1, 2, n, 8), (n, 3), (n, 3)) == "f32[1,2,n,8]"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((3, 8), (3, 8), (3, 8)), "half of the features"),
        (((3, 8), (3, 4), (3, 2)), "their shapes differ"),
        (((3, 8), (2, 4), (2, 4)), "do not broadcast|does not broadcast"),
        (((8,), (3, 4), (3, 4)), "does not broadcast"),
    ],
)
def test_rope_refuses(shapes, message):
    g = Graph()
    with pytest.raises(GraphError, match=message):
        g.rope(*(g.input(f"x{i}", shape) for i, shape in enumerate(shapes)))


def test_embedding(run, rng):
    table, ids = rng.standard_normal((5, 3)), np.array([[0, 4], [2, 2]])
    np.testing.assert_array_equal(
        run(lambda g, ids, table: g.embedding(ids, table), ids, table), table[ids]
    )
