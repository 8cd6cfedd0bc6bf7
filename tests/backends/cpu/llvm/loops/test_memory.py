"""Guards, gathers and scatters: accesses that depend on conditions and on data."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.dtypes import BOOL, FLOAT16, FLOAT32, INT8, INT32, INT64
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Apply,
    Arg,
    Binding,
    Guard,
    Load,
    Number,
    Reduce,
    Ref,
    Scalar,
    Stage,
    Store,
)
from ostinato.variables import Dim, Expr, Symbol, Variable, axis


def symbol(expr: Dim) -> Symbol:
    assert isinstance(expr, Expr)
    found = expr.terms[0][0][0]
    assert isinstance(found, Symbol)
    return found


def data(name: str, value: Scalar, high: int) -> tuple[Dim, tuple[Binding, ...]]:
    """A data symbol that runs over ``0..high``."""
    made = Symbol(name, 0, high)
    as_int64 = Apply("cast", (value,), INT64, (("dtype", INT64),))
    return Expr({(made,): 1}, 0), (Binding(made, as_int64),)


@pytest.fixture(params=["rows", "lanes"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def nest_of(args, axes, stores, mode, **more) -> LoopNest:
    *outer, last = (symbol(a) for a in axes)
    if mode == "rows":
        return LoopNest(args, tuple(outer), (Stage((last,), stores),), **more)
    return LoopNest(args, tuple(outer), (Stage((), stores),), inner_axis=last, block=64, **more)


# -- guards ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT32, INT8, FLOAT16], ids=str)
@pytest.mark.parametrize("n", [1, 30, 64, 97])
def test_padding(compile_nest, level, mode, dtype, n):
    m, top, left, right = 3, 2, 5, 7
    height, width = m + top + 1, n + left + right
    i, j = axis("i", height), axis("j", width)
    inside = (i - top, m + top - 1 - i, j - left, n + left - 1 - j)
    body = Load(0, (i - top) * n + (j - left), dtype)
    store = Store(1, i * width + j, Guard(inside, body, Number(3, dtype), dtype))
    nest = nest_of((Arg(dtype), Arg(dtype, False, True)), (i, j), (store,), mode)
    x = np.random.default_rng(5).integers(-9, 9, (m, n)).astype(dtype.numpy)
    result = compile_nest(nest, level)(x, np.zeros((height, width), dtype.numpy))[1]
    expected = np.pad(x, ((top, 1), (left, right)), constant_values=3)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("by", ["row", "column"])
def test_concatenation(compile_nest, level, mode, by):
    """Three parts, each read only where it exists; what is broadcast is guarded as well."""
    parts, other = (3, 20, 45), 4
    total = sum(parts)
    rows, columns = (total, other) if by == "row" else (other, total)
    i, j = axis("i", rows), axis("j", columns)
    along, across = (i, j) if by == "row" else (j, i)
    value: Scalar = Number(0.0, FLOAT32)
    start = total
    for number in (2, 1, 0):
        start -= parts[number]
        place = along - start
        scale = Load(3, across, FLOAT32)
        index = place * other + across if by == "row" else across * parts[number] + place
        body = Apply("multiply", (Load(number, index, FLOAT32), scale), FLOAT32)
        conditions = (place, parts[number] - 1 - place)
        value = Guard(conditions, body, value, FLOAT32)
    args = (*[Arg(FLOAT32)] * 4, Arg(FLOAT32, False, True))
    nest = nest_of(args, (i, j), (Store(4, i * columns + j, value),), mode)
    rng = np.random.default_rng(6)
    shapes = [(p, other) if by == "row" else (other, p) for p in parts]
    x = [rng.random(s, np.float32) for s in shapes]
    scales = rng.random(other, np.float32)
    result = compile_nest(nest, level)(*x, scales, np.zeros((rows, columns), np.float32))[4]
    joined = np.concatenate(x, 0 if by == "row" else 1)
    expected = joined * (scales if by == "row" else scales[:, None])
    np.testing.assert_array_equal(result, expected)


def test_an_empty_operand_is_never_read(compile_nest, level, mode):
    size = Variable("S", 0, 60)
    j = axis("j", 80)
    body = Apply("add", (Load(0, j, FLOAT32), Load(1, 0, FLOAT32)), FLOAT32)
    value = Guard((size - 1 - j,), body, Number(-1.0, FLOAT32), FLOAT32)
    args = (Arg(FLOAT32), Arg(FLOAT32), Arg(FLOAT32, False, True))
    nest = nest_of(args, (j,), (Store(2, j, value),), mode, variables=(size.symbol,))
    compiled = compile_nest(nest, level)
    for n in (0, 1, 33, 60):
        x, one = np.arange(n, dtype=np.float32), np.ones(min(n, 1), np.float32)
        result = compiled(x, one, np.zeros(80, np.float32), S=n)[2]
        np.testing.assert_array_equal(result[:n], x + 1)
        np.testing.assert_array_equal(result[n:], -1)


def test_what_an_empty_loop_would_read_is_not_read(compile_nest, level):
    """The row's factor can be moved out of the loop, but not in front of a loop over nothing."""
    size = Variable("S", 0, 60)
    i, j = axis("i", 3), axis("j", size)
    factor = Load(1, i * size, FLOAT32)
    product = Apply("multiply", (Load(0, i * size + j, FLOAT32), factor), FLOAT32)
    stages = (
        Stage((symbol(j),), (Reduce("r", "sum", product, FLOAT32),)),
        Stage((), (Store(2, i, Ref("r", FLOAT32)),)),
    )
    args = (Arg(FLOAT32), Arg(FLOAT32), Arg(FLOAT32, False, True))
    nest = LoopNest(args, (symbol(i),), stages, variables=(size.symbol,))
    compiled = compile_nest(nest, level)
    for n in (0, 1, 40):
        x = np.ones((3, n), np.float32)
        result = compiled(x, x * 2, np.full(3, 9, np.float32), S=n)[2]
        np.testing.assert_array_equal(result, 2 * n)


