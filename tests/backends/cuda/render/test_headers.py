"""The device functions of the headers, compiled for the host, next to NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ostinato.backends.cuda.headers import DIRECTORY
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.conversion import convert
from ostinato.dtypes import (
    ALL_DTYPES,
    FLOAT32,
    FLOAT64,
    INT8,
    NARROW_DTYPES,
    UINT8,
    UINT32,
    DType,
)
from ostinato.ops.namespace import ORACLE
from tests.devices.cuda_emulation.emulator import Memory, load_kernels
from tests.devices.cuda_emulation.toolchain import COMPILER

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

Array = np.ndarray[Any, Any]

BLOCK = 32
DIALECT = CudaDialect()
CONVERTED = (*ALL_DTYPES, *NARROW_DTYPES)


def octets(array: Array) -> Array:
    """An array of the type that the dtype has in memory."""
    return array.view(f"u{array.itemsize}") if array.dtype.kind in "Vb" else array


def run(cases: Mapping[str, tuple[str, DType]], *operands: tuple[DType, Array]) -> dict[str, Array]:
    """Evaluate expressions of ``x0``, ``x1``, … in registers, element by element.

    Args:
        cases: by name, an expression and the dtype of its result.
        operands: dtypes and arrays of one size.
    """
    texts = {name: _kernel(name, *case, operands) for name, case in cases.items()}
    kernels, results = load_kernels(texts, DIRECTORY), {}
    for name, (_, dtype) in cases.items():
        results[name] = np.zeros(operands[0][1].size, dtype.numpy)
        memory = [Memory(f"b{i}", octets(array)) for i, (_, array) in enumerate(operands)]
        memory.append(Memory("out", octets(results[name]), reads=False, writes=True))
        kernels[name].run(1, BLOCK, memory)
    return results


def _kernel(name: str, body: str, result: DType, operands: Sequence[tuple[DType, Array]]) -> str:
    """The text of a kernel that evaluates one expression."""
    types = [DIALECT.memory_type(dtype) for dtype, _ in operands]
    parameters = [f"const {type_}* b{i}" for i, type_ in enumerate(types)]
    loads = [
        f"const {DIALECT.register_type(dtype)} x{i} = {DIALECT.from_memory(f'b{i}[i]', dtype)};"
        for i, (dtype, _) in enumerate(operands)
    ]
    return (
        '#include "kernel.cuh"\n#include "segments.cuh"\n'
        f'extern "C" __global__ void {name}({", ".join(parameters)}, '
        f"{DIALECT.memory_type(result)}* out) {{\n"
        f"    for (int i = threadIdx.x; i < {operands[0][1].size}; i += {BLOCK}) {{\n"
        f"        {' '.join(loads)}\n"
        f"        const {DIALECT.register_type(result)} y = {body};\n"
        f"        out[i] = {DIALECT.to_memory('y', result)};\n"
        "    }\n}\n"
    )


def samples(dtype: DType) -> Array:
    """All values of a small dtype; of a larger one, extremes, borders and random bits."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_narrow and dtype.format.is_integer:
        width = dtype.format.mantissa
        low = -(1 << width - 1) if dtype.format.signed else 0
        return np.arange(low, low + (1 << width)).astype(dtype.numpy)
    if dtype.is_narrow:
        width = dtype.format.exponent + dtype.format.mantissa + dtype.format.signed
        return np.arange(1 << width, dtype=np.uint8).view(dtype.numpy)
    if dtype.itemsize <= 2:
        return np.arange(1 << dtype.bits, dtype=f"u{dtype.itemsize}").view(dtype.numpy)
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 63, 20_000, np.uint64, endpoint=True)
    bits ^= rng.integers(0, 2, bits.size, np.uint64) << np.uint64(63)
    random = bits.view(f"u{dtype.itemsize}")[: bits.size].copy().view(dtype.numpy)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        ends = [info.min, info.max, info.min + 1, info.max - 1, 0, 1, 127, 128, 255, 32768]
        return np.concatenate([np.array(ends, dtype.numpy), random])
    return np.concatenate([_borders().astype(dtype.numpy), random])


