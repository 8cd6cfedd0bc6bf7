"""Reductions and scans along rows and down columns, and stages that build on each other."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT32,
    DType,
)
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Apply,
    Arg,
    Load,
    Number,
    Reduce,
    Ref,
    Scalar,
    Scan,
    Stage,
    Store,
    Temp,
)
from ostinato.variables import Dim, Expr, Symbol, Variable, axis

SIZES = (0, 1, 2, 7, 16, 17, 63, 64, 65, 113, 128, 130)
COLUMNS = 21

NUMPY = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
    "argmax": np.argmax,
    "argmin": np.argmin,
}


def symbol(expr: Dim) -> Symbol:
    assert isinstance(expr, Expr)
    found = expr.terms[0][0][0]
    assert isinstance(found, Symbol)
    return found


def cast(x: Scalar, dtype: DType) -> Scalar:
    return x if x.dtype == dtype else Apply("cast", (x,), dtype, (("dtype", dtype),))


def reduction(op: str, dtype: DType, mode: str, size: Dim, variables=()) -> LoopNest:
    """``[3, size] -> [3]`` along rows, ``[size, COLUMNS] -> [COLUMNS]`` down columns."""
    accumulator = dtype.accumulator
    result = INT64 if "arg" in op else accumulator
    out = INT64 if "arg" in op else dtype
    args = (Arg(dtype), Arg(out, False, True))
    if mode == "rows":
        i, k = axis("i", 3), axis("k", size)
        load, lane = Load(0, i * size + k, dtype), None
    else:
        i, k = axis("i", COLUMNS), axis("k", size)
        load, lane = Load(0, k * COLUMNS + i, dtype), symbol(i)
    reduce = Reduce("r", op, cast(load, accumulator), result, index=k)
    store = Store(1, i, cast(Ref("r", result), out))
    stages = (Stage((symbol(k),), (reduce,)), Stage((), (store,)))
    axes = () if lane else (symbol(i),)
    return LoopNest(args, axes, stages, inner_axis=lane, block=64, variables=variables)


@pytest.fixture(params=["rows", "columns"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def random_values(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(4)
    if dtype == BOOL:
        return rng.random(shape) < 0.1
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
    return rng.standard_normal(shape).astype(dtype.numpy)


CASES = [
    *[(op, FLOAT32) for op in ("sum", "prod", "max", "min", "argmax", "argmin")],
    *[(op, INT32) for op in ("sum", "prod", "max", "min", "argmax", "argmin")],
    *[(op, BOOL) for op in ("any", "all", "max", "argmax")],
    *[("sum", d) for d in (FLOAT64, FLOAT16, BFLOAT16, INT8, UINT8, INT64)],
    *[("max", d) for d in (FLOAT64, FLOAT16, BFLOAT16, INT8, UINT8, UINT32)],
    *[("argmin", d) for d in (FLOAT64, FLOAT16, INT8, UINT8)],
]


def test_reductions_of_long_ops_over_interleaved_vectors(compile_nest, level):
    size = Variable("S", 1, 600)
    i, j = axis("i", 2), axis("j", size)
    value = Apply("exp", (Load(0, i * size + j, FLOAT32),), FLOAT32)
    reductions = [Reduce(op, op, value, FLOAT32) for op in ("sum", "max")]
    stores = [Store(k, i, Ref(r.name, FLOAT32)) for k, r in enumerate(reductions, 1)]
    args = (Arg(FLOAT32, True, False), *(Arg(FLOAT32, False, True) for _ in stores))
    stages = (Stage((symbol(j),), tuple(reductions)), Stage((), tuple(stores)))
    nest = LoopNest(args, (symbol(i),), stages, variables=(size.symbol,))
    compiled = compile_nest(nest, level)
    rng = np.random.default_rng(4)
    for n in (1, 7, 63, 64, 130, 511, 512, 573):
        a = rng.uniform(-5, 2, (2, n)).astype(np.float32)
        empty = np.zeros(2, np.float32)
        _, total, most = compiled(a, empty, empty, S=n)
        exact = np.exp(a.astype(np.float64))
        np.testing.assert_allclose(total, exact.sum(1), rtol=2e-6)
        np.testing.assert_allclose(most, exact.max(1), rtol=2e-7)


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda p: str(p))
def test_every_size(compile_nest, level, mode, op, dtype):
    size = Variable("S", 0, 150)
    nest = reduction(op, dtype, mode, size, (size.symbol,))
    compiled = compile_nest(nest, level)
    for n in SIZES:
        shape = (3, n) if mode == "rows" else (n, COLUMNS)
        dim = 1 if mode == "rows" else 0
        x = random_values(dtype, shape)
        if op == "prod" and dtype == FLOAT32:
            x = x / 8 + 1
        empty = np.zeros(shape[1 - dim], nest.args[1].dtype.numpy)
        result = compiled(x, empty, S=n)[1]
        if n == 0 and op not in ("sum", "prod", "any", "all"):
            continue  # NumPy has no answer; it is enough that nothing else was touched
        _check(op, dtype, x, dim, result)


def _check(op: str, dtype: DType, x: np.ndarray, dim: int, result: np.ndarray) -> None:
    if dtype.is_float and op in ("sum", "prod"):
        expected = NUMPY[op](x.astype(np.float64), axis=dim)
        tolerance = {2: 2e-2, 4: 1e-5, 8: 1e-13}[dtype.itemsize]
        np.testing.assert_allclose(
            result.astype(np.float64), expected, rtol=tolerance, atol=tolerance
        )
    else:
        more = {"dtype": x.dtype} if op in ("sum", "prod") else {}
        np.testing.assert_array_equal(result, NUMPY[op](x, axis=dim, **more))


@pytest.mark.parametrize("n", [1, 5, 16, 48, 67, 128])
@pytest.mark.parametrize("op", ["sum", "argmax"])
def test_fixed_extents(compile_nest, level, mode, op, n):
    nest = reduction(op, FLOAT32, mode, n)
    shape, dim = ((3, n), 1) if mode == "rows" else ((n, COLUMNS), 0)
    x = random_values(FLOAT32, shape)
    result = compile_nest(nest, level)(x, np.zeros(shape[1 - dim], nest.args[1].dtype.numpy))
    _check(op, FLOAT32, x, dim, result[1])


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
def test_nan_counts_as_the_extreme_and_ties_go_to_the_first(compile_nest, level, mode, op):
    n = 70
    compiled = compile_nest(reduction(op, FLOAT32, mode, n), level)
    rows = 3 if mode == "rows" else COLUMNS
    worst = -np.inf if op.endswith("max") else np.inf
    for values in (
        {},
        {5: np.nan},
        {69: np.nan, 41: np.nan},
        {0: np.nan, 1: -worst},
        {17: 7.0, 33: 7.0, 49: 7.0},
        dict.fromkeys(range(n), worst),
        {3: -worst, 60: -worst},
    ):
        x = np.zeros((rows, n), np.float32)
        for position, value in values.items():
            x[:, position] = value
        given = x if mode == "rows" else np.ascontiguousarray(x.T)
        result = compiled(given, np.zeros(rows, np.int64 if "arg" in op else np.float32))[1]
        np.testing.assert_array_equal(result, NUMPY[op](x, axis=1))


def test_two_axes_at_once(compile_nest, level, mode):
    """Sum over the first and last axis of three, along rows or down lanes of the middle one."""
    a, n, c = 3, 19, 37
    i, j, k = axis("i", a), axis("j", n), axis("k", c)
    load = Load(0, (i * n + j) * c + k, FLOAT32)
    stage = Stage((symbol(i), symbol(k)), (Reduce("r", "sum", load, FLOAT32),))
    stages = (stage, Stage((), (Store(1, j, Ref("r", FLOAT32)),)))
    args = (Arg(FLOAT32), Arg(FLOAT32, False, True))
    if mode == "rows":
        nest = LoopNest(args, (symbol(j),), stages)
    else:
        nest = LoopNest(args, (), stages, inner_axis=symbol(j))
    x = random_values(FLOAT32, (a, n, c))
    result = compile_nest(nest, level)(x, np.zeros(n, np.float32))[1]
    np.testing.assert_allclose(result, x.sum((0, 2)), rtol=1e-4, atol=1e-5)


def softmax(size: Dim, dtype: DType, mode: str, variables=()) -> LoopNest:
    count = 4 if mode == "rows" else COLUMNS
    i, j = axis("i", count), axis("j", size)
    at = i * size + j if mode == "rows" else j * count + i
    x = cast(Load(0, at, dtype), FLOAT32)
    exp = Apply("exp", (Apply("subtract", (x, Ref("m", FLOAT32)), FLOAT32),), FLOAT32)
    kept = mode == "rows"
    terms = (Reduce("s", "sum", exp, FLOAT32), *((Store(2, j, exp),) if kept else ()))
    numerator = Load(2, j, FLOAT32) if kept else exp
    quotient = Apply("divide", (numerator, Ref("s", FLOAT32)), FLOAT32)
    stages = (
        Stage((symbol(j),), (Reduce("m", "max", x, FLOAT32),)),
        Stage((symbol(j),), terms),
        Stage((symbol(j),), (Store(1, at, cast(quotient, dtype)),)),
    )
    args = (Arg(dtype), Arg(dtype, False, True))
    temps = (Temp(FLOAT32, 200),) if kept else ()
    if mode == "rows":
        return LoopNest(args, (symbol(i),), stages, temps, variables=variables)
    return LoopNest(args, (), stages, temps, inner_axis=symbol(i), variables=variables)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16], ids=str)
def test_softmax(compile_nest, level, mode, dtype):
    size = Variable("S", 1, 200)
    compiled = compile_nest(softmax(size, dtype, mode, (size.symbol,)), level)
    for n in (1, 2, 16, 63, 128, 197):
        x = random_values(dtype, (4, n))
        if mode == "columns":
            x = random_values(dtype, (n, COLUMNS))
        dim = 1 if mode == "rows" else 0
        result = compiled(x, np.zeros_like(x), S=n)[1]
        exp = np.exp(x.astype(np.float64) - x.astype(np.float64).max(dim, keepdims=True))
        expected = exp / exp.sum(dim, keepdims=True)
        tolerance = 1e-6 if dtype == FLOAT32 else 1e-2
        np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("n", [1, 16, 37, 384])
def test_layer_norm(compile_nest, level, n):
    i, j = axis("i", 5), axis("j", n)
    x, share = Load(0, i * n + j, FLOAT32), Number(1 / n, FLOAT32)
    mean = Apply("multiply", (Ref("s", FLOAT32), share), FLOAT32)
    centred = Apply("subtract", (x, mean), FLOAT32)
    variance = Apply("multiply", (Ref("v", FLOAT32), share), FLOAT32)
    steady = Apply("add", (variance, Number(1e-5, FLOAT32)), FLOAT32)
    scaled = Apply("multiply", (centred, Apply("rsqrt", (steady,), FLOAT32)), FLOAT32)
    weighted = Apply("multiply", (scaled, Load(1, j, FLOAT32)), FLOAT32)
    square = Apply("multiply", (centred, centred), FLOAT32)
    stages = (
        Stage((symbol(j),), (Reduce("s", "sum", x, FLOAT32),)),
        Stage((symbol(j),), (Reduce("v", "sum", square, FLOAT32),)),
        Stage((symbol(j),), (Store(2, i * n + j, weighted),)),
    )
    args = (Arg(FLOAT32), Arg(FLOAT32), Arg(FLOAT32, False, True))
    nest = LoopNest(args, (symbol(i),), stages)
    a, w = random_values(FLOAT32, (5, n)), random_values(FLOAT32, (n,))
    result = compile_nest(nest, level)(a, w, np.zeros_like(a))[2]
    d = a.astype(np.float64)
    expected = (d - d.mean(1, keepdims=True)) / np.sqrt(d.var(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "dtype"), [("sum", FLOAT32), ("sum", BFLOAT16), ("prod", INT32)])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(compile_nest, level, mode, op, dtype, exclusive, reverse):
    size = Variable("S", 0, 150)
    count = 3 if mode == "rows" else COLUMNS
    i, j = axis("i", count), axis("j", size)
    k = size - 1 - j if reverse else j
    at = i * size + k if mode == "rows" else k * count + i
    value = cast(Load(0, at, dtype), dtype.accumulator)
    scan = Scan(op, value, dtype.accumulator, 1, at, exclusive)
    stages = (Stage((symbol(j),), (scan,)),)
    args = (Arg(dtype), Arg(dtype, False, True))
    axes, lane = ((symbol(i),), None) if mode == "rows" else ((), symbol(i))
    nest = LoopNest(args, axes, stages, inner_axis=lane, variables=(size.symbol,))
    compiled = compile_nest(nest, level)
    for n in (0, 1, 17, 50):
        shape, dim = ((count, n), 1) if mode == "rows" else ((n, count), 0)
        x = random_values(dtype, shape)
        result = compiled(x, np.zeros_like(x), S=n)[1]
        expected = _scanned(op, x, dim, exclusive, reverse)
        tolerance = {FLOAT32: 1e-5, BFLOAT16: 1e-2}.get(dtype, 0)
        np.testing.assert_allclose(
            result.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )


def _scanned(op: str, x: np.ndarray, dim: int, exclusive: bool, reverse: bool) -> np.ndarray:
    y = x if x.dtype == np.int32 else x.astype(np.float32)
    y = np.flip(y, dim) if reverse else y
    scan = np.cumsum if op == "sum" else np.cumprod
    result = scan(y, axis=dim, dtype=y.dtype)
    if exclusive:
        first = np.full_like(np.take(result, [0], dim) if y.size else result, op == "prod")
        result = np.concatenate([first, np.delete(result, -1, dim)], dim) if y.size else result
    return np.flip(result, dim) if reverse else result
