"""Reshaping, moving axes, joining, cutting, repeating, padding, and tensors made of indices."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable

N = Variable("n", 1, 64)
M = Variable("m", 1, 8)


@pytest.fixture
def x(rng):
    return rng.standard_normal((2, 3, 4)).astype(np.float32)


# -- shapes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(24,), (6, 4), (-1,), (2, -1, 2), (1, 24, 1), -1, (4, 3, 2)])
def test_reshape(run, x, shape):
    np.testing.assert_array_equal(run(lambda g, x: g.reshape(x, shape), x), x.reshape(shape))


def test_reshape_of_nothing(run):
    empty = np.zeros((0, 3), np.float32)
    assert run(lambda g, x: g.reshape(x, (3, 0)), empty).shape == (3, 0)
    assert run(lambda g, x: g.reshape(x, (-1, 3)), empty).shape == (0, 3)


def test_symbolic_reshape(type_of):
    assert type_of(lambda g, x: g.reshape(x, (-1, 4)), (N, 8)) == "f32[2*n,4]"
    assert type_of(lambda g, x: g.reshape(x, (N, -1)), (N, 2, 4)) == "f32[n,8]"
    assert type_of(lambda g, x: g.reshape(x, (N * M, 4)), (M, N, 4)) == "f32[m*n,4]"
    assert type_of(lambda g, x: g.reshape(x, (M, -1, 2)), (M * N, 4)) == "f32[m,2*n,2]"
    assert type_of(lambda g, x: g.flatten(x, 1), (N, 2, M)) == "f32[n,2*m]"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 5), r"shape \[5,5\] holds 25 elements, the operand 24"),
        ((-1, 5), "24 elements cannot take the shape"),
        ((-1, -1), "a dim is never negative"),
        ((2, -2, 6), "a dim is never negative"),
        ((2, 0, -1), "24 elements cannot take the shape"),
        ((2.5, 4), "a dim is an int"),
        ((N, -1), "24 elements cannot take the shape"),
    ],
)
def test_impossible_reshapes(shape, message):
    g = Graph()
    with pytest.raises(GraphError, match=message) as caught:
        g.reshape(g.input("x", (2, 3, 4)), shape)
    assert "reshape(f32[2,3,4]" in str(caught.value)


def test_a_reshape_to_the_same_shape_is_no_node():
    g = Graph()
    x = g.input("x", (2, 3))
    assert g.reshape(x, (2, -1)) is x
    assert g.permute_dims(x, (0, 1)) is x
    assert g.broadcast_to(x, (2, 3)) is x
    assert g.squeeze(x) is x
    assert g.concat([x], 1) is x
    assert x[...] is x


def test_axes_of_size_one(run, x, type_of):
    for axis in (0, 2, -1, 3, (0, -1), (1, 2)):
        got = run(lambda g, x, axis=axis: g.expand_dims(x, axis), x)
        np.testing.assert_array_equal(got, np.expand_dims(x, axis))
    assert run(lambda g, x: g.squeeze(g.unsqueeze(x, (0, 2)), (0, 2)), x).shape == x.shape
    assert type_of(lambda g, x: g.squeeze(x), (1, N, 1)) == "f32[n]"
    g = Graph()
    with pytest.raises(GraphError, match=r"axis 1 of f32.* is not of size 1"):
        g.squeeze(g.input("x", (1, 3)), 1)


def test_axes_in_other_orders(run, x):
    for got, wanted in zip(
        run(
            lambda g, x: (
                g.permute_dims(x, (2, 0, 1)),
                g.permute_dims(x, (-1, 1, 0)),
                g.transpose(x),
                g.matrix_transpose(x),
                g.swapaxes(x, 0, -1),
                g.moveaxis(x, 0, -1),
                g.moveaxis(x, (0, 1), (1, 2)),
            ),
            x,
        ),
        (
            x.transpose(2, 0, 1),
            x.transpose(2, 1, 0),
            x.T,
            x.swapaxes(1, 2),
            x.swapaxes(0, 2),
            np.moveaxis(x, 0, -1),
            np.moveaxis(x, (0, 1), (1, 2)),
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)
    g = Graph()
    with pytest.raises(GraphError, match="no permutation"):
        g.permute_dims(g.input("x", (2, 3)), (0, 0))


def test_broadcast_to(run, x, type_of):
    row = x[:1, :, :1]
    got = run(lambda g, r: g.broadcast_to(r, (5, 2, 3, 4)), row)
    np.testing.assert_array_equal(got, np.broadcast_to(row, (5, 2, 3, 4)))
    assert type_of(lambda g, x: g.broadcast_to(x, (N, 3)), (1, 3)) == "f32[n,3]"
    g = Graph()
    v = g.input("x", (2, 3))
    for shape in ((2,), (3, 3), (2, 4)):
        with pytest.raises(GraphError, match="does not broadcast"):
            g.broadcast_to(v, shape)


# -- joining and cutting ----------------------------------------------------------------------


def test_concat(run, x, type_of):
    for axis in (0, 1, -1, None):
        got = run(lambda g, x, axis=axis: g.concat([x, x, x], axis), x)
        np.testing.assert_array_equal(got, np.concatenate([x, x, x], axis))
    np.testing.assert_array_equal(run(lambda g, x: g.stack([x, x], 1), x), np.stack([x, x], 1))
    assert type_of(lambda g, x, y: g.concat([x, y], 0), (N, 3), (M, 3)) == "f32[m + n,3]"
    assert run(lambda g, x, y: g.concat([x, y]), np.int8([1]), np.float32([2])).dtype == np.float32


def test_concats_that_do_not_fit():
    g = Graph()
    x = g.input("x", (2, 3))
    with pytest.raises(GraphError, match="differ in more than axis 0"):
        g.concat([x, g.input("y", (2, 4))], 0)
    with pytest.raises(GraphError, match="an empty one"):
        g.concat([])
    with pytest.raises(GraphError, match="expected a list"):
        g.concat(x)
    with pytest.raises(GraphError, match="axis 2 is out of range"):
        g.concat([x, x], 2)


def test_split(run, x):
    for sections in (2, [1, 3], [2, 1, 1]):
        got = run(lambda g, x, sections=sections: g.split(x, sections, -1), x)
        at = 2 if sections == 2 else np.cumsum(sections)[:-1]
        for part, wanted in zip(got, np.split(x, at, -1), strict=True):
            np.testing.assert_array_equal(part, wanted)
    g = Graph()
    v = g.input("x", (2, 4))
    for wrong in (3, [1, 1], 0, []):
        with pytest.raises(GraphError, match="do not make up the 4 of axis 1"):
            g.split(v, wrong, 1)
    n = g.input("y", (2 * N, 3))
    assert [str(p.type) for p in g.split(n, 2)] == ["f32[n,3]"] * 2


SLICES = [
    slice(None),
    slice(1, 5),
    slice(-3, None),
    slice(None, -2),
    slice(None, None, 2),
    slice(1, None, 3),
    slice(None, None, -1),
    slice(-2, 0, -2),
    slice(100, None, -3),
    slice(5, 2),
    slice(-100, 100),
    slice(2, 5, -1),
    slice(6, -100, -4),
    slice(3, 3),
]


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("part", SLICES, ids=str)
def test_slices_are_pythons(run, size, part):
    x = np.arange(size * 2.0).reshape(size, 2)
    np.testing.assert_array_equal(run(lambda g, x: x[part], x), x[part])
    symbolic = run(lambda g, x: x[part], x, shapes=[(Variable("s", 0, 9), 2)])
    np.testing.assert_array_equal(symbolic, x[part])
    named = run(lambda g, x: g.slice(x, part.start, part.stop, part.step, axes=0), x)
    np.testing.assert_array_equal(named, x[part])


def test_slice_along_several_axes(run, x):
    got = run(lambda g, x: g.slice(x, [1, -2], [2**63 - 1, -(2**63)], [1, -1], axes=[-1, 1]), x)
    np.testing.assert_array_equal(got, x[:, -2::-1, 1:])
    np.testing.assert_array_equal(run(lambda g, x: g.slice(x, [1, 0], [2, 2]), x), x[1:2, :2])


def test_slices_with_variables(run, x, type_of):
    assert type_of(lambda g, x: x[N - 1 :], (N, 2)) == "f32[1,2]"
    assert type_of(lambda g, x: x[: N - 1], (N, 2)) == "f32[n - 1,2]"
    assert type_of(lambda g, x: x[1:], (N, 2)) == "f32[n - 1,2]"
    assert type_of(lambda g, x: x[::2], (2 * N, 2)) == "f32[n,2]"
    line = np.arange(10.0)
    for n in (1, 4, 10):
        k = Variable("k", 1, 10)
        got = run(lambda g, x, k=k: x[: k // 2], line, variables={"k": n})
        np.testing.assert_array_equal(got, line[: n // 2])


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        (0, np.s_[0]),
        (-1, np.s_[-1]),
        ((slice(None), 1), np.s_[:, 1]),
        ((..., -2), np.s_[..., -2]),
        ((None, 1, ..., None), np.s_[None, 1, ..., None]),
        ((1, 2, 3), np.s_[1, 2, 3]),
        ((slice(None), None, slice(1, None), 0), np.s_[:, None, 1:, 0]),
        ([1, 0, 1], [1, 0, 1]),
        ((slice(1), slice(None), [3, 1]), np.s_[:1, :, [3, 1]]),
    ],
    ids=str,
)
def test_getitem(run, x, key, wanted):
    np.testing.assert_array_equal(run(lambda g, x: x[key], x), x[wanted])


def test_getitem_by_values_and_variables(run, x, type_of):
    ids = np.array([[1, 0], [2, -1]])
    np.testing.assert_array_equal(run(lambda g, x, i: x[:, i], x, ids), x[:, ids])
    np.testing.assert_array_equal(run(lambda g, x, i: x[i], x, np.int32(1)), x[1])
    np.testing.assert_array_equal(run(lambda g, x, i: x[0, :, i], x, ids), x[0][:, ids])
    assert type_of(lambda g, x: x[N - 1], (N, 2)) == "f32[2]"
    for index in (-1, 0, 3):
        got = run(lambda g, x, index=index: x[index], x[0], shapes=[(N, 4)])
        np.testing.assert_array_equal(got, x[0][min(index, 2)])  # moved to lie within


def test_wrong_keys():
    g = Graph()
    v = g.input("x", (2, 3))
    for key, message in [
        (2, "index 2 is out of range for axis 0"),
        ((0, 0, 0), "do not fit"),
        ((..., ...), "do not fit"),
        (True, "a bool is no index"),
        (np.array([True, False, True]), r"the mask bool\[3\] does not fit"),
        (np.array([0.5]), "indices are integers"),
        (slice(None, None, 0), "a step is an int other than 0"),
        (slice("a", None), "a bound is an int"),
        (([0, 1], [0, 1, 0]), "do not broadcast"),
    ]:
        with pytest.raises(GraphError, match=message):
            _ = v[key]


def test_flip_and_roll(run, x):
    for axis in (None, 0, (0, -1)):
        got = run(lambda g, x, axis=axis: g.flip(x, axis), x)
        np.testing.assert_array_equal(got, np.flip(x, axis))
    for shift in (1, -1, 5, 0, 3):
        got = run(lambda g, x, shift=shift: g.roll(x, shift, 1), x)
        np.testing.assert_array_equal(got, np.roll(x, shift, 1))


# -- repeating and padding --------------------------------------------------------------------


@pytest.mark.parametrize("repeats", [(2, 1, 3), (1, 1, 1), (3,), 2, (2, 1, 1, 1), (0, 1, 1)])
def test_tile(run, x, repeats):
    np.testing.assert_array_equal(run(lambda g, x: g.tile(x, repeats), x), np.tile(x, repeats))


def test_repeat_and_symbolic_tile(run, x, type_of):
    got = run(lambda g, x: g.repeat(x, 3, 1), x)
    np.testing.assert_array_equal(got, np.repeat(x, 3, 1))
    assert type_of(lambda g, x: g.tile(x, (N, 1)), (2, M)) == "f32[2*n,m]"
    assert type_of(lambda g, x: g.repeat(x, N, 0), (2, 3)) == "f32[2*n,3]"


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("widths", [((0, 0), (2, 1), (0, 3)), ((1, 0), (0, 0), (2, 2))])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_pad(run, x, mode, widths, dtype):
    x = (x * 10).astype(dtype)
    np.testing.assert_array_equal(
        run(lambda g, x: g.pad(x, widths, mode), x), np.pad(x, widths, mode), strict=True
    )


def test_pad_with_values_and_negative_widths(run, x):
    got = run(lambda g, x: g.pad(x, [(0, 0), (1, -1), (-2, 1)], value=-1.5), x)
    np.testing.assert_array_equal(
        got, np.pad(x[:, :-1, 2:], [(0, 0), (1, 0), (0, 1)], constant_values=-1.5)
    )
    got = run(lambda g, x: g.pad(x, [(0, 0), (0, 0), (1, 1)], value=-np.inf), x)
    assert np.isneginf(got[..., 0]).all()
    flags = run(lambda g, x: g.pad(x, [(1, 1)], value=True), np.array([False]))
    np.testing.assert_array_equal(flags, [True, False, True])


def test_symbolic_pad(run, type_of):
    line = np.arange(5.0)
    for mode in ("constant", "edge", "reflect", "wrap"):
        n = Variable("n", 3, 9)
        got = run(lambda g, x, mode=mode: g.pad(x, [(2, 1)], mode), line, shapes=[(n,)])
        np.testing.assert_array_equal(got, np.pad(line, (2, 1), mode))
    assert type_of(lambda g, x: g.pad(x, [(2, 1), (0, 0)]), (N, 3)) == "f32[n + 3,3]"


def test_pads_that_do_not_fit():
    g = Graph()
    v = g.input("x", (3, 4))
    n = g.input("y", (N,))
    for widths, mode, message in [
        ([(1, 1)], "constant", r"\(before, after\) for each axis"),
        ([(1,), (1,)], "constant", r"\(before, after\) for each axis"),
        ([(3, 0), (0, 0)], "reflect", "takes an axis of at least 4, got 3"),
        ([(1, 1), (0, 0)], "mirror", "there is no padding mode 'mirror'"),
    ]:
        with pytest.raises(GraphError, match=message):
            g.pad(v, widths, mode)
    with pytest.raises(GraphError, match="takes an axis of at least 3, got n"):
        g.pad(n, [(2, 0)], "reflect")
    with pytest.raises(GraphError, match=r"a border of inf does not fit int32"):
        g.pad(g.cast(v, "int32"), [(1, 1), (0, 0)], value=float("inf"))
    with pytest.raises(GraphError, match=r"a border of 0.5 does not fit int32"):
        g.pad(g.cast(v, "int32"), [(1, 1), (0, 0)], value=0.5)


@pytest.mark.parametrize("k", [-2, 0, 1, 5])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float16"])
def test_triangles(run, rng, k, dtype):
    x = rng.integers(1, 3, (2, 3, 4)).astype(dtype)
    low, high = run(lambda g, x: (g.tril(x, k), g.triu(x, k)), x)
    np.testing.assert_array_equal(low, np.tril(x, k), strict=True)
    np.testing.assert_array_equal(high, np.triu(x, k), strict=True)


def test_triangles_of_symbolic_matrices(run, rng):
    x = rng.standard_normal((4, 4))
    got = run(lambda g, x: g.tril(x), x, shapes=[(N, N)])
    np.testing.assert_array_equal(got, np.tril(x))
    g = Graph()
    with pytest.raises(GraphError, match="at least 2 dimensions"):
        g.tril(g.input("x", (3,)))


# -- making tensors ---------------------------------------------------------------------------


def test_tensors_from_nothing(run):
    def build(g, x):
        return (
            g.iota((2, 3), 1),
            g.iota((2, 3), 0, "float16"),
            g.arange(5),
            g.arange(2, 9, 3),
            g.arange(9, 2, -3, dtype="float32"),
            g.full((2, 2), 7, "int8"),
            g.full((3,), 1.5),
            g.zeros((2,)),
            g.ones((1, 2), "bool"),
            g.full_like(x, 3),
            g.zeros_like(x, "int64"),
            g.ones_like(x),
        )

    x = np.zeros((2, 2), np.float16)
    wanted = (
        np.array([[0, 1, 2]] * 2),
        np.array([[0] * 3, [1] * 3], np.float16),
        np.arange(5),
        np.arange(2, 9, 3),
        np.arange(9, 2, -3, np.float32),
        np.full((2, 2), 7, np.int8),
        np.full(3, 1.5, np.float32),
        np.zeros(2, np.float32),
        np.ones((1, 2), bool),
        np.full((2, 2), 3, np.float16),
        np.zeros((2, 2), np.int64),
        np.ones((2, 2), np.float16),
    )
    for got, expected in zip(run(build, x), wanted, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)


def test_symbolic_tensors(run):
    n = Variable("n", 1, 9)
    x = np.zeros((4, 2), np.float32)
    line, count, ones, bent = run(
        lambda g, x: (
            g.arange(n),
            g.dim_value(3 * n + 1),
            g.ones((n, 2)),
            g.arange(1, n * n, 4),
        ),
        x,
        shapes=[(n, 2)],
    )
    np.testing.assert_array_equal(line, np.arange(4))
    np.testing.assert_array_equal(bent, np.arange(1, 16, 4))
    assert count == 13
    assert count.dtype == np.int64
    assert ones.shape == (4, 2)


def test_arange_needs_a_step():
    g = Graph()
    with pytest.raises(GraphError, match="not 0"):
        g.arange(0, 5, 0)
    assert g.dim_value(3).node.op.name == "constant"


def test_hostile_attributes_are_refused():
    from ostinato.ops import OPS

    x = Graph().input("x", (4,)).type
    for name, attrs in [
        ("slice", {"starts": (2,), "stops": (5,), "steps": (1,)}),
        ("slice", {"starts": (3,), "stops": (2,), "steps": (1,)}),
        ("slice", {"starts": (-1,), "stops": (2,), "steps": (1,)}),
        ("slice", {"starts": (0,), "stops": (2,), "steps": (0,)}),
        ("slice", {"starts": (), "stops": (), "steps": ()}),
        ("flip", {"axes": (1,)}),
        ("flip", {"axes": (0, 0)}),
        ("pad", {"before": (-1,), "after": (0,), "value": 0.0}),
        ("pad", {"before": (1,), "after": (0,), "value": "0"}),
        ("tile", {"repeats": (1, 2)}),
        ("permute_dims", {"axes": (1,)}),
        ("reshape", {"shape": (-4,)}),
    ]:
        with pytest.raises(GraphError):
            OPS[name].infer(x, **attrs)