def _borders() -> Array:
    """Numbers at which conversions change their result, and their neighbours."""
    powers = 2.0 ** np.arange(-125, 130)
    values = np.concatenate([powers, powers * 1.5, powers * 1.25, powers * 1.0625, powers - 1])
    values = np.concatenate([values, np.nextafter(values, 0), np.nextafter(values, np.inf)])
    halves = np.arange(0, 600) * 0.5
    values = np.concatenate([values, halves, [0.0, np.inf, np.nan, 1e300, 5e-324]])
    return np.concatenate([values, -values])


@pytest.mark.parametrize("source", CONVERTED, ids=str)
def test_conversions(source: DType) -> None:
    given = samples(source)
    cases = {f"to_{t}": (DIALECT.convert("x0", source, t), t) for t in CONVERTED}
    found = run(cases, (source, given))
    for target in CONVERTED:
        expected = convert(_as_register(given, source), target)
        name = f"{source} to {target}"
        if target.name == "float8_e8m0fnu":  # ml_dtypes rounds what is below its normal numbers up
            expected = np.where(_is_tiny(given), found[f"to_{target}"], expected)
        assert_same(found[f"to_{target}"], expected, name, given)


def _is_tiny(given: Array) -> Array:
    numbers = np.abs(given.astype(np.float64))
    return (numbers > 2.0**-127) & (numbers < 2.0**-126)


def _as_register(given: Array, source: DType) -> Array:
    """Narrow types as registers hold them."""
    if not source.is_narrow:
        return given
    if not source.format.is_integer:
        return given.astype(np.float32)
    return given.astype(np.int8 if source.format.signed else np.uint8)


def assert_same(found: Array, expected: Array, name: str, given: Array) -> None:
    """Equal bits, but for those of NaNs."""
    if expected.dtype.kind in "fV":
        first, second = found.astype(np.float64), expected.astype(np.float64)
        same = (first == second) & (np.signbit(first) == np.signbit(second))
        same |= np.isnan(first) & np.isnan(second)
        same |= (first == second) & np.isnan(given.astype(np.float64))  # a zero of either sign
    else:
        same = found == expected
    wrong = np.flatnonzero(~same)[:5]
    assert not wrong.size, f"{name}: {given[wrong]} gave {found[wrong]}, not {expected[wrong]}"


#: By function: the range, and how far off the result may be, in units of the last place.
FUNCTIONS: dict[str, tuple[float, float, float]] = {
    "exp": (-110.0, 88.0, 2.0),
    "exp2": (-150.0, 128.0, 2.0),
    "expm1": (-20.0, 88.0, 2.0),
    "log": (1e-45, 3e38, 2.0),
    "log2": (1e-45, 3e38, 2.0),
    "log10": (1e-45, 3e38, 2.0),
    "log1p": (-0.999, 1e6, 2.0),
    "tanh": (-10.0, 10.0, 2.5),
    "sinh": (-88.0, 88.0, 3.0),
    "erf": (-4.0, 4.0, 2.0),
    "normal_cdf": (-13.0, 6.0, 4.0),
    "silu": (-80.0, 100.0, 3.0),
    "atanh": (-0.999, 0.999, 3.0),
    "sqrt": (0.0, 1e38, 0.51),
}


def test_functions_of_float32_are_accurate() -> None:
    rng = np.random.default_rng(7)
    for name, (low, high, allowed) in FUNCTIONS.items():
        x = rng.uniform(low, high, 2_000)
        if low > 0:
            x = np.exp(rng.uniform(np.log(low), np.log(high), x.size))
        x = x.astype(np.float32)
        exact = _exact(name, x.astype(np.float64))
        found = run({f"k_{name}": (f"ost::{name}(x0)", FLOAT32)}, (FLOAT32, x))[f"k_{name}"]
        error = np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))
        assert error.max() <= allowed, f"{name}({x[error.argmax()]}): {error.max()} units off"


