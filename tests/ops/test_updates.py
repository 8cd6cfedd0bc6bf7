"""Writes at indices: against plain loops, with wild indices, shorter shapes and masks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable

REDUCTIONS = {
    "sum": np.add,
    "prod": np.multiply,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
}


@pytest.fixture
def x(rng):
    return rng.standard_normal((3, 4, 5)).astype(np.float32)


def scattered(x, ids, updates, axis, mode, include):
    """The rule of ``scatter_reduce``, element by element."""
    result, counts = x.copy(), np.full(x.shape, int(include))
    for place in np.ndindex(*ids.shape):
        at = list(place)
        at[axis] = ids[place] + (x.shape[axis] if ids[place] < 0 else 0)
        if not 0 <= at[axis] < x.shape[axis]:
            continue
        target = tuple(at)
        if counts[target] == 0:
            result[target] = updates[place]
        else:
            result[target] = REDUCTIONS[mode](result[target], updates[place])
        counts[target] += 1
    if mode == "mean":
        counts = np.maximum(counts, 1)
        return result / counts if x.dtype.kind == "f" else result // counts
    return result


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "int16", "float16", "uint64"])
def test_scatter_reduce(run, rng, mode, include, dtype):
    x = rng.integers(1, 9, (3, 4, 5)).astype(dtype)
    for axis in range(3):
        ids = rng.integers(-6, 6, (2, 3, 4))
        updates = rng.integers(1, 5, (3, 4, 4)).astype(dtype)
        got = run(
            lambda g, x, i, u, axis=axis: g.scatter_reduce(x, i, u, axis, mode, include),
            x,
            ids,
            updates,
        )
        wanted = scattered(
            x.astype("float64" if dtype[0] == "f" else dtype), ids, updates, axis, mode, include
        )
        np.testing.assert_allclose(got, wanted.astype(dtype), rtol=2e-3)


def test_gather_takes_shorter_indices(run, x, rng):
    ids = rng.integers(0, 4, (2, 6, 3))
    got = run(lambda g, x, i: g.gather(x, i, 1), x, ids)
    wanted = np.take_along_axis(x[:2, :, :3], ids, 1)
    np.testing.assert_array_equal(got, wanted)
    g = Graph()
    with pytest.raises(GraphError, match="axis 0 of the indices"):
        g.gather(g.input("x", (2, 3)), g.input("i", (3, 3), "int64"), 1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_writes_of_slices(run, x, rng, axis):
    size = x.shape[axis]
    for count in (0, 1, 3):
        ids = rng.integers(-size, size, count)
        shape = list(x.shape)
        shape[axis] = count
        rows = rng.standard_normal(shape).astype(np.float32)
        wanted, added = np.moveaxis(x.copy(), axis, 0), np.moveaxis(x.copy(), axis, 0)
        filled = np.moveaxis(x.copy(), axis, 0)
        for at, row in zip(ids, np.moveaxis(rows, axis, 0), strict=True):
            wanted[at] = row
            added[at] += 2 * row
            filled[at] = 7
        copied, summed, full, reduced = run(
            lambda g, x, i, r: (
                g.index_copy(x, i, r, axis),
                g.index_add(x, i, r, axis, alpha=2),
                g.index_fill(x, i, 7, axis),
                g.index_reduce(x, i, r, axis, "max"),
            ),
            x,
            ids,
            rows,
        )
        np.testing.assert_array_equal(copied, np.moveaxis(wanted, 0, axis))
        np.testing.assert_allclose(summed, np.moveaxis(added, 0, axis), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(full, np.moveaxis(filled, 0, axis))
        assert (reduced >= x).all()
    g = Graph()
    with pytest.raises(GraphError, match="expected slices"):
        g.index_copy(g.input("x", (3, 4)), [0, 1], g.input("s", (3, 4)))


KEYS = {
    "pair": (np.array([0, 2]), np.array([1, 3])),
    "apart": (np.array([[0], [2]]), None, np.array([[1, 3, 4]])),
    "behind": (None, np.array([0, -1, 2]), np.array([[1], [4]])),
    "one": (None, np.array([[0, 3], [1, 2]])),
    "all": (np.array([0, 2, 1]), np.array(1), np.array([4, 0, -2])),
    "mask": (np.array([True, False, True]),),
    "mask_of_two": (np.arange(12).reshape(3, 4) % 3 == 0,),
    "mask_behind": (None, None, np.array([True, False, True, True, False])),
    "mixed": (np.array([2, 0]), np.array([True, False, True, False])),
}


@pytest.mark.parametrize("name", KEYS)
def test_advanced_indices(run, x, name):
    keys = KEYS[name]
    whole = tuple(slice(None) if k is None else k for k in keys)
    got = run(lambda g, x: g.getitem(x, whole), x)
    np.testing.assert_array_equal(got, x[whole])
    values = np.arange(x[whole].size, dtype=np.float32).reshape(x[whole].shape)
    for new in (values, np.float32(5), values[..., :1]):
        wanted, total = x.copy(), x.copy()
        wanted[whole] = new
        np.add.at(total, whole, new)
        put, added = run(
            lambda g, x, v: (
                g.index_put(x, keys, v),
                g.index_put(x, keys, v, accumulate=True),
            ),
            x,
            new,
        )
        np.testing.assert_array_equal(put, wanted)
        np.testing.assert_allclose(added, total, rtol=1e-6)


def test_indices_between_ints_slices_and_new_axes(run, x):
    i, j = np.array([0, 2]), np.array([[3], [1]])
    for key in ((i, slice(1, 3), j), (i, j, slice(1, 3)), (slice(1, 3), i, j)):
        got = run(lambda g, x, key=key: g.getitem(x, key), x)
        np.testing.assert_array_equal(got, x[key])
    got = run(lambda g, x: g.getitem(x, (i, None, ..., [1, 4])), x)
    np.testing.assert_array_equal(got, x[i, None, ..., [1, 4]])
    got = run(lambda g, x: g.getitem(x, (1, i, i)), x)
    np.testing.assert_array_equal(got, x[1][i, i])


def test_bools_are_added_as_numbers(run, rng):
    x, new = rng.random((3, 4)) < 0.5, rng.random((3, 2)) < 0.5
    ids = np.array([1, 1])
    wanted = x.copy()
    wanted[:, 1] |= new.any(1)
    added, put, least = run(
        lambda g, x, i, n: (
            g.index_add(x, i, n, 1),
            g.index_put(x, [None, i], n, accumulate=True),
            g.index_reduce(x, i, n, 1, "min", False),
        ),
        x,
        ids,
        new,
    )
    np.testing.assert_array_equal(added, wanted, strict=True)
    np.testing.assert_array_equal(put, wanted, strict=True)
    wanted[:, 1] = new.all(1)
    np.testing.assert_array_equal(least, wanted, strict=True)


def test_masks_with_elements_in_order(run, x, rng):
    mask = rng.random((3, 1, 5)) < 0.5
    source = rng.standard_normal(70).astype(np.float32)
    wanted = x.copy()
    spread = np.broadcast_to(mask, x.shape)
    wanted[spread] = source[: spread.sum()]
    got = run(lambda g, x, m, s: g.masked_scatter(x, m, s), x, mask, source)
    np.testing.assert_array_equal(got, wanted)
    nothing = np.zeros(0, np.float32)
    np.testing.assert_array_equal(run(lambda g, x, s: g.masked_scatter(x, False, s), x, nothing), x)


def test_slices_replaced(run, x, rng):
    for axis, (start, stop, step) in itertools.product(
        (0, 2), ((None, None, None), (1, 3, 1), (-2, None, 1), (None, None, 2), (4, 0, -2))
    ):
        key = (slice(None),) * axis + (slice(start, stop, step),)
        new = rng.standard_normal(x[key].shape).astype(np.float32)
        wanted = x.copy()
        wanted[key] = new
        got = run(
            lambda g, x, n, a=axis, k=(start, stop, step): g.slice_scatter(x, n, a, *k), x, new
        )
        np.testing.assert_array_equal(got, wanted)
    row = rng.standard_normal((3, 5)).astype(np.float32)
    for index in (0, 2, -1):
        wanted = x.copy()
        wanted[:, index] = row
        got = run(lambda g, x, r, i=index: g.select_scatter(x, r, 1, i), x, row)
        np.testing.assert_array_equal(got, wanted)
    n = Variable("n", 2, 9)
    got = run(
        lambda g, x, s: g.slice_scatter(x, s, 0, n - 2, n),
        x,
        x[1:] * 2,
        shapes=[(n, 4, 5), (2, 4, 5)],
    )
    np.testing.assert_array_equal(got, np.concatenate([x[:1], x[1:] * 2]))


def test_a_mask_needs_a_graph_of_sizes():
    g = Graph()
    with pytest.raises(GraphError, match=r"the mask bool\[2\] does not fit"):
        g.getitem(g.input("x", (3,)), np.array([True, False]))
