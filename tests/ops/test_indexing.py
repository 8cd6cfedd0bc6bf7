"""Gathers, scatters, dynamic slices, selection: against plain loops, and with wild indices."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError, VariableError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable

N = Variable("n", 1, 16)


def inside(index, size):
    """An index as gathers read it: from the end if negative, then clamped."""
    return min(max(index + size if index < 0 else index, 0), size - 1)


@pytest.fixture
def x(rng):
    return rng.standard_normal((3, 4, 5)).astype(np.float32)


@pytest.fixture
def wild(rng):
    """Indices inside, counted from the end, and far outside."""
    return rng.integers(-9, 9, (2, 3))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_take(run, x, rng, axis, dtype):
    size = x.shape[axis]
    ids = rng.integers(0 if dtype[0] == "u" else -size, size, (2, 3)).astype(dtype)
    got = run(lambda g, x, i: g.take(x, i, axis), x, ids)
    np.testing.assert_array_equal(got, np.take(x, ids, axis), strict=True)


def test_take_clamps_what_lies_outside(run, x, wild):
    for axis in range(3):
        got = run(lambda g, x, i, axis=axis: g.take(x, i, axis), x, wild)
        safe = np.vectorize(inside)(wild, x.shape[axis])
        np.testing.assert_array_equal(got, np.take(x, safe, axis))
    big = np.array([300, 2**40, -(2**40)])
    got = run(lambda g, x, i: g.take(x, i), x, big)
    np.testing.assert_array_equal(got, x.reshape(-1)[[59, 59, 0]])


def test_take_of_constants_and_scalars(run, x, type_of):
    np.testing.assert_array_equal(run(lambda g, x: g.take(x, 2, axis=1), x), x[:, 2])
    np.testing.assert_array_equal(run(lambda g, x: g.take(x, [0, 2], axis=1), x), x[:, [0, 2]])
    table = np.array([[1, 2], [3, 4]], np.int16)
    got = run(lambda g, i: g.take(table, i, axis=0), np.array([1, 1, 0]))
    np.testing.assert_array_equal(got, table[[1, 1, 0]], strict=True)
    assert type_of(lambda g, x: g.take(x, g.arange(N), axis=1), (2, 8)) == "f32[2,n]"


def test_take_from_an_axis_that_turns_out_empty(run):
    n = Variable("z", 0, 4)
    with pytest.raises(VariableError, match=r"axis 0 .* is empty: there is nothing to take"):
        run(lambda g, x: g.take(x, [0, 1], axis=0), np.zeros((0, 2)), shapes=[(n, 2)])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_along_axis(run, x, rng, axis):
    shape = list(x.shape)
    shape[axis] = 6
    ids = rng.integers(-x.shape[axis], x.shape[axis], shape)
    got = run(lambda g, x, i: g.take_along_axis(x, i, axis), x, ids)
    np.testing.assert_array_equal(got, np.take_along_axis(x, ids, axis))
    one = ids[:, :1] if axis != 1 else ids[:1]
    got = run(lambda g, x, i: g.take_along_axis(x, i, axis), x, one)
    np.testing.assert_array_equal(got, np.take_along_axis(x, one, axis))


def test_take_along_axis_clamps(run):
    x = np.array([[1.0, 2, 3]])
    got = run(lambda g, x, i: g.take_along_axis(x, i), x, np.array([[-1, -7, 7]]))
    np.testing.assert_array_equal(got, [[3, 1, 3]])


@pytest.mark.parametrize(
    ("batch", "depth"), [(0, 0), (0, 1), (0, 3), (1, 1), (1, 2), (2, 1), (1, 0)]
)
def test_gather_nd(run, x, rng, batch, depth):
    lead = (*x.shape[:batch], 2)
    ids = rng.integers(-9, 9, (*lead, depth))
    got = run(lambda g, x, i: g.gather_nd(x, i, batch), x, ids)
    wanted = np.empty((*lead, *x.shape[batch + depth :]), x.dtype)
    for point in np.ndindex(*lead):
        place = [inside(i, s) for i, s in zip(ids[point], x.shape[batch:], strict=False)]
        wanted[point] = x[(*point[:batch], *place)]
    np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("start", [(0, 0, 0), (1, 2, 3), (-4, 1, 99)])
def test_dynamic_slice(run, x, start):
    sizes = (2, 2, 1)
    first = [min(max(s, 0), d - z) for s, d, z in zip(start, x.shape, sizes, strict=True)]
    wanted = x[tuple(slice(f, f + z) for f, z in zip(first, sizes, strict=True))]
    scalars = [np.int32(s) for s in start]
    got = run(lambda g, x, *s: g.dynamic_slice(x, s, sizes), x, *scalars)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(run(lambda g, x: g.dynamic_slice(x, start, sizes), x), wanted)
    mixed = run(lambda g, x, s: g.dynamic_slice(x, [start[0], s, start[2]], sizes), x, scalars[1])
    np.testing.assert_array_equal(mixed, wanted)


def test_dynamic_slices_at_variables(run, x):
    k = Variable("k", 0, 8)
    for value in (0, 2, 8):
        first = min(value, 2)
        for build in (
            lambda g, x, s: g.dynamic_slice(x, (0, k, 0), (3, 2, 5)),
            lambda g, x, s: g.dynamic_slice(x, (s, k, 0), (3, 2, 5)),
        ):
            got = run(build, x, np.int64(0), variables={"k": value})
            np.testing.assert_array_equal(got, x[:, first : first + 2])


@pytest.mark.parametrize("start", [(0, 0, 0), (1, 2, 3), (-4, 1, 99)])
def test_dynamic_update_slice(run, x, rng, start):
    update = rng.standard_normal((2, 2, 1)).astype(np.float32)
    wanted = x.copy()
    first = [min(max(s, 0), d - z) for s, d, z in zip(start, x.shape, update.shape, strict=True)]
    wanted[tuple(slice(f, f + z) for f, z in zip(first, update.shape, strict=True))] = update
    scalars = [np.int32(s) for s in start]
    got = run(lambda g, x, u, *s: g.dynamic_update_slice(x, u, s), x, update, *scalars)
    np.testing.assert_array_equal(got, wanted)
    got = run(lambda g, x, u: g.dynamic_update_slice(x, u, start), x, update)
    np.testing.assert_array_equal(got, wanted)


def test_a_cache_written_at_a_variable(run, rng):
    k = Variable("k", 0, 3)
    cache, row = np.zeros((4, 2), np.float16), np.ones((1, 2), np.float16)
    for value in range(4):
        got = run(
            lambda g, c, r: g.dynamic_update_slice(c, r, (k, 0)), cache, row, variables={"k": value}
        )
        np.testing.assert_array_equal(got[:, 0], np.eye(4)[value])
    empty = run(lambda g, c, r: g.dynamic_update_slice(c, r, (1, 0)), cache, row[:0])
    np.testing.assert_array_equal(empty, cache)


COMBINE = {
    "set": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("mode", COMBINE)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_scatter(run, rng, mode, axis, dtype):
    x = rng.integers(1, 9, (3, 4, 5)).astype(dtype)
    shape = [2, 3, 4]
    shape[axis] = 6
    ids = rng.integers(-8, 8, shape)
    updates = rng.integers(1, 9, shape).astype(dtype)
    wanted = x.copy()
    for point in np.ndindex(*shape):
        index = ids[point]
        place = list(point)
        place[axis] = index + x.shape[axis] if index < 0 else index
        if 0 <= place[axis] < x.shape[axis]:
            wanted[tuple(place)] = COMBINE[mode](wanted[tuple(place)], updates[point])
    got = run(lambda g, x, i, u: g.scatter(x, i, u, axis, mode), x, ids, updates)
    np.testing.assert_array_equal(got, wanted, strict=True)
    if mode == "add":
        got = run(lambda g, x, i, u: g.scatter_add(x, i, u, axis), x, ids, updates)
        np.testing.assert_array_equal(got, wanted, strict=True)


def test_scatter_of_a_scalar(run):
    got = run(lambda g, x, i: g.scatter(x, i, 1.0, axis=1), np.zeros((2, 3)), np.array([[2], [0]]))
    np.testing.assert_array_equal(got, [[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize("mode", COMBINE)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd(run, rng, mode, depth):
    x = rng.integers(1, 9, (3, 4, 5)).astype(np.float32)
    ids = rng.integers(-5, 5, (2, 4, depth))
    updates = rng.integers(1, 9, (2, 4, *x.shape[depth:])).astype(np.float32)
    wanted = x.copy()
    for point in np.ndindex(2, 4):
        place = [i + s if i < 0 else i for i, s in zip(ids[point], x.shape, strict=False)]
        if all(0 <= i < s for i, s in zip(place, x.shape, strict=False)):
            combine = np.frompyfunc(COMBINE[mode], 2, 1)
            wanted[tuple(place)] = combine(wanted[tuple(place)], updates[point])
    got = run(lambda g, x, i, u: g.scatter_nd(x, i, u, mode), x, ids, updates)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_topk(run, rng, largest, axis, dtype):
    x = rng.integers(0, 4, (6, 5)).astype(dtype)
    values, found = run(lambda g, x: g.topk(x, 3, axis, largest=largest), x)
    key = -x.astype(float) if largest else x.astype(float)
    order = np.argsort(key, axis=axis, kind="stable").take(range(3), axis)
    np.testing.assert_array_equal(found, order, strict=True)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis), strict=True)


def test_topk_counts_nan_as_the_greatest(run):
    x = np.array([1, np.nan, np.inf, np.nan, -np.inf])
    values, found = run(lambda g, x: g.topk(x, 4), x)
    np.testing.assert_array_equal(found, [1, 3, 2, 0])
    np.testing.assert_array_equal(values, [np.nan, np.nan, np.inf, 1])
    values, found = run(lambda g, x: g.topk(x, 4, largest=False), x)
    np.testing.assert_array_equal(found, [4, 0, 2, 1])


def test_one_hot(run, type_of):
    ids = np.array([[0, 2], [3, -1]])
    for axis in (-1, 0, 1):
        got = run(lambda g, i, a=axis: g.one_hot(i, 3, a, "int8"), ids)
        wanted = (ids[..., None] == np.arange(3)).astype(np.int8)
        np.testing.assert_array_equal(got, np.moveaxis(wanted, -1, axis), strict=True)
    assert type_of(lambda g, x: g.one_hot(g.cast(x, "int32"), N), (4,)) == "f32[4,n]"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g, x, i: g.take(x, x, axis=0), r"take\(f32\[2,3\], f32\[2,3\]\): indices are int"),
        (lambda g, x, i: g.take(x, i, axis=2), "axis 2 is out of range"),
        (lambda g, x, i: g.take(x[:0], i, axis=0), "is empty: there is nothing to take"),
        (lambda g, x, i: g.take_along_axis(x, i, 0), "another rank"),
        (lambda g, x, i: g.take_along_axis(x, g.zeros((2, 2), "int64"), 0), "do not broadcast"),
        (lambda g, x, i: g.gather_nd(x, g.zeros((4, 3), "int64")), "index vectors of 3"),
        (lambda g, x, i: g.gather_nd(x, g.zeros((4, 1), "int64"), 1), "differ in their first 1"),
        (lambda g, x, i: g.gather_nd(x, g.zeros((4, 1), "int64"), 2), "batch_dims is"),
        (lambda g, x, i: g.gather_nd(x, i[0]), "at least one axis|batch_dims is"),
        (lambda g, x, i: g.dynamic_slice(x, (0,), (1, 1)), "expected a start for each axis"),
        (lambda g, x, i: g.dynamic_slice(x, (0, 0), (1,)), "1 sizes are given for 2"),
        (lambda g, x, i: g.dynamic_slice(x, (0, 0), (3, 1)), "a block of 3 does not fit"),
        (lambda g, x, i: g.dynamic_slice(g.ones((N,)), (0,), (2,)), "2 does not fit an axis of n"),
        (lambda g, x, i: g.dynamic_slice(x, (i, 0), (1, 1)), "a start is an integer scalar"),
        (lambda g, x, i: g.dynamic_slice(x, (0.5, 0), (1, 1)), "a start is an int"),
        (lambda g, x, i: g.dynamic_update_slice(x, i, (0, 0)), "expected updates of float32"),
        (lambda g, x, i: g.dynamic_update_slice(x, g.zeros((3, 1)), (0, 0)), "does not fit"),
        (lambda g, x, i: g.scatter(x, i, 1.0), "differ in rank"),
        (lambda g, x, i: g.scatter(x, g.zeros((1, 4), "int64"), 1.0), "axis 1 of the indices"),
        (lambda g, x, i: g.scatter(x, [[0]], 1.0, mode="sub"), "mode is one of set, add"),
        (lambda g, x, i: g.scatter(x, [[0]], [[1]]), "expected updates of float32"),
        (lambda g, x, i: g.scatter(x, [[0]], np.zeros((1, 2), "f")), "different shapes"),
        (
            lambda g, x, i: g.scatter_nd(x, [[0]], np.zeros((1, 2), "f")),
            r"expected updates f32\[1,3",
        ),
        (lambda g, x, i: g.topk(x, 4), "k is 4, but axis 1 of f32.2,3. has 3"),
        (lambda g, x, i: g.topk(x, -1), "from 0 up"),
        (lambda g, x, i: g.topk(x > 0, 1), "numeric"),
        (lambda g, x, i: g.one_hot(x, 3), "indices are integers"),
        (lambda g, x, i: g.one_hot(i, -3), "depth is a dim"),
    ],
)
def test_wrong_indexing_is_refused(build, message):
    g = Graph()
    with pytest.raises(GraphError, match=message) as caught:
        build(g, g.input("x", (2, 3)), g.input("i", (4,), "int64"))
    assert "test_indexing.py:" in str(caught.value)