@pytest.mark.parametrize(
    ("name", "low", "allowed"), [("normal_cdf", -13, 2e-5), ("silu", -87, 8e-6)]
)
def test_short_functions_are_accurate_enough_for_16_bits(
    name: str, low: float, allowed: float
) -> None:
    x = np.random.default_rng(11).uniform(low, 6.0, 4_000).astype(np.float32)
    x = np.append(x, np.float32([-1e-30, 1e-30, -1e-36, 90.0, 3e38]))
    found = run({"k": (f"ost::short_{name}(x0)", FLOAT32)}, (FLOAT32, x))["k"]
    exact = _exact(name, x.astype(np.float64))
    error = np.abs(found - exact) / np.abs(exact)
    assert error.max() <= allowed, f"{x[error.argmax()]}: {error.max()}"


def _exact(name: str, x: Array) -> Array:
    if name == "normal_cdf":
        return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])
    with np.errstate(all="ignore"):
        return np.asarray(getattr(ORACLE, name)(x), np.float64)


def test_functions_of_special_values() -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38])
    names = (*FUNCTIONS, "sin", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh", "cosh")
    for dtype in (FLOAT32, FLOAT64):
        x = special.astype(dtype.numpy)
        found = run({f"k_{name}": (f"ost::{name}(x0)", dtype) for name in names}, (dtype, x))
        for name in names:
            with np.errstate(over="ignore"):
                expected = _exact(name, x.astype(np.float64)).astype(dtype.numpy)
            np.testing.assert_allclose(found[f"k_{name}"], expected, rtol=1e-5, err_msg=name)


def test_blocks_take_the_tiles_of_several_matrices_by_turns() -> None:
    """As those of a single one: of each, a block begins with the first that is its own."""
    places = [
        (own, all_, before) for all_ in (1, 2, 5, 7) for own in range(all_) for before in range(16)
    ]
    given = [(UINT32, np.array(numbers, np.uint32)) for numbers in zip(*places, strict=True)]
    case = "ost::counted_on(ost::place{x0}, ost::place{x1}, x2)", UINT32
    (found,) = run({"counted": case}, *given).values()
    expected = [
        next(n for n in range(all_) if (n + before) % all_ == own) for own, all_, before in places
    ]
    assert found.tolist() == expected


def test_quotients_are_those_of_the_operator() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, (2, 200_000), np.uint32)
    bits[:, ::3] = bits[:, ::3] & 0x83FFFFFF | 0x3C000000  # numbers about 1, and their integers
    bits[:, ::5] &= 0xFFFC0000
    x, y = bits.view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3.4e38, 255.0], np.float32)
    x[: 64 * 2], y[:64] = np.tile(special, 16), np.repeat(special, 8)
    found = run({"k": ("ost::divide(x0, x1)", FLOAT32)}, (FLOAT32, x), (FLOAT32, y))["k"]
    with np.errstate(all="ignore"):
        expected = x / y
    subnormal = (np.abs(expected) < 2**-125) & (expected != 0)
    np.testing.assert_array_equal(found[~subnormal], expected[~subnormal])
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))
    apart = np.abs(found[subnormal].astype(np.float64) - expected[subnormal])
    assert apart.max() <= 2**-149


