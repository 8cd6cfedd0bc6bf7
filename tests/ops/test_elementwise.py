"""Arithmetic and functions: results, dtypes, promotion, and what is refused."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from ostinato import reference
from ostinato.dtypes import ALL_DTYPES, promote
from ostinato.errors import GraphError
from ostinato.ops.builder import Graph

FLOATS = ["float16", ml_dtypes.bfloat16, "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]

#: Op -> the same in NumPy, and the interval on which it is tested.
FUNCTIONS = {
    "neg": (np.negative, -9, 9),
    "abs": (np.abs, -9, 9),
    "sign": (np.sign, -9, 9),
    "square": (np.square, -9, 9),
    "reciprocal": (lambda x: 1 / x, 0.5, 9),
    "exp": (np.exp, -9, 9),
    "exp2": (np.exp2, -9, 9),
    "expm1": (np.expm1, -2, 2),
    "log": (np.log, 0.01, 9),
    "log2": (np.log2, 0.01, 9),
    "log10": (np.log10, 0.01, 9),
    "log1p": (np.log1p, -0.9, 9),
    "sqrt": (np.sqrt, 0, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.01, 9),
    "sin": (np.sin, -9, 9),
    "cos": (np.cos, -9, 9),
    "tan": (np.tan, -1.5, 1.5),
    "asin": (np.arcsin, -1, 1),
    "acos": (np.arccos, -1, 1),
    "atan": (np.arctan, -9, 9),
    "sinh": (np.sinh, -5, 5),
    "cosh": (np.cosh, -5, 5),
    "tanh": (np.tanh, -5, 5),
    "asinh": (np.arcsinh, -9, 9),
    "acosh": (np.arccosh, 1, 9),
    "atanh": (np.arctanh, -0.9, 0.9),
    "erf": (np.vectorize(math.erf, otypes=[float]), -3, 3),
    "floor": (np.floor, -9, 9),
    "ceil": (np.ceil, -9, 9),
    "round": (np.round, -9, 9),
    "trunc": (np.trunc, -9, 9),
}

BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "fmod": np.fmod,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "atan2": np.arctan2,
    "logaddexp": np.logaddexp,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_those_of_numpy_rounded_once(run, rng, name, dtype):
    function, low, high = FUNCTIONS[name]
    x = rng.uniform(low, high, (3, 5)).astype(dtype)
    result = run(lambda g, x: getattr(g, name)(x), x)
    assert result.dtype == x.dtype
    exact = function(x.astype(np.float64))
    unit = float(ml_dtypes.finfo(x.dtype).eps)
    np.testing.assert_allclose(result.astype(np.float64), exact, rtol=unit, atol=1e-300)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_broadcast(run, rng, name, dtype):
    x = rng.uniform(-9, 9, (4, 1, 5)).astype(dtype)
    y = rng.uniform(0.5, 9, (3, 1)).astype(dtype)
    result = run(lambda g, x, y: getattr(g, name)(x, y), x, y)
    exact = BINARY[name](x.astype(np.float64), y.astype(np.float64))
    assert result.shape == (4, 3, 5)
    unit = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(result.astype(np.float64), exact, rtol=unit, atol=unit)


def test_pow_of_floats(run, rng):
    x, y = rng.uniform(0.1, 5, 20), rng.uniform(-3, 3, 20)
    np.testing.assert_allclose(run(lambda g, x, y: x**y, x, y), x**y)
    np.testing.assert_allclose(run(lambda g, x: x**3, -x), (-x) ** 3)
    np.testing.assert_allclose(run(lambda g, x: 2.0**x, x), 2.0**x)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(run, rng, dtype):
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, 50, dtype=dtype, endpoint=True)
    y = rng.integers(info.min, info.max, 50, dtype=dtype, endpoint=True)
    x[:2] = info.min, info.max
    for name, function in {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "maximum": np.maximum,
        "minimum": np.minimum,
    }.items():
        got = run(lambda g, x, y, name=name: getattr(g, name)(x, y), x, y)
        np.testing.assert_array_equal(got, function(x, y), strict=True)
    for name in ("neg", "abs", "square", "sign"):
        got = run(lambda g, x, name=name: getattr(g, name)(x), x)
        with np.errstate(over="ignore"):
            wanted = {"neg": np.negative}.get(name, getattr(np, name, None))(x)
        np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_integer_division_by_zero_is_zero_and_least_by_minus_one_wraps(run, dtype):
    info = np.iinfo(dtype)
    x = np.array([7, 0, info.min, info.min, 100], dtype)
    y = np.array([0, 0, 0, info.max if info.min == 0 else -1, 7], dtype)
    quotient, rest, c_rest = run(lambda g, x, y: (x // y, x % y, g.fmod(x, y)), x, y)
    wrapped = 0 if info.min == 0 else info.min
    np.testing.assert_array_equal(quotient, np.array([0, 0, 0, wrapped, 14], dtype))
    np.testing.assert_array_equal(rest, np.array([0, 0, 0, 0, 2], dtype))
    np.testing.assert_array_equal(c_rest, rest)


def test_remainders_differ_in_sign(run):
    x, y = np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])
    rest, c_rest = run(lambda g, x, y: (x % y, g.fmod(x, y)), x, y)
    np.testing.assert_array_equal(rest, [1, 2, -2, -1])
    np.testing.assert_array_equal(c_rest, [1, -1, 1, -1])


def test_integer_powers_wrap_and_truncate(run):
    x = np.array([2, 3, -2, 0, 0, 1, -1, -1, 2, 10], np.int32)
    y = np.array([31, 40, 3, 0, -1, -5, -3, -4, -1, 2], np.int32)
    wanted = [-(2**31), np.int32((3**40 + 2**31) % 2**32 - 2**31), -8, 1, 0, 1, -1, 1, 0, 100]
    np.testing.assert_array_equal(run(lambda g, x, y: x**y, x, y), wanted)
    assert run(lambda g, x: x**2, np.uint8(20)) == 400 % 256


def test_logaddexp_keeps_infinities(run):
    inf = np.inf
    x, y = np.array([inf, -inf, inf, 800.0]), np.array([inf, -inf, -inf, 800.0])
    np.testing.assert_allclose(
        run(lambda g, x, y: g.logaddexp(x, y), x, y), [inf, -inf, inf, 800 + np.log(2)]
    )


def test_extremes_pass_nan_on(run):
    x, y = np.array([np.nan, 1, 2.0]), np.array([0, np.nan, 3.0])
    greatest, least = run(lambda g, x, y: (g.maximum(x, y), g.minimum(x, y)), x, y)
    np.testing.assert_array_equal(greatest, [np.nan, np.nan, 3])
    np.testing.assert_array_equal(least, [np.nan, np.nan, 2])


@pytest.mark.parametrize("a", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("b", ALL_DTYPES, ids=str)
def test_operands_promote(a, b):
    g = Graph()
    x, y = g.input("x", (2,), a), g.input("y", (2,), b)
    try:
        common = promote(a, b)
    except GraphError as error:
        with pytest.raises(GraphError, match="no common dtype"):
            _ = x + y
        assert "cast" in str(error)
        return
    if common.is_bool:
        with pytest.raises(GraphError, match="numeric"):
            _ = x + y
        return
    total = x + y
    assert total.dtype == common
    g.set_outputs([total, g.divide(x, y)])
    assert g.outputs["output_1"].dtype == (common if common.is_float else promote(a, b).parse("f4"))
    inputs = {"x": np.ones(2, a.numpy), "y": np.ones(2, b.numpy)}
    (got, _) = reference.evaluate(g, inputs)
    assert got.dtype == common.numpy
    np.testing.assert_array_equal(got.astype(float), 2)


def test_scalars_are_weak():
    g = Graph()
    half, small = g.input("h", (2,), "float16"), g.input("s", (2,), "int8")
    flag = g.input("b", (2,), "bool")
    assert (half * 2.5).dtype.name == "float16"
    assert (2 - half).dtype.name == "float16"
    assert (small + 100).dtype.name == "int8"
    assert (small * 0.5).dtype.name == "float32"
    assert (small / 2).dtype.name == "float32"
    assert g.where(flag, small, 3).dtype.name == "int8"
    assert g.where(flag, 1.0, 0.0).dtype.name == "float32"
    assert (flag + 1).dtype.name == "int64"
    with pytest.raises(GraphError, match="1000 does not fit int8"):
        _ = small + 1000


def test_arrays_are_operands_on_either_side(run, rng):
    x = rng.standard_normal((2, 3)).astype(np.float32)
    ones = np.ones(3, np.float32)
    for build in (lambda g, v: v - ones, lambda g, v: g.subtract(v, ones)):
        np.testing.assert_allclose(run(build, x), x - 1)
    np.testing.assert_allclose(run(lambda g, v: ones - v, x), 1 - x)
    np.testing.assert_allclose(run(lambda g, v: np.float32(2) * v, x), 2 * x)
    np.testing.assert_allclose(run(lambda g, v: g.add([1.0, 2.0, 3.0], v), x), x + np.arange(1, 4))


def test_short_and_long_names_are_one_op():
    g = Graph()
    x = g.input("x", (2,))
    pairs = [(g.mul, "multiply"), (g.sub, "subtract"), (g.div, "divide")]
    for method, name in pairs:
        assert method(x, x).node.op.name == name
    assert g.neg(x).node.op is g.negative(x).node.op
    assert g.astype(x, "f16").node.op is g.cast(x, "f16").node.op


def test_whole_numbers_are_rounded_already(run):
    x = np.array([-3, 4], np.int16)
    for name in ("floor", "ceil", "round", "trunc"):
        got = run(lambda g, x, name=name: getattr(g, name)(x), x)
        np.testing.assert_array_equal(got, x, strict=True)


def test_integers_become_float32_in_functions_of_reals(run):
    x = np.array([1, 2, 3], np.int64)
    for result in run(lambda g, x: (g.exp(x), x / x, g.sqrt(x), g.gelu(x)), x):
        assert result.dtype == np.float32


def test_symbolic_shapes_broadcast(run, rng):
    from ostinato.variables import Variable

    n = Variable("n", 1, 16)
    x, y = rng.standard_normal((5, 3)), rng.standard_normal((5, 1))
    np.testing.assert_allclose(run(lambda g, x, y: x * y, x, y, shapes=[(n, 3), (n, 1)]), x * y)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g, x: x + np.ones(4, np.float32), r"add\(f32\[2,3\], f32\[4\]\).*3 meets 4"),
        (lambda g, x: g.add(x, "a"), "unknown dtype"),
        (lambda g, x: g.bitwise_and(x, x), "expected integral operands, got float32"),
        (lambda g, x: g.logical_not(x), "expected bool operands, got float32"),
        (lambda g, x: x << 1, "expected integer operands"),
        (lambda g, x: g.isnan(g.cast(x, "int8")), "expected float operands, got int8"),
        (lambda g, x: g.where(x, x, x), "the condition is bool, got float32"),
        (lambda g, x: g.neg(x > 0), "expected numeric operands, got bool"),
        (lambda g, x: g.cast(x, "int7"), "unknown dtype 'int7'"),
        (lambda g, x: g.elu(x, "steep"), "alpha is a number, got 'steep'"),
        (lambda g, x: g.celu(x, -1.0), "alpha is above zero"),
        (lambda g, x: g.gelu(x, "fast"), "approximate is a bool"),
        (lambda g, x: g.add(x, Graph().input("y", (3,))), "belongs to graph"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_line(build, message):
    g = Graph()
    x = g.input("x", (2, 3))
    with pytest.raises(GraphError, match=message) as caught:
        build(g, x)
    assert "test_elementwise.py:" in str(caught.value)


def test_attributes_from_text_are_checked():
    from ostinato.ops import OPS

    x = Graph().input("x", (2,)).type
    with pytest.raises(GraphError, match="attributes"):
        OPS["elu"].infer(x)
    with pytest.raises(GraphError, match="attributes"):
        OPS["exp"].infer(x, alpha=1.0)
    with pytest.raises(GraphError, match="2 operands"):
        OPS["add"].infer(x)


def test_every_op_counts_its_arithmetic():
    from ostinato.ops import OPS

    x = Graph().input("x", (4, 8)).type
    assert OPS["add"].flops((x, x), {}) == 32
    assert OPS["gelu"].flops((x,), {"approximate": False}) == 5 * 32
    assert OPS["sum"].flops((x,), {"axis": (0,), "keepdims": False}) == 32
    assert OPS["reshape"].flops((x,), {"shape": (32,)}) == 0
