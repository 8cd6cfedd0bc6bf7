"""Operators and namespace functions of every dtype against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.backends.cpu.llvm.lanes import round_to
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.dtypes import (
    ALL_DTYPES,
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
)

XP = LaneNamespace()
INTEGERS = (INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64)
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
WIDTHS = (1, 4, 8, 16)

ANY_BINARY = ("add", "multiply", "maximum", "minimum", "equal", "not_equal", "less", "less_equal",
              "greater", "greater_equal", "logical_and", "logical_or", "logical_xor")  # fmt: skip
NUMBER_BINARY = ("subtract", "floor_divide", "remainder", "fmod")
INTEGER_BINARY = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift",
                  "bitwise_right_shift")  # fmt: skip
ANY_UNARY = ("logical_not", "isnan", "isinf", "isfinite", "positive")
NUMBER_UNARY = ("neg", "abs", "sign", "square", "floor", "ceil", "trunc", "round", "signbit")
NUMPY_NAMES = {"neg": "negative", "round": "round"}


def numpy_function(name):
    return getattr(np, NUMPY_NAMES.get(name, name))


def integers(dtype):
    info = np.iinfo(dtype.numpy)
    rng = np.random.default_rng(1)
    edges = [0, 1, 2, 3, 7, 8, 31, 63, 64, 100, info.max, info.max - 1, info.min, info.min + 1]
    if info.min < 0:
        edges += [-1, -2, -3, -7]
    x, y = (part.ravel() for part in np.meshgrid(*[np.array(edges, dtype.numpy)] * 2))
    extra = rng.integers(info.min, info.max, (2, 1000), dtype=dtype.numpy, endpoint=True)
    small = rng.integers(0 if info.min == 0 else -9, 10, 1000).astype(dtype.numpy)
    return np.concatenate([x, extra[0], extra[0]]), np.concatenate([y, extra[1], small])


def floats(dtype):
    rng = np.random.default_rng(2)
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.25, np.inf, -np.inf, np.nan]
    x, y = (part.ravel() for part in np.meshgrid(edges, edges))
    scale = 10.0 ** rng.uniform(-3, 3, (2, 2000))
    extra = rng.standard_normal((2, 2000)) * scale
    pair = np.concatenate([x, extra[0]]), np.concatenate([y, extra[1]])
    return tuple(part.astype(dtype.numpy) for part in pair)


def operands(dtype):
    if dtype == BOOL:
        return np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    return integers(dtype) if dtype.is_integer else floats(dtype)


def binary_names(dtype):
    if dtype == BOOL:
        return (*ANY_BINARY, *INTEGER_BINARY[:3])
    if dtype.is_integer:
        return (*ANY_BINARY, *NUMBER_BINARY, *INTEGER_BINARY)
    return (*ANY_BINARY, *NUMBER_BINARY, "divide", "copysign")


def unary_names(dtype):
    if dtype == BOOL:
        return (*ANY_UNARY[:-1], "bitwise_invert")
    if dtype.is_integer:
        kept = tuple(n for n in NUMBER_UNARY if n != "signbit")
        return (*ANY_UNARY, *kept, "bitwise_invert")
    return (*ANY_UNARY, *NUMBER_UNARY, "sqrt", "reciprocal")


def on_numpy(name, *arrays):
    """NumPy's answer; the 16-bit floats compute in float32 and round once, as we do."""
    dtype = arrays[0].dtype
    narrow = dtype.itemsize == 2 and dtype.kind not in "iu"
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float32) for a in arrays] if narrow else arrays
        result = numpy_function(name)(*wide)
        return result.astype(dtype) if narrow and result.dtype == np.float32 else result


def assert_same(name, result, expected):
    assert result.dtype == expected.dtype, name
    if result.dtype.kind not in "fV":
        np.testing.assert_array_equal(result, expected, err_msg=name)
        return
    got, want = result.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(got, want, err_msg=name)
    if name not in ("maximum", "minimum", "floor_divide", "sign"):  # order of equal zeros is free
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(
            np.signbit(got)[numbers], np.signbit(want)[numbers], err_msg=name
        )


def rounded(function, dtype):
    """``function`` as a graph op applies it: a floating result is rounded to its dtype."""

    def apply(*lanes):
        result = function(*lanes)
        return round_to(result, dtype) if result.dtype.is_float else result

    return apply


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_functions_of_two_operands(compile_loops, dtype):
    x, y = operands(dtype)
    names = binary_names(dtype)
    loops = compile_loops(
        {
            f"{n}_{w}": (rounded(getattr(XP, n), dtype), (dtype, dtype), w)
            for n in names
            for w in WIDTHS
        }
    )
    for name in names:
        expected = on_numpy(name, x, y)
        for width in WIDTHS:
            assert_same(name, loops(f"{name}_{width}", x, y), expected)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_functions_of_one_operand(compile_loops, dtype):
    x, _ = operands(dtype)
    names = unary_names(dtype)
    loops = compile_loops(
        {f"{n}_{w}": (rounded(getattr(XP, n), dtype), (dtype,), w) for n in names for w in WIDTHS}
    )
    for name in names:
        expected = np.signbit(x.astype(np.float32)) if name == "signbit" else on_numpy(name, x)
        for width in WIDTHS:
            result = loops(f"{name}_{width}", x)
            keep = ~np.isnan(x.astype(np.float64)) | (name != "signbit")
            assert_same(name, result[keep], expected[keep])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_powers(compile_loops, dtype):
    x, y = integers(dtype)
    loops = compile_loops(
        {
            "by_lane": (XP.pow, (dtype, dtype), 8),
            "cubed": (lambda x: XP.pow(x, 3), (dtype,), 4),
            "inverse": (lambda x: XP.pow(x, -1), (dtype,), 4),
        }
    )
    bits, mask = dtype.bits, (1 << dtype.bits) - 1

    def exactly(base, exponent):
        base, exponent = int(base), int(exponent)
        if exponent < 0:
            return {1: 1, -1: 1 if exponent % 2 == 0 else -1}.get(base, 0)
        value = pow(base, exponent, 1 << bits)
        return value - (1 << bits) if dtype.is_signed and value > mask >> 1 else value

    expected = np.array([exactly(a, b) for a, b in zip(x, y, strict=True)], dtype.numpy)
    np.testing.assert_array_equal(loops("by_lane", x, y), expected)
    cubes = np.array([exactly(a, 3) for a in x], dtype.numpy)
    np.testing.assert_array_equal(loops("cubed", x), cubes)
    if dtype.is_signed:
        inverses = np.array([exactly(a, -1) for a in x], dtype.numpy)
        np.testing.assert_array_equal(loops("inverse", x), inverses)