def test_quotients_round_to_the_same_whole_numbers() -> None:
    """Those near halves, those of numbers of all sizes, and halves themselves."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, (2, 100_000), np.uint32)
    any_x, any_y = bits.view(np.float32)
    scale = rng.uniform(1e-3, 1e3, 200_000).astype(np.float32)
    halves = (rng.integers(-300, 300, scale.size) + 0.5) * scale
    near = halves.astype(np.float32).view(np.int32) + rng.integers(-3, 4, scale.size, np.int32)
    exact = np.arange(-5000, 5000, dtype=np.float32) / 2
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3.4e38, 255.0], np.float32)
    x = np.concatenate([any_x, near.view(np.float32), exact, np.tile(special, 8)])
    y = np.concatenate([any_y, scale, np.ones_like(exact), np.repeat(special, 8)])
    both, one = "ost::round_of_quotient(x0, x1)", "ost::round(ost::divide(x0, x1))"
    cases = {"both": (both, FLOAT32), "one": (one, FLOAT32)}
    for sign in (1, -1):
        found = run(cases, (FLOAT32, x), (FLOAT32, sign * y))
        np.testing.assert_array_equal(found["both"], found["one"])
        zero = found["one"] == 0
        np.testing.assert_array_equal(*(np.signbit(part[zero]) for part in found.values()))


def test_bytes_of_quotients_are_those_of_the_single_ops() -> None:
    rng = np.random.default_rng(1)
    scale = rng.uniform(1e-3, 1e3, 100_000).astype(np.float32)
    halves = ((rng.integers(-140, 140, scale.size) + 0.5) * scale).astype(np.float32)
    near = (halves.view(np.int32) + rng.integers(-3, 4, scale.size, np.int32)).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3.4e38, 3e9], np.float32)
    any_x, any_y = rng.integers(0, 1 << 32, (2, 100_000), np.uint32).view(np.float32)
    x = np.concatenate([near, any_x, np.tile(special, 8)])
    y = np.concatenate([scale, any_y, np.repeat(special, 8)])
    with np.errstate(all="ignore"):
        whole = np.rint(x / y)
    for dtype, type_, least, greatest in (
        (INT8, "signed char", -127, 127),
        (INT8, "signed char", -128, 127),
        (INT8, "signed char", -8, 7),
        (UINT8, "unsigned char", 0, 255),
        (UINT8, "unsigned char", 3, 200),
    ):
        given = f"<{type_}, {least}, {greatest}>"
        cases = {
            "both": (f"ost::byte_of_quotient{given}(x0, x1)", dtype),
            "one": (f"ost::byte_of{given}(ost::divide(x0, x1))", dtype),
        }
        found = run(cases, (FLOAT32, x), (FLOAT32, y))
        numbers = np.where(np.isnan(whole), 0, whole)
        expected = np.clip(numbers, least, greatest).astype(dtype.numpy)
        for name, bytes_ in found.items():
            np.testing.assert_array_equal(bytes_, expected, err_msg=f"{name} {given}")


def test_reciprocals_of_square_roots_are_within_a_unit_of_the_last_place() -> None:
    rng = np.random.default_rng(2)
    positive = rng.integers(1, 0x7F800000, 200_000, np.uint32).view(np.float32)
    about_one = rng.uniform(0.25, 4, 200_000).astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1e-45, 3.4e38], np.float32)
    x = np.concatenate([positive, about_one, special])
    found = run({"k": ("ost::rsqrt(x0)", FLOAT32)}, (FLOAT32, x))["k"]
    with np.errstate(all="ignore"):
        expected = 1 / np.sqrt(x.astype(np.float64))
        signed = np.where(x == 0, np.copysign(np.inf, x), expected)
    np.testing.assert_array_equal(found[-8:-2], signed[-8:-2].astype(np.float32))
    finite = np.isfinite(signed) & (signed != 0)
    unit = np.spacing(signed[finite].astype(np.float32)).astype(np.float64)
    assert (np.abs(found[finite] - signed[finite]) / unit).max() < 1


INTEGERS = [dtype for dtype in ALL_DTYPES if dtype.is_integer]

#: By function of the headers, the oracle's.
ARITHMETIC = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "floor_divide": "floor_divide",
    "floor_remainder": "remainder",
    "remainder_truncated": "fmod",
    "shift_left": "bitwise_left_shift",
    "shift_right": "bitwise_right_shift",
    "maximum": "maximum",
    "minimum": "minimum",
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic(dtype: DType) -> None:
    x, y = pairs(dtype)
    cases = {name: (f"ost::{name}(x0, x1)", dtype) for name in ARITHMETIC}
    found = run(cases, (dtype, x), (dtype, y))
    for name, method in ARITHMETIC.items():
        with np.errstate(all="ignore"):
            expected = np.asarray(getattr(ORACLE, method)(x, y)).astype(dtype.numpy)
        np.testing.assert_array_equal(found[name], expected, err_msg=f"{name} {dtype}")


def pairs(dtype: DType) -> Sequence[Array]:
    """All pairs of extremes, small numbers and numbers of bits."""
    info = np.iinfo(dtype.numpy)
    values = [info.min, info.min + 1, info.max - 1, info.max, *range(9), 31, 32, 63, 64, 99]
    values += [] if info.min == 0 else [-1, -2, -3, -7, -64]
    chosen = np.array([v for v in values if info.min <= v <= info.max], dtype.numpy)
    first, second = np.meshgrid(chosen, chosen)
    return first.ravel(), second.ravel()
