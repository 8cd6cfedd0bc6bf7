"""matmul and einsum against loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


def matmul_by_loops(a, b):
    rows, columns = a.reshape(-1, a.shape[-1]) if a.ndim < 2 else a, b
    if a.ndim == 1:
        return matmul_by_loops(rows, b)[..., 0, :] if b.ndim > 1 else np.array((a * b).sum())
    if b.ndim == 1:
        return matmul_by_loops(a, columns[:, None])[..., 0]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    result = np.zeros((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    for index in np.ndindex(*result.shape):
        *lead, i, j = index
        result[index] = (a[(*lead, i)] * b[(*lead, slice(None), j)]).sum(dtype=a.dtype)
    return result


SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 5)),
    ((5, 3), (3,)),
    ((3,), (2, 3, 5)),
    ((2, 5, 3), (3,)),
    ((1, 1), (1, 1)),
    ((7, 13), (13, 11)),
    ((2, 1, 4, 3), (5, 3, 2)),
    ((0, 4, 3), (3, 2)),
    ((4, 0), (0, 2)),
    ((4, 3), (3, 0)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul(run, rng, left, right):
    a, b = rng.standard_normal(left), rng.standard_normal(right)
    np.testing.assert_allclose(
        run(lambda g, a, b: g.matmul(a, b), a, b), matmul_by_loops(a, b), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integer_products_wrap(run, rng, dtype):
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, (4, 9), dtype=dtype)
    b = rng.integers(info.min, info.max, (9, 5), dtype=dtype)
    result = run(lambda g, a, b: a @ b, a, b)
    assert result.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(result, matmul_by_loops(a, b))


def test_matmul_of_halves_rounds_once(run, rng):
    a, b = (rng.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(run(lambda g, a, b: g.matmul(a, b), a, b), exact)


def test_matmul_promotes(run):
    result = run(
        lambda g, a, b: g.matmul(a, b), np.ones((2, 3), np.int32), np.ones((3, 2), np.float32)
    )
    assert result.dtype == np.float32


def test_matmul_takes_arrays(run):
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(run(lambda g, x: g.matmul(x, weight), x), x @ weight)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ((2, 4), (5, 3), "inner dimensions 4 and 5 differ"),
        ((2, 4), (3,), "inner dimensions 4 and 3 differ"),
        ((), (3,), "expected rank 1 or more, got a scalar"),
        ((2, 3, 4), (3, 4, 5), "do not broadcast: 2 meets 3"),
    ],
)
def test_matmul_refuses(left, right, message):
    g = Graph()
    with pytest.raises(GraphError, match=message) as error:
        g.matmul(g.input("a", left), g.input("b", right))
    assert "test_linalg.py" in str(error.value)


def test_matmul_refuses_bools():
    g = Graph()
    a = g.input("a", (2, 2), "bool")
    with pytest.raises(GraphError, match="take numbers, got bools"):
        g.matmul(a, a)


def test_symbolic_matmul(type_of):
    n, m = Variable("n", 1, 8), Variable("m", 0, 4)
    assert type_of(lambda g, a, b: a @ b, (m, n, 4), (4, 3)) == "f32[m,n,3]"
    assert type_of(lambda g, a, b: a @ b, (m, 4, n), (m, n, 3)) == "f32[m,4,3]"
    with pytest.raises(GraphError, match="inner dimensions n and m differ"):
        type_of(lambda g, a, b: a @ b, (2, n), (m, 2))


def test_flops():
    g = Graph()
    y = g.matmul(g.input("a", (2, 3, 4)), g.input("b", (4, 5)))
    node = y.node
    assert node.op.flops([v.type for v in node.inputs], node.attrs) == 2 * 2 * 3 * 4 * 5


def einsum_by_loops(equation, *operands):
    """Every assignment of indices to labels, one after the other. No ellipsis."""
    left, _, result = equation.partition("->")
    terms = left.split(",")
    sizes = {
        n: max(s for t, o in zip(terms, operands, strict=True)
               for m, s in zip(t, o.shape, strict=True) if m == n)
        for n in set("".join(terms))
    }  # fmt: skip
    total = np.zeros([sizes[n] for n in result])
    for values in itertools.product(*(range(s) for s in sizes.values())):
        at = dict(zip(sizes, values, strict=True))
        product = 1.0
        for term, operand in zip(terms, operands, strict=True):
            index = tuple(
                at[n] if size > 1 else 0 for n, size in zip(term, operand.shape, strict=True)
            )
            product *= operand[index]
        total[tuple(at[n] for n in result)] += product
    return total


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,jk->ki", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 2, 5)]),
        ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 2, 3, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("i,i->", [(3,), (3,)]),
        ("i,i->i", [(3,), (3,)]),
        ("ij->ji", [(3, 4)]),
        ("ij->", [(3, 4)]),
        ("ij->j", [(3, 4)]),
        ("ii->", [(4, 4)]),
        ("ii->i", [(4, 4)]),
        ("iji->j", [(3, 2, 3)]),
        ("iiji->ij", [(3, 3, 2, 3)]),
        ("ii,ij->j", [(3, 3), (3, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,jk,kl->", [(2, 3), (3, 4), (4, 5)]),
        ("abc,cd,be->ade", [(2, 3, 4), (4, 2), (3, 5)]),
        ("abcd,cdef->abef", [(2, 1, 3, 2), (3, 2, 4, 1)]),
        ("ab,cd->dbca", [(2, 3), (2, 4)]),
        ("ij,jk->ik", [(3, 1), (4, 5)]),
        ("ij,ij->ij", [(1, 4), (3, 1)]),
        ("ij,k->k", [(2, 3), (4,)]),
        ("a->a", [(5,)]),
        ("ij,jk->ik", [(0, 4), (4, 2)]),
        (",->", [(), ()]),
    ],
)
def test_einsum(run, rng, equation, shapes):
    operands = [rng.standard_normal(shape) for shape in shapes]
    result = run(lambda g, *xs: g.einsum(equation, *xs), *operands)
    wanted = einsum_by_loops(equation, *operands)
    np.testing.assert_allclose(result, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("equation", "same_as", "shapes"),
    [
        ("...ij,...jk->...ik", "xyij,xyjk->xyik", [(2, 3, 4, 5), (2, 3, 5, 2)]),
        ("...ij,jk", "xyij,jk->xyik", [(2, 3, 4, 5), (5, 2)]),
        ("...ij,...jk", "xyij,yjk->xyik", [(2, 3, 4, 5), (3, 5, 2)]),
        ("i...->...i", "ixy->xyi", [(2, 3, 4)]),
        ("...->", "xy->", [(2, 3)]),
        ("ba", "ba->ab", [(2, 3)]),
        ("ij , jk", "ij,jk->ik", [(2, 3), (3, 4)]),
        ("...i,...i->...", "xi,xi->x", [(2, 3), (2, 3)]),
    ],
)
def test_einsum_with_ellipsis_or_implicit_result(run, rng, equation, same_as, shapes):
    operands = [rng.standard_normal(shape) for shape in shapes]
    result = run(lambda g, *xs: g.einsum(equation, *xs), *operands)
    np.testing.assert_allclose(result, einsum_by_loops(same_as, *operands), rtol=1e-11, atol=1e-11)


def test_einsum_keeps_integers(run):
    a = np.full((3, 3), 100, np.int8)
    result = run(lambda g, a: g.einsum("ij,jk->ik", a, a), a)
    assert result.dtype == np.int8
    np.testing.assert_array_equal(result, np.full((3, 3), np.int64(30000).astype(np.int8)))


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk", [(2, 3)], "has 2 operands, got 1"),
        ("ijk", [(2, 3)], "'ijk' does not name the 2 dims"),
        ("i", [(2, 3)], "'i' does not name the 2 dims"),
        ("ij,jk", [(2, 3), (4, 5)], "label 'j' has sizes 3 and 4"),
        ("ii", [(2, 3)], "label 'i' has sizes 2 and 3"),
        ("ij->ik", [(2, 3)], "label 'k' is on no operand"),
        ("ij->ii", [(2, 3)], "label 'i' occurs twice"),
        ("i1", [(2, 3)], "'1' is no label"),
        ("i....", [(2, 3)], "'.' is no label"),
        ("...,...", [(2,), (3,)], "a dim of the ellipsis has sizes 2 and 3"),
    ],
)
def test_einsum_refuses(equation, shapes, message):
    g = Graph()
    with pytest.raises(GraphError, match=message):
        g.einsum(equation, *(g.input(f"x{i}", s) for i, s in enumerate(shapes)))


def test_einsum_refuses_what_is_no_equation():
    g = Graph()
    with pytest.raises(GraphError, match="equation is a string"):
        g.einsum(3, g.input("x", (2,)))
    with pytest.raises(GraphError, match="at least one operand"):
        g.einsum("")


def test_symbolic_einsum(run, type_of):
    n = Variable("n", 1, 8)
    assert type_of(lambda g, a, b: g.einsum("bqhd,bkhd->bhqk", a, b), (2, n, 3, 4), (2, n, 3, 4)) \
        == "f32[2,3,n,n]"  # fmt: skip
    x = np.arange(25.0).reshape(5, 5)
    assert run(lambda g, x: g.einsum("ii->", x), x, shapes=[(n, n)]) == 60.0
