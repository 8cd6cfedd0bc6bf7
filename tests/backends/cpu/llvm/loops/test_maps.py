"""Maps: one element in, one element out, in every arrangement of axes and memory."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.dtypes import ALL_DTYPES, BOOL, FLOAT32, INT32, INT64, DType
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Apply, Arg, IndexValue, Load, Number, Scalar, Stage, Store
from ostinato.variables import Dim, Expr, Symbol, Variable, axis

SIZES = (0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 101, 127, 128, 129, 191)


def symbol(expr: Dim) -> Symbol:
    assert isinstance(expr, Expr)
    found = expr.terms[0][0][0]
    assert isinstance(found, Symbol)
    return found


def arguments(*dtypes: DType, outputs: int = 1) -> tuple[Arg, ...]:
    """Read-only arguments, then ``outputs`` written ones."""
    first = len(dtypes) - outputs
    return tuple(Arg(d, i < first, i >= first) for i, d in enumerate(dtypes))


def pointwise(
    args: tuple[Arg, ...],
    axes: tuple[Dim, ...],
    stores: tuple[Store, ...],
    mode: str,
    block: int = 64,
    **more,
) -> LoopNest:
    """The same map with its last axis as a row, or as lanes."""
    *outer, last = (symbol(a) for a in axes)
    if mode == "rows":
        return LoopNest(args, tuple(outer), (Stage((last,), stores),), **more)
    return LoopNest(args, tuple(outer), (Stage((), stores),), inner_axis=last, block=block, **more)


def add(x: Scalar, y: Scalar) -> Apply:
    return Apply("add", (x, y), x.dtype)


@pytest.fixture(params=["rows", "lanes"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_size_of_a_symbolic_extent(compile_nest, level, mode):
    size = Variable("S", 0, 200)
    i, j = axis("i", 3), axis("j", size)
    x = Load(0, i * size + j, FLOAT32)
    doubled = Apply("multiply", (x, Number(2.0, FLOAT32)), FLOAT32)
    store = Store(2, i * size + j, add(doubled, Load(1, j, FLOAT32)))
    args = arguments(FLOAT32, FLOAT32, FLOAT32)
    nest = pointwise(args, (i, j), (store,), mode, variables=(size.symbol,))
    compiled = compile_nest(nest, level)
    rng = np.random.default_rng(0)
    for n in SIZES:
        a, b = rng.random((3, n), np.float32), rng.random(n, np.float32)
        np.testing.assert_array_equal(compiled(a, b, np.zeros_like(a), S=n)[2], a * 2 + b)


@pytest.mark.parametrize("n", [0, 1, 5, 16, 61, 64, 96, 130])
def test_fixed_extents(compile_nest, level, mode, n):
    i, j = axis("i", 2), axis("j", n)
    store = Store(1, i * n + j, Apply("exp", (Load(0, i * n + j, FLOAT32),), FLOAT32))
    nest = pointwise(arguments(FLOAT32, FLOAT32), (i, j), (store,), mode)
    a = np.linspace(-3, 3, 2 * n, dtype=np.float32).reshape(2, n)
    result = compile_nest(nest, level)(a, np.zeros_like(a))[1]
    np.testing.assert_allclose(result, np.exp(a), rtol=1e-6)


@pytest.mark.parametrize("op", ["exp", "tanh", "sin"])
def test_long_ops_on_interleaved_vectors_have_the_bits_of_those_on_one(
    compile_nest, level, mode, op
):
    size = Variable("S", 0, 600)
    j = axis("j", size)
    store = Store(1, j, Apply(op, (Load(0, j, FLOAT32),), FLOAT32))
    args = arguments(FLOAT32, FLOAT32)
    nest = pointwise(args, (j,), (store,), mode, block=256, variables=(size.symbol,))
    compiled = compile_nest(nest, level)
    a = np.random.default_rng(3).uniform(-9, 9, 571).astype(np.float32)
    a[[500, 531, 560]] = np.nan, np.inf, -np.inf
    last = np.split(a[480:], 13)
    expected = np.concatenate([compiled(p, np.zeros_like(p), S=p.size)[1] for p in last])
    whole = compiled(a, np.zeros_like(a), S=a.size)[1]
    np.testing.assert_array_equal(whole[480:].view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype(compile_nest, level, mode, dtype):
    n = 203
    j = axis("j", n)
    x, y = Load(0, j, dtype), Load(1, j, dtype)
    op = "logical_xor" if dtype == BOOL else "add"
    nest = pointwise(
        arguments(dtype, dtype, dtype), (j,), (Store(2, j, Apply(op, (x, y), dtype)),), mode
    )
    rng = np.random.default_rng(1)
    a, b = (_some(rng, dtype, n) for _ in range(2))
    expected = np.logical_xor(a, b) if dtype == BOOL else a + b
    result = compile_nest(nest, level)(a, b, np.zeros(n, dtype.numpy))[2]
    np.testing.assert_array_equal(
        result.view(np.uint8), expected.astype(dtype.numpy).view(np.uint8)
    )


def _some(rng: np.random.Generator, dtype: DType, n: int) -> np.ndarray:
    if dtype == BOOL:
        return rng.random(n) < 0.5
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max, n, dtype.numpy, endpoint=True)
    return rng.standard_normal(n).astype(dtype.numpy)


def test_broadcast_transposed_strided_and_reversed_operands(compile_nest, level, mode):
    m, n = 5, 37
    i, j = axis("i", m), axis("j", n)
    terms = [
        Load(0, i, FLOAT32),
        Load(1, j, FLOAT32),
        Load(2, j * m + i, FLOAT32),
        Load(3, i * 2 * n + 2 * j, FLOAT32),
        Load(4, i * n + (n - 1) - j, FLOAT32),
        Load(5, 0, FLOAT32),
    ]
    total: Scalar = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    nest = pointwise(arguments(*[FLOAT32] * 7), (i, j), (Store(6, i * n + j, total),), mode)
    rng = np.random.default_rng(2)
    shapes = [(m, 1), (1, n), (n, m), (m, 2 * n - 1), (m, n), (1, 1)]
    a = [rng.random(s, np.float32) for s in shapes]
    # Rows of the strided operand lie 2n apart, and the last one ends at its last element.
    strided = np.zeros(2 * n * m - 1, np.float32)
    wide = np.lib.stride_tricks.as_strided(strided, (m, 2 * n - 1), (8 * n, 4))
    wide[...] = a[3]
    expected = a[0] + a[1] + a[2].T + a[3][:, ::2] + a[4][:, ::-1] + a[5]
    result = compile_nest(nest, level)(*a[:3], strided, *a[4:], np.zeros((m, n), np.float32))
    np.testing.assert_allclose(result[6], expected, rtol=1e-6)


def test_transposed_and_reversed_stores(compile_nest, level, mode):
    m, n = 4, 45
    i, j = axis("i", m), axis("j", n)
    x = Load(0, i * n + j, FLOAT32)
    stores = (Store(1, j * m + i, x), Store(2, i * n + (n - 1) - j, x))
    args = arguments(FLOAT32, FLOAT32, FLOAT32, outputs=2)
    nest = pointwise(args, (i, j), stores, mode)
    a = np.arange(m * n, dtype=np.float32).reshape(m, n)
    result = compile_nest(nest, level)(a, np.zeros((n, m), np.float32), np.zeros_like(a))
    np.testing.assert_array_equal(result[1], a.T)
    np.testing.assert_array_equal(result[2], a[:, ::-1])


@pytest.mark.parametrize("inner", [64, 37, 128])
def test_indices_that_divide(compile_nest, level, mode, inner):
    outer = 6
    p = axis("p", outer * inner)
    rows, columns = Load(0, p // inner, INT32), Load(1, p % inner, INT32)
    swapped = Load(2, p % inner * outer + p // inner, INT32)
    store = Store(3, p, add(add(rows, columns), swapped))
    nest = pointwise(arguments(*[INT32] * 4), (p,), (store,), mode)
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 99, (outer, 1), np.int32), rng.integers(0, 99, inner, np.int32)
    c = rng.integers(0, 99, (inner, outer), np.int32)
    result = compile_nest(nest, level)(a, b, c, np.zeros((outer, inner), np.int32))[3]
    np.testing.assert_array_equal(result, a + b + c.T)


@pytest.mark.parametrize("dtype", [INT64, INT32, FLOAT32, BOOL], ids=str)
def test_index_values(compile_nest, level, mode, dtype):
    size = Variable("S", 0, 100)
    j = axis("j", size)
    value = IndexValue(3 * j + size - 1, dtype)
    nest = pointwise(arguments(dtype), (j,), (Store(0, j, value),), mode, variables=(size.symbol,))
    expected = (3 * np.arange(77) + 76).astype(dtype.numpy)
    result = compile_nest(nest, level)(np.zeros(77, dtype.numpy), S=77)[0]
    np.testing.assert_array_equal(result, expected)


def test_many_outer_axes_of_which_some_are_symbolic(compile_nest, level, mode):
    size = Variable("S", 0, 9)
    a, b, c, d = axis("a", 2), axis("b", size), axis("c", 3), axis("d", 5)
    index = ((a * size + b) * 3 + c) * 5 + d
    turned = ((c * 5 + d) * 2 + a) * size + b
    stores = (Store(1, turned, Load(0, index, INT32)),)
    nest = pointwise(arguments(INT32, INT32), (a, b, c, d), stores, mode, variables=(size.symbol,))
    compiled = compile_nest(nest, level)
    for n in (0, 1, 7):
        x = np.arange(2 * n * 15, dtype=np.int32).reshape(2, n, 3, 5)
        expected = x.transpose(2, 3, 0, 1)
        result = compiled(x, np.zeros(expected.shape, np.int32), S=n)[1]
        np.testing.assert_array_equal(result, expected)


def test_a_single_point(compile_nest, level):
    store = Store(1, 0, add(Load(0, 0, FLOAT32), Number(1.5, FLOAT32)))
    nest = LoopNest(arguments(FLOAT32, FLOAT32), (), (Stage((), (store,)),))
    x = np.array([2.0], np.float32)
    assert compile_nest(nest, level)(x, x)[1] == [3.5]


def test_in_place_and_two_results(compile_nest, level, mode):
    n = 75
    j = axis("j", n)
    x, y = Load(0, j, FLOAT32), Load(1, j, FLOAT32)
    total = add(x, y)
    stores = (Store(0, j, total), Store(2, j, Apply("subtract", (x, y), FLOAT32)))
    args = (Arg(FLOAT32, writes=True), Arg(FLOAT32), Arg(FLOAT32, False, True))
    a, b = np.arange(n, dtype=np.float32), np.full(n, 2, np.float32)
    result = compile_nest(pointwise(args, (j,), stores, mode), level)(a, b, np.zeros_like(a))
    np.testing.assert_array_equal(result[0], a + b)
    np.testing.assert_array_equal(result[2], a - b)