# -- gathers --------------------------------------------------------------------------------


@pytest.mark.parametrize("ids_dtype", [INT32, INT64, INT8], ids=str)
def test_rows_picked_by_data(compile_nest, level, mode, ids_dtype):
    count, width, table = 7, 50, 20
    i, j = axis("i", count), axis("j", width)
    row, bindings = data("d", Load(1, i, ids_dtype), table - 1)
    store = Store(2, i * width + j, Load(0, row * width + j, FLOAT32, bindings))
    args = (Arg(FLOAT32), Arg(ids_dtype), Arg(FLOAT32, False, True))
    nest = nest_of(args, (i, j), (store,), mode)
    rng = np.random.default_rng(7)
    x = rng.random((table, width), np.float32)
    ids = rng.integers(0, table, count).astype(ids_dtype.numpy)
    result = compile_nest(nest, level)(x, ids, np.zeros((count, width), np.float32))[2]
    np.testing.assert_array_equal(result, x[ids])


@pytest.mark.parametrize("dtype", [FLOAT32, INT8, BOOL, FLOAT16, INT64], ids=str)
def test_elements_picked_by_data(compile_nest, level, mode, dtype):
    n, table = 90, 70
    j = axis("j", n)
    picked, bindings = data("d", Load(1, j, INT32), table - 1)
    folded = picked // 7 * 7 + (6 - picked % 7)
    stores = (Store(2, j, Load(0, folded, dtype, bindings)),)
    args = (Arg(dtype), Arg(INT32), Arg(dtype, False, True))
    x = np.random.default_rng(8).integers(0, 2, table).astype(dtype.numpy)
    ids = np.random.default_rng(9).integers(0, table, n, np.int32)
    nest = nest_of(args, (j,), stores, mode)
    result = compile_nest(nest, level)(x, ids, np.zeros(n, dtype.numpy))[2]
    np.testing.assert_array_equal(result, x[ids // 7 * 7 + 6 - ids % 7])


def test_a_guarded_gather_of_a_gather(compile_nest, level, mode):
    """An index is itself read at an index from memory, and only where it exists."""
    n, inner, table = 60, 40, 33
    j = axis("j", n)
    first, bind_first = data("d", Load(1, j, INT32), inner - 1)
    second, bind_second = data("e", Load(2, first, INT32, bind_first), table - 1)
    body = Load(0, second, FLOAT32, bind_second)
    value = Guard((49 - j,), body, Number(-1.0, FLOAT32), FLOAT32)
    args = (Arg(FLOAT32), Arg(INT32), Arg(INT32), Arg(FLOAT32, False, True))
    nest = nest_of(args, (j,), (Store(3, j, value),), mode)
    rng = np.random.default_rng(10)
    x = rng.random(table, np.float32)
    outer_ids, inner_ids = rng.integers(0, inner, 50, np.int32), rng.integers(0, table, inner)
    inner_ids = inner_ids.astype(np.int32)
    result = compile_nest(nest, level)(x, outer_ids, inner_ids, np.zeros(n, np.float32))[3]
    np.testing.assert_array_equal(result[:50], x[inner_ids[outer_ids]])
    np.testing.assert_array_equal(result[50:], -1)


# -- scatters -------------------------------------------------------------------------------

UPDATES = {
    "set": lambda x, ids, u: x.__setitem__(ids, u),
    "add": np.add.at,
    "mul": np.multiply.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}


@pytest.mark.parametrize("update", list(UPDATES))
@pytest.mark.parametrize("dtype", [FLOAT32, INT32, FLOAT16], ids=str)
def test_scatter_with_duplicates(compile_nest, level, mode, update, dtype):
    n, size = 75, 11
    j = axis("j", n)
    # The symbol's bounds hold of the numbers in memory; those beyond the target are dropped.
    place, bindings = data("d", Load(1, j, INT32), 2 * size)
    store = Store(0, place, Load(2, j, dtype), bindings, update, (size - 1 - place,))
    args = (Arg(dtype, writes=True), Arg(INT32), Arg(dtype))
    nest = nest_of(args, (j,), (store,), mode, parallel=False)
    rng = np.random.default_rng(11)
    x = rng.integers(1, 3, size).astype(dtype.numpy)
    ids = rng.integers(0, 2 * size, n, np.int32)
    values = rng.integers(1, 3, n).astype(dtype.numpy)
    expected = x.copy()
    kept = ids < size
    with np.errstate(over="ignore"):
        UPDATES[update](expected, ids[kept], values[kept])
    result = compile_nest(nest, level)(x, ids, values)[0]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("update", ["set", "add"])
def test_scatter_of_rows(compile_nest, level, mode, update):
    n, width, size = 9, 40, 5
    i, j = axis("i", n), axis("j", width)
    place, bindings = data("d", Load(1, i, INT64), size)
    value = Load(2, i * width + j, FLOAT32)
    store = Store(0, place * width + j, value, bindings, update, (size - 1 - place,))
    args = (Arg(FLOAT32, writes=True), Arg(INT64), Arg(FLOAT32))
    nest = nest_of(args, (i, j), (store,), mode, parallel=False)
    rng = np.random.default_rng(12)
    x = rng.random((size, width), np.float32)
    ids, values = rng.integers(0, size + 1, n), rng.random((n, width), np.float32)
    expected = x.copy()
    UPDATES[update](expected, ids[ids < size], values[ids < size])
    result = compile_nest(nest, level)(x, ids, values)[0]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_a_store_that_ignores_its_axis_keeps_the_last(compile_nest, level, mode):
    j = axis("j", 40)
    stores = (Store(1, j // 8, Load(0, j, FLOAT32)), Store(2, 0, Load(0, j, FLOAT32)))
    args = (Arg(FLOAT32), Arg(FLOAT32, False, True), Arg(FLOAT32, False, True))
    nest = nest_of(args, (j,), stores, mode, parallel=False)
    x = np.arange(40, dtype=np.float32)
    result = compile_nest(nest, level)(x, np.zeros(5, np.float32), np.zeros(1, np.float32))
    np.testing.assert_array_equal(result[1], x[7::8])
    np.testing.assert_array_equal(result[2], x[-1:])


def test_a_later_statement_reads_what_an_earlier_one_wrote(compile_nest, level, mode):
    j = axis("j", 70)
    doubled = Apply("multiply", (Load(0, j, FLOAT32), Number(2.0, FLOAT32)), FLOAT32)
    again = Apply("add", (Load(1, j, FLOAT32), Number(1.0, FLOAT32)), FLOAT32)
    args = (Arg(FLOAT32), Arg(FLOAT32, True, True), Arg(FLOAT32, False, True))
    nest = nest_of(args, (j,), (Store(1, j, doubled), Store(2, j, again)), mode)
    x = np.arange(70, dtype=np.float32)
    result = compile_nest(nest, level)(x, np.zeros_like(x), np.zeros_like(x))
    np.testing.assert_array_equal(result[2], 2 * x + 1)
