"""Attention with sinks, and attention to blocks of pools, against loops over rows and heads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


def by_loops(q, keys, values, table, sequence, position, sinks=None, **options):
    """One row and head at a time, over the positions that it attends to."""
    (rows, heads, depth), (blocks, size, groups, features) = q.shape, values.shape
    scale = options.get("scale") or 1 / math.sqrt(depth)
    cap, window = options.get("softcap"), options.get("window") or 1 << 30
    result = np.zeros((rows, heads, features))

    def at(number, count):
        return int(np.clip(number + count if number < 0 else number, 0, count - 1))

    for n, h in np.ndindex(rows, heads):
        mine = table[at(sequence[n], len(table))]
        last = min(position[n], len(mine) * size - 1)
        seen = range(max(0, last - window + 1), last + 1)
        if not seen:
            continue
        places = [(at(mine[p // size], blocks), p % size, h * groups // heads) for p in seen]
        scores = np.array([q[n, h] @ keys[place] for place in places]) * scale
        scores = scores if cap is None else cap * np.tanh(scores / cap)
        top = scores.max() if sinks is None else max(scores.max(), sinks[h])
        weights = np.exp(scores - top)
        total = weights.sum() + (0 if sinks is None else math.exp(sinks[h] - top))
        result[n, h] = sum(
            w / total * values[place] for w, place in zip(weights, places, strict=True)
        )
    return result


def operands(rng, rows=7, heads=4, groups=2, depth=5, features=3, blocks=9, size=4, wide=3):
    return [
        rng.standard_normal((rows, heads, depth)),
        rng.standard_normal((blocks, size, groups, depth)),
        rng.standard_normal((blocks, size, groups, features)),
        rng.integers(0, blocks, (3, wide)).astype(np.int32),
        np.sort(rng.integers(0, 3, rows)).astype(np.int32),
        rng.integers(0, wide * size, rows).astype(np.int32),
    ]


OPTIONS = [{}, {"window": 1}, {"window": 6}, {"scale": 0.5, "softcap": 1.5}, {"scale": -2.0}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(
    "sizes", [{}, {"rows": 1}, {"rows": 0}, {"heads": 2, "size": 64}, {"groups": 1}]
)
def test_paged_attention(run, rng, options, sink, sizes):
    arrays = operands(rng, **sizes)
    if sink:
        arrays.append(rng.standard_normal(arrays[0].shape[1]))

    def build(g, *xs):
        return g.paged_attention(*xs[:6], sinks=xs[6] if sink else None, **options)

    wanted = by_loops(*arrays, **options)
    np.testing.assert_allclose(run(build, *arrays), wanted, rtol=1e-11, atol=1e-12)


def test_numbers_out_of_range_are_those_of_take(run, rng):
    arrays = operands(rng, rows=6)
    arrays[3][:] = [[-1, 99, 3], [-99, 2, 8], [0, -9, 1]]
    arrays[4][:] = [0, -1, 99, -99, 1, 2]
    arrays[5][:] = [11, 99, -1, 3, -99, 12]
    for window in (None, 2):
        result = run(lambda g, *xs: g.paged_attention(*xs, window=window), *arrays)  # noqa: B023
        np.testing.assert_allclose(result, by_loops(*arrays, window=window), rtol=1e-11)
        np.testing.assert_array_equal(result[[2, 4]], np.zeros_like(result[[2, 4]]))


@pytest.mark.parametrize("filler", [np.nan, np.inf])
def test_what_no_row_attends_to_does_not_matter(run, rng, filler):
    arrays = operands(rng, rows=3)
    arrays[3][:] = np.arange(9).reshape(3, 3)
    arrays[4][:], arrays[5][:] = [0, 1, 2], [0, 5, 9]
    wanted = by_loops(*arrays)
    for pool in arrays[1:3]:
        flat = pool.reshape(3, 12, *pool.shape[2:])
        for sequence, position in enumerate(arrays[5]):
            flat[sequence, position + 1 :] = filler
    result = run(lambda g, *xs: g.paged_attention(*xs), *arrays)
    np.testing.assert_allclose(result, wanted, rtol=1e-11, atol=1e-12)


def test_pools_of_16_bits_round_once(run, rng):
    arrays = operands(rng, depth=16, features=16)
    arrays[0] = arrays[0].astype(np.float32)
    arrays[1:3] = (pool.astype(np.float16) for pool in arrays[1:3])
    result = run(lambda g, *xs: g.paged_attention(*xs), *arrays)
    assert result.dtype == np.float32
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    np.testing.assert_array_equal(result, by_loops(*wide).astype(np.float32))


@pytest.mark.parametrize("sink", [False, True])
def test_pools_of_int8_have_scales(run, rng, sink):
    arrays = operands(rng)
    pools = [rng.integers(-127, 128, pool.shape).astype(np.int8) for pool in arrays[1:3]]
    scales = [rng.uniform(0, 0.1, pool.shape[:3]) for pool in pools]
    wide = [pool * scale[..., None] for pool, scale in zip(pools, scales, strict=True)]
    sinks = [rng.standard_normal(4)] if sink else []

    def build(g, *xs):
        more = {"sinks": xs[8]} if sink else {}
        return g.paged_attention(*xs[:6], key_scales=xs[6], value_scales=xs[7], **more)

    result = run(build, arrays[0], *pools, *arrays[3:], *scales, *sinks)
    wanted = by_loops(arrays[0], *wide, *arrays[3:], *sinks)
    np.testing.assert_allclose(result, wanted, rtol=1e-11, atol=1e-12)


def test_symbolic_rows(run, rng, type_of):
    rows = Variable("rows", 1, 16)
    arrays = operands(rng)
    shapes = [a.shape for a in arrays]
    shapes[0] = (rows, *shapes[0][1:])
    shapes[4] = shapes[5] = (rows,)
    result = run(lambda g, *xs: g.paged_attention(*xs), *arrays, shapes=shapes)
    np.testing.assert_allclose(result, by_loops(*arrays), rtol=1e-11, atol=1e-12)


GOOD = {
    "q": ((4, 2, 8), "float32"),
    "keys": ((5, 16, 2, 8), "bfloat16"),
    "values": ((5, 16, 2, 4), "bfloat16"),
    "table": ((3, 2), "int32"),
    "sequence": ((4,), "int32"),
    "position": ((4,), "int32"),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": ((4, 16), "float32")}, "q is a float .rows, heads, dim."),
        ({"q": ((4, 2, 8), "int32")}, "q is a float"),
        ({"q": ((4, 3, 8), "float32")}, "3 query heads are no multiple of 2"),
        ({"q": ((4, 2, 7), "float32")}, "head dimensions 7 of q and 8 of keys"),
        ({"keys": ((16, 2, 8), "bfloat16")}, "keys are floats .blocks"),
        ({"keys": ((5, 16, 2, 8), "float16")}, "keys are float16 and values bfloat16"),
        ({"values": ((5, 8, 2, 4), "bfloat16")}, "more than their last axis"),
        ({"values": ((5, Variable("b", 1, 9), 2, 4), "bfloat16")}, "of known sizes"),
        ({"keys": ((0, 16, 2, 8), "bfloat16"), "values": ((0, 16, 2, 4), "bfloat16")}, "no posit"),
        ({"table": ((3, 2), "float32")}, "table is integers"),
        ({"table": ((0, 2), "int32")}, "the table is empty"),
        ({"sequence": ((3,), "int32")}, "sequence is integers .4., one for each row"),
        ({"position": ((4,), "float32")}, "position is integers .4."),
        ({"sinks": ((3,), "float32")}, "sinks are floats .2., one for each query head"),
        ({"key_scales": ((5, 16, 2), "float32")}, "one of them is missing"),
        (
            dict.fromkeys(("key_scales", "value_scales"), ((5, 16, 2), "float32")),
            "keys are int8 .blocks",
        ),
        (
            {
                "keys": ((5, 16, 2, 8), "int8"),
                "values": ((5, 16, 2, 4), "int8"),
                "key_scales": ((5, 16, 2), "float32"),
                "value_scales": ((5, 16), "float32"),
            },
            "value_scales are floats .5,16,2.",
        ),
        ({"keys": ((5, 16, 2, 8), "int8")}, "keys are floats .blocks"),
        ({"window": 0}, "window is an int >= 1"),
        ({"softcap": 0.0}, "softcap must be positive"),
        ({"scale": math.nan}, "scale is a finite number"),
    ],
)
def test_paged_attention_refuses(changes, message):
    g = Graph()
    options = {name: x for name, x in changes.items() if not isinstance(x, tuple)}
    shapes = GOOD | {name: x for name, x in changes.items() if isinstance(x, tuple)}
    values = {name: g.input(name, *shape) for name, shape in shapes.items()}
    with pytest.raises(GraphError, match=message):
        g.paged_attention(**values, **options)


# -- sinks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_sink_is_one_more_key_without_a_value(run, rng, causal, masked):
    q = rng.standard_normal((2, 4, 3, 5))
    k, v = (rng.standard_normal((2, 2, 6, 5)) for _ in range(2))
    mask = rng.random((2, 1, 3, 6)) < 0.5 if masked else None
    sinks = np.array([0.5, -1.0, 30.0, -np.inf])
    arrays = [q, k, v, sinks, *([mask] if masked else [])]

    def build(g, q, k, v, sinks, mask=None):
        return g.attention(q, k, v, mask=mask, sinks=sinks, causal=causal)

    result = run(build, *arrays)
    scores = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, 2, axis=1)) / math.sqrt(5)
    if masked:
        scores = np.where(mask, scores, -np.inf)
    if causal:
        ahead = np.arange(3, 6)[:, None] - np.arange(6)
        scores = np.where(ahead >= 0, scores, -np.inf)
    column = np.broadcast_to(sinks[:, None, None], (2, 4, 3, 1))
    every = np.concatenate([scores, column], axis=3)
    greatest = every.max(axis=3, keepdims=True)
    weights = np.exp(every - np.where(np.isfinite(greatest), greatest, 0))
    total = weights.sum(axis=3, keepdims=True)
    weights = weights[..., :-1] / np.where(total == 0, 1, total)
    wanted = np.einsum("bhqk,bhkd->bhqd", weights, np.repeat(v, 2, axis=1))
    np.testing.assert_allclose(result, wanted, rtol=1e-11, atol=1e-12)


def test_no_keys_but_sinks_give_zeros(run):
    empty = np.zeros((1, 2, 0, 4))
    result = run(
        lambda g, *xs: g.attention(*xs[:3], sinks=xs[3]),
        np.ones((1, 2, 3, 4)),
        empty,
        empty,
        [1, 2.0],
    )
    np.testing.assert_array_equal(result, np.zeros((1, 2, 3, 4)))


def test_sinks_are_checked():
    g = Graph()
    q = g.input("q", (1, 2, 3, 4))
    with pytest.raises(GraphError, match=r"sinks are floats .2., one for each query head"):
        g.attention(q, q, q, sinks=g.input("s", (3,)))
    with pytest.raises(GraphError, match="return_logsumexp with sinks"):
        g.attention(q, q, q, sinks=g.input("t", (2,)), return_logsumexp=True)
