"""Narrow element types: conversions against ml_dtypes, movement, and what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import ALL_DTYPES, NARROW_DTYPES, DType
from ostinato.ir.text import graph_constants

FLOATS = [d for d in NARROW_DTYPES if not d.format.is_integer]
INTEGERS = [d for d in NARROW_DTYPES if d.format.is_integer]
SIGNED = [d for d in FLOATS if d.format.signed]

OPTIONS = [ost.CompileOptions(), ost.CompileOptions(optimize=False)]


def run(build, *arrays, options=OPTIONS[0]):
    """The result of a graph of one output, compiled and by the oracle, which must be the same."""
    g = ost.Graph()
    values = [g.input(f"x{i}", a.shape, DType.parse(a.dtype)) for i, a in enumerate(arrays)]
    g.set_outputs([build(g, *values)])
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    (result,) = ost.Session("cpu").compile(g, options=options).run(inputs)
    (expected,) = ost.reference.evaluate(g, inputs)
    assert result.dtype == expected.dtype
    same(result, expected)
    return result


def same(result, expected) -> None:
    """Equal codes, but for NaN, which may have any sign."""
    numbers = [a.astype(np.float64) for a in (result, expected)]
    np.testing.assert_array_equal(*numbers)
    zeros = [np.signbit(n) & ~np.isnan(n) for n in numbers]
    np.testing.assert_array_equal(*zeros)


def codes(dtype: DType) -> np.ndarray:
    """Every element of a dtype."""
    form = dtype.format
    if form.is_integer:
        low = -(1 << form.mantissa - 1) if form.signed else 0
        return np.arange(low, low + (1 << form.mantissa)).astype(np.int8).astype(dtype.numpy)
    width = form.exponent + form.mantissa + form.signed
    return np.arange(1 << width).astype(np.uint8).view(dtype.numpy)


def numbers(dtype: DType) -> np.ndarray:
    """Numbers on, next to and between the elements of a dtype, and far from all of them."""
    exact = np.sort(codes(dtype).astype(np.float64))
    exact = exact[np.isfinite(exact)]
    middle = (exact[1:] + exact[:-1]) / 2
    around = np.concatenate([exact, middle, exact * 1.5, middle * 2.0**-3]).astype(np.float32)
    up, down = (np.nextafter(around, np.float32(end)) for end in (np.inf, -np.inf))
    special = np.float32([0.0, -0.0, np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-40, 65504])
    random = np.random.default_rng(0).standard_normal(999).astype(np.float32) * 40
    return np.concatenate([around, up, down, special, random])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", NARROW_DTYPES, ids=str)
def test_every_element_widens(dtype, options) -> None:
    given = codes(dtype)
    for target in ("float32", "float64", "int32", "bool"):
        wide = given.astype(np.float32)
        if target == "int32":
            wide = np.nan_to_num(wide, nan=0, posinf=2**31 - 1, neginf=-(2**31))
            wide = np.clip(wide.astype(np.float64), -(2**31), 2**31 - 1)
        result = run(lambda g, x, t=target: g.cast(x, t), given, options=options)
        same(result, wide.astype(target))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_floats_are_rounded_to_nearest_even(dtype, options) -> None:
    given = numbers(dtype)
    result = run(lambda g, x: g.cast(x, dtype), given, options=options)
    same(result, given.astype(dtype.numpy))


@pytest.mark.parametrize("source", ["float64", "float16", "bfloat16", "int8", "uint16", "int64"])
@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_from_other_dtypes(source, dtype) -> None:
    with np.errstate(all="ignore"):
        given = np.nan_to_num(numbers(dtype), nan=3, posinf=90, neginf=-90)
        given = np.clip(given, 0 if source.startswith("u") else -100, 100)
        given = given.astype(DType.parse(source).numpy)
    result = run(lambda g, x: g.cast(x, dtype), given)
    same(result, given.astype(np.float32).astype(dtype.numpy))


def test_float64_is_rounded_once() -> None:
    """A tie and a little more, which float32 has no room for."""
    given = np.array([1.0625 + 2.0**-40, 1.0625, 1.0625 - 2.0**-40])
    result = run(lambda g, x: g.cast(x, "float8_e4m3fn"), given)
    np.testing.assert_array_equal(result.astype(np.float64), [1.125, 1.0, 1.0])


def test_exponents() -> None:
    given = np.float32([0, -1, np.nan, 1, 1.49, 1.5, 3, 2**-127, 2.0**-126, 2.0**127, 3e38])
    result = run(lambda g, x: g.cast(x, "float8_e8m0fnu"), given)
    expected = [np.nan, np.nan, np.nan, 1, 1, 2, 4, 2.0**-127, 2.0**-126, 2.0**127, np.nan]
    np.testing.assert_array_equal(result.astype(np.float64), expected)


@pytest.mark.parametrize("source", ["int8", "uint8", "int64", "float32", "bool", "int4"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_the_low_bits(source, dtype) -> None:
    given = np.arange(-20, 21)
    given = (given % 2 if source == "bool" else given).astype(np.int8)
    given = given.astype(DType.parse(source).numpy)
    result = run(lambda g, x: g.cast(x, dtype), given)
    form = dtype.format
    low = given.astype(np.int64) % (1 << form.mantissa)
    if form.signed:
        low = np.where(low >= 1 << form.mantissa - 1, low - (1 << form.mantissa), low)
    np.testing.assert_array_equal(result.astype(np.int64), low)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", NARROW_DTYPES, ids=str)
def test_elements_are_moved(dtype, options) -> None:
    given = np.resize(codes(dtype), (3, 5, 7))
    other = given[:, :2].copy()
    at = np.array([2, 0, 2])

    def build(g, x, y):
        h = g.concat([g.permute_dims(x, (0, 2, 1)), g.permute_dims(y, (0, 2, 1))], axis=2)
        h = g.take(g.flip(h, axis=1), at, axis=0)
        h = g.reshape(g.slice(h, [0, 1], [3, 6], axes=[0, 1]), (3, 35))
        return g.where(g.constant(np.arange(35) % 2 == 0), h, g.broadcast_to(h[:1], (3, 35)))

    h = np.concatenate([given.transpose(0, 2, 1), other.transpose(0, 2, 1)], 2)[:, ::-1][at]
    h = h[:, 1:6].reshape(3, 35)
    expected = np.where(np.arange(35) % 2 == 0, h, h[:1])
    same(run(build, given, other, options=options), expected)


@pytest.mark.parametrize("dtype", NARROW_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (17,)])
def test_weights_constants_and_states(dtype, shape) -> None:
    held = np.resize(codes(dtype)[1:], shape) if 0 not in shape else np.zeros(shape, dtype.numpy)
    g = ost.Graph()
    weight = g.param("w", shape, dtype, value=held)
    state = g.state("s", shape, dtype, init=held)
    g.assign(state, weight)
    values = [weight, state, g.constant(held)]
    g.set_outputs([g.cast(v, "float32") for v in values])
    for result in ost.Session("cpu").compile(g).run({}):
        np.testing.assert_array_equal(result, held.astype(np.float32))


@pytest.mark.parametrize("dtype", NARROW_DTYPES, ids=str)
def test_the_text_form_has_them(dtype) -> None:
    g = ost.Graph()
    x = g.input("x", (3,), dtype)
    g.set_outputs([g.where(g.constant(True), x, g.constant(codes(dtype)[:1]))])
    again = ost.parse_graph(str(g), graph_constants(g))
    assert str(again) == str(g)
    assert again.inputs["x"].dtype == dtype
    assert DType.parse(dtype.numpy) is DType.parse(dtype.short) is DType.parse(dtype.name)


@pytest.mark.parametrize(
    "compute", [lambda g, x: g.add(x, x), lambda g, x: g.sum(x), lambda g, x: g.softmax(x)]
)
def test_arithmetic_is_refused(compute) -> None:
    g = ost.Graph()
    x = g.input("x", (3,), "float8_e5m2")
    with pytest.raises(ost.GraphError, match="float8_e5m2 is stored and converted"):
        compute(g, x)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("source", [*ALL_DTYPES, *FLOATS], ids=str)
def test_bits_are_reread(source, options) -> None:
    if source.is_bool:
        given = np.arange(9) % 2 == 0
    else:
        raw = np.random.default_rng(1).integers(0, 100, 9 * source.itemsize, dtype=np.uint8)
        given = raw.view(source.numpy)
        if source.name == "float4_e2m1fn":
            given = codes(source)
    for target in (*ALL_DTYPES, *FLOATS):
        if target.itemsize != source.itemsize or target.is_bool or "float4" in target.name:
            continue
        result = run(lambda g, x, t=target: g.bitcast(x, t), given, options=options)
        same(result, given.view(target.numpy))


def test_bits_of_another_width_are_refused() -> None:
    g = ost.Graph()
    with pytest.raises(ost.GraphError, match="float32 and int16 are not of the same width"):
        g.bitcast(g.input("x", (3,)), "int16")


def test_ml_dtypes_has_every_name() -> None:
    assert all(hasattr(ml_dtypes, d.name) for d in NARROW_DTYPES)