def test_division_by_a_constant(compile_loops):
    x, _ = integers(INT32)
    divisors = (1, -1, 3, -7, 1 << 20, 0)
    loops = compile_loops(
        {
            f"{op}_{k}": (
                (lambda x, d=d: x // d) if op == "quotient" else (lambda x, d=d: x % d),
                (INT32,),
                8,
            )
            for k, d in enumerate(divisors)
            for op in ("quotient", "remainder")
        }
    )
    for k, divisor in enumerate(divisors):
        with np.errstate(all="ignore"):
            d = np.int32(divisor)
            np.testing.assert_array_equal(loops(f"quotient_{k}", x), x // d)
            np.testing.assert_array_equal(loops(f"remainder_{k}", x), x % d)


def test_python_scalars_take_the_dtype_of_the_lane(compile_loops):
    rules = {
        "left": lambda x: 2 * x + 1,
        "right": lambda x: (1 - x) / 2.0,
        "reversed": lambda x: (3 // x) + (3 % x),
        "mixed": lambda x: XP.where(x > 1, 0.0, x),
        "limits": lambda x: XP.clip(x, -1, 1),
    }
    loops = compile_loops({n: (f, (FLOAT32,), 4) for n, f in rules.items()})
    x = np.array([-2.5, 0.5, 1.5, 4.0], np.float32)
    three = np.float32(3)
    np.testing.assert_array_equal(loops("left", x), 2 * x + 1)
    np.testing.assert_array_equal(loops("right", x), (1 - x) / np.float32(2))
    np.testing.assert_array_equal(loops("reversed", x), three // x + three % x)
    np.testing.assert_array_equal(loops("mixed", x), np.where(x > 1, np.float32(0), x))
    np.testing.assert_array_equal(loops("limits", x), np.clip(x, -1, 1))


def test_operands_promote(compile_loops):
    cases = {
        "int_float": ((INT32, FLOAT32), FLOAT32),
        "halves": ((FLOAT16, BFLOAT16), FLOAT32),
        "widths": ((INT8, INT64), INT64),
        "signs": ((UINT8, INT8), INT16),
        "logic": ((BOOL, INT16), INT16),
        "half_int": ((FLOAT16, INT32), FLOAT16),
    }
    loops = compile_loops({n: (XP.add, inputs, 8) for n, (inputs, _) in cases.items()})
    for name, ((a, b), result) in cases.items():
        x, y = np.array([1, 0, 3]).astype(a.numpy), np.array([1, 5, 2]).astype(b.numpy)
        got = loops(name, x, y)
        assert got.dtype == result.numpy
        want = x.astype(np.float64) + y.astype(np.float64)
        np.testing.assert_array_equal(got.astype(np.float64), want)


def test_maximum_with_a_number_keeps_nan(compile_loops):
    loops = compile_loops(
        {
            "relu": (lambda x: XP.maximum(x, 0.0), (FLOAT32,), 8),
            "flipped": (lambda x: XP.minimum(2.0, x), (FLOAT32,), 8),
        }
    )
    x = np.array([-1, 0, 3, np.nan, np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(loops("relu", x), np.maximum(x, 0))
    np.testing.assert_array_equal(loops("flipped", x), np.minimum(2, x))


def test_nothing_is_rounded_inside_a_rule(compile_loops):
    def rule(x):
        return round_to((x + 1.0) - x, FLOAT16)

    loops = compile_loops({"rule": (rule, (FLOAT16,), 8)})
    x = np.array([4096.0, 0.1, 30000.0], np.float16)
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(loops("rule", x), ((wide + 1) - wide).astype(np.float16))


def test_products_are_not_fused_with_sums(compile_loops):
    loops = compile_loops({"rule": (lambda x, y: x * y + -1.0, (FLOAT32, FLOAT32), 16)})
    rng = np.random.default_rng(5)
    x = rng.uniform(0.5, 2, 4096).astype(np.float32)
    np.testing.assert_array_equal(loops("rule", x, 1 / x), x * (1 / x) - np.float32(1))


@pytest.mark.parametrize("level", ["avx2", "sse2"])
def test_lower_instruction_sets_agree(compile_loops, level):
    target = TargetSpec.named(level)
    for dtype in (BOOL, INT8, INT64, UINT32, FLOAT16, BFLOAT16, FLOAT64):
        x, y = operands(dtype)
        names = binary_names(dtype)
        rules = {f"{n}_": (rounded(getattr(XP, n), dtype), (dtype, dtype), 8) for n in names}
        ours, lower = compile_loops(rules), compile_loops(rules, target)
        for name in names:
            expected = ours(f"{name}_", x, y).astype(np.float64)
            np.testing.assert_array_equal(
                lower(f"{name}_", x, y).astype(np.float64), expected, err_msg=f"{name} {dtype}"
            )
