"""Raw bytes in and out: every value arrives as itself, is rounded once, or is refused."""

from __future__ import annotations

import array
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import ALL_DTYPES, DType

from .graphs import B, W, X, refused, sized_inputs, tiny

NAMES = [dtype.name for dtype in ALL_DTYPES]
FLOATS = ("float16", "bfloat16", "float32", "float64")


def echo(session: ost.Session, dtype: str, shape: tuple[Any, ...] = (4,)) -> ost.CompiledGraph:
    """A graph that gives back its param."""
    g = ost.Graph("echo")
    g.set_outputs([g.reshape(g.param("p", shape, dtype), shape)])
    zeros = np.zeros(shape, DType.parse(dtype).numpy)
    return session.compile(g, {"p": zeros})


def little(values: Any, dtype: str) -> bytes:
    return np.asarray(values).astype(DType.parse(dtype).numpy).tobytes()


def nearest(value: Any, dtype: str) -> float:
    """The nearest number of a 16-bit format, ties to even, from a list of all of them."""
    numpy = DType.parse(dtype).numpy
    words = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        numbers = words.view(numpy).astype(np.float64)
    finite = np.isfinite(numbers)
    words, numbers = words[finite], numbers[finite]
    close = np.argsort(np.abs(numbers - float(value)), kind="stable")[:8]
    exact = Fraction(value)
    best = min(close, key=lambda i: (abs(Fraction(numbers[i]) - exact), int(words[i]) & 1))
    return float(numbers[best])


# ---- params --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_small_numbers_arrive_in_every_dtype(session, source, target):
    values = [0, 1, 1, 0] if "bool" in (source, target) else [0, 1, 7, 100]
    compiled = echo(session, target)
    compiled.set_param_typed("p", little(values, source), source)
    (out,) = compiled.run()
    assert out.dtype == DType.parse(target).numpy
    assert out.astype(np.float64).tolist() == values


@pytest.mark.parametrize("target", ["float16", "bfloat16"])
@pytest.mark.parametrize("source", ["float64", "float32"])
def test_floats_are_rounded_once(session, source, target):
    """Next to a midpoint, a detour through float32 first lands on it and then breaks a tie."""
    digits = {"float16": 10, "bfloat16": 7}[target]
    half = 2.0 ** -(digits + 1)
    tiny_bit = 2.0**-40 if source == "float64" else 2.0**-23
    values = [
        sign * (1 + k * 2 * half + half + nudge) * scale
        for sign in (1, -1)
        for k in (0, 1, 2, 3)
        for nudge in (-tiny_bit, 0.0, tiny_bit)
        for scale in (1.0, 2.0**-14, 8.0)
    ]
    compiled = echo(session, target, (len(values),))
    compiled.set_param_typed("p", little(values, source), source)
    (out,) = compiled.run()
    given = np.array(values, source).astype(np.float64)
    assert out.astype(np.float64).tolist() == [nearest(v, target) for v in given]


@pytest.mark.parametrize("source", ["int64", "uint64", "int32", "uint32"])
def test_large_integers_are_rounded_once(session, source):
    top = 30 if "32" in source else 62
    values = [(257 + 2 * k) * 2 ** (top - 9) + nudge for k in (0, 1, 2) for nudge in (-1, 0, 1)] + [
        2**24 + 1,
        2**24 + 3,
    ]
    if source.startswith("int"):
        values += [-v for v in values]
    for target in ("bfloat16", "float32"):
        compiled = echo(session, target, (len(values),))
        compiled.set_param_typed("p", np.array(values, source).tobytes(), source)
        (out,) = compiled.run()
        if target == "bfloat16":
            expected = [nearest(v, target) for v in values]
        else:
            expected = np.array(values, source).astype(np.float32).tolist()
        assert out.astype(np.float64).tolist() == expected


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_infinities_zeros_and_nans_stay(session, source, target):
    compiled = echo(session, target)
    compiled.set_param_typed("p", little([np.inf, -np.inf, np.nan, -0.0], source), source)
    out = compiled.run()[0].astype(np.float64)
    assert out[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(out[2])
    assert out[3] == 0
    assert np.signbit(out[3])


@pytest.mark.parametrize(
    ("source", "value", "target"),
    [
        ("float32", 1.5, "int32"),
        ("float64", np.nan, "int64"),
        ("float32", np.inf, "int8"),
        ("float32", 2.0**31, "int32"),
        ("float64", 2.0**63, "int64"),
        ("float64", 2.0**64, "uint64"),
        ("float32", -1.0, "uint8"),
        ("float16", 300.0, "uint8"),
        ("bfloat16", 0.5, "bool"),
        ("float64", np.nan, "bool"),
        ("int64", 2**31, "int32"),
        ("int64", -1, "uint64"),
        ("uint64", 2**64 - 1, "int64"),
        ("int32", 128, "int8"),
        ("int32", 2, "bool"),
        ("uint8", 255, "int8"),
        ("int32", 65520, "float16"),
        ("float32", 65520.0, "float16"),
        ("float64", 1e39, "float32"),
        ("float64", -1e39, "bfloat16"),
        ("float32", np.finfo(np.float32).max, "bfloat16"),
    ],
)
def test_a_value_without_a_counterpart_is_refused(session, source, value, target):
    compiled = echo(session, target)
    compiled.set_param_typed("p", little([1, 0, 1, 1], "uint8"), "u8")
    with refused(compiled.run, ost.InputError, "'p'", "element [2]", target):
        data = np.array([0, 1, value, 0], DType.parse(source).numpy)
        compiled.set_param_typed("p", data.tobytes(), source)


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda c: c.set_param_typed("p", bytes(15), "f32"), ["15 bytes"]),
        (lambda c: c.set_param_typed("p", bytes(12), "f32"), ["(4", "3 elements"]),
        (lambda c: c.set_param_typed("p", bytes(20), "f32"), ["5 elements"]),
        (lambda c: c.set_param_typed("p", b"", "f32"), ["0 elements"]),
        (lambda c: c.set_param_typed("q", bytes(16), "f32"), ["unknown param 'q'"]),
        (lambda c: c.set_param_typed(["p"], bytes(16), "f32"), []),
        (lambda c: c.set_param_typed("p", bytes(16), "f31"), ["f31"]),
        (lambda c: c.set_param_typed("p", bytes(16), None), []),
        (lambda c: c.set_param_typed("p", bytes(16), "complex64"), ["complex64"]),
        (lambda c: c.set_param_typed("p", [1.0] * 4, "f32"), ["list"]),
        (lambda c: c.set_param_typed("p", "x" * 16, "f32"), ["str"]),
        (lambda c: c.set_param_typed("p", None, "f32"), ["NoneType"]),
        (lambda c: c.set_param_typed("p", np.zeros(8, "f4")[::2], "f32"), ["contiguous"]),
        (lambda c: c.set_param_typed("p", bytes([0, 1, 2, 1]), "bool"), ["0 or 1, got 2"]),
    ],
)
def test_wrong_calls(session, call, parts):
    compiled = echo(session, "float32")
    compiled.set_param("p", np.arange(4, dtype=np.float32))
    with refused(compiled.run, ost.InputError, *parts):
        call(compiled)


def test_bytes_of_all_kinds(session):
    compiled = echo(session, "float32")
    values = np.array([1.0, -2.0, 3.5, 0.25], np.float32)
    raw = values.tobytes()
    shifted = memoryview(b"\0" + raw)[1:]  # at an odd address
    for data in (raw, bytearray(raw), memoryview(raw), array.array("f", values), values, shifted):
        compiled.set_param("p", np.zeros(4, np.float32))
        compiled.set_param_typed("p", data, "float32")
        np.testing.assert_array_equal(compiled.run()[0], values)


def test_what_was_given_is_not_kept(session):
    compiled = echo(session, "float32")
    data = bytearray(np.ones(4, np.float32).tobytes())
    compiled.set_param_typed("p", data, "float32")
    data[:] = bytes(16)
    np.testing.assert_array_equal(compiled.run()[0], np.ones(4))


def test_packed_weights_follow(own):
    """A written weight reaches what was prepared from the former one."""
    own.run({"x": X})
    own.set_param_typed("w", (W * 2).astype(np.float64).tobytes(), "f64")
    np.testing.assert_allclose(own.run({"x": X})[0], tiny(w=W * 2), rtol=1e-5, atol=1e-6)


def test_a_param_never_set_counts_as_set_afterwards(session):
    g = ost.Graph("late")
    g.set_outputs([g.param("p", (2,), "int16") + 1])
    compiled = session.compile(g)
    with pytest.raises(ost.InputError, match="never set"):
        compiled.run()
    compiled.set_param_typed("p", little([1, 2], "int64"), "int64")
    assert compiled.run()[0].tolist() == [2, 3]


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "float64", "int64", "uint8"])
def test_inputs_are_converted_and_outputs_come_as_declared(session, source, target):
    g = ost.Graph("run")
    x = g.input("x", (2, 2), target)
    g.set_outputs([g.reshape(x, (4,)), g.cast(x, "float32")])
    ones = [0, 1, 1, 0]
    (first, dtype), (second, other) = session.compile(g).run_typed(
        [("x", little(ones, source), source)]
    )
    assert (dtype, other) == (DType.parse(target), DType.parse("f32"))
    assert isinstance(first, bytes)
    assert first == little(ones, target)
    assert second == little(ones, "float32")


def test_typed_runs_equal_plain_ones_bit_for_bit(compiled):
    ((data, dtype),) = compiled.run_typed([("x", X.tobytes(), "f32")])
    (plain,) = compiled.run({"x": X})
    assert data == plain.tobytes()
    assert dtype.name == "float32"
    half = X.astype(np.float16)
    ((data, _),) = compiled.run_typed([("x", half.tobytes(), np.float16)])
    assert data == compiled.run({"x": half.astype(np.float32)})[0].tobytes()


def test_shapes_follow_from_numbers_of_elements(sized):
    for n in (1, 3, 16):
        feed = sized_inputs(n)
        items = [(name, array.tobytes(), array.dtype) for name, array in feed.items()]
        got = sized.run_typed(items[::-1])
        assert [data for data, _ in got] == [array.tobytes() for array in sized.run(feed)]
        assert [np.frombuffer(*pair).size for pair in got] == [4 * n, 1], "NumPy takes our dtypes"


def test_a_shape_that_numbers_of_elements_do_not_settle(session):
    g = ost.Graph("area")
    n, m = ost.Variable("n", 1, 8), ost.Variable("m", 1, 8)
    a, b = g.input("a", (n, m)), g.input("b", (m,))
    g.set_outputs([a * b])
    compiled = session.compile(g)
    ((data, _),) = compiled.run_typed(
        [("a", np.arange(6, dtype="f4").tobytes(), "f32"), ("b", np.ones(3, "f4").tobytes(), "f32")]
    )
    assert np.frombuffer(data, "f4").tolist() == list(range(6))
    g = ost.Graph("square")
    g.set_outputs([g.input("a", (n, m)) + 1])
    with pytest.raises(ost.InputError, match="do not follow"):
        session.compile(g).run_typed([("a", bytes(24), "f32")])


@pytest.mark.parametrize(
    "items",
    [
        [],
        [("x", X.tobytes())],
        [("x", X.tobytes(), "f32", 0)],
        [("y", X.tobytes(), "f32")],
        [("x", X.tobytes(), "f32"), ("x", X.tobytes(), "f32")],
        [("x", X.tobytes()[:-4], "f32")],
        [("x", X.tobytes()[:-1], "f32")],
        [("x", X.tobytes(), "f64")],
        [("x", np.full(8, 1e300).tobytes(), "f64")],
        [(0, X.tobytes(), "f32")],
        [(["x"], X.tobytes(), "f32")],
        [b"x"],
        {"x": X},
        None,
        "x",
        7,
    ],
)
def test_wrong_typed_runs(compiled, items):
    with refused(lambda: compiled.run({"x": X}), ost.InputError):
        compiled.run_typed(items)


@pytest.mark.parametrize(
    ("rows", "doubled", "error"),
    [(0, 0, ost.OstinatoError), (1.75, 6, ost.InputError), (3, 8, ost.InputError),
     (3, 5, ost.InputError), (17, 34, ost.VariableError)],
)  # fmt: skip
def test_wrong_sizes(sized, rows, doubled, error):
    feed = sized_inputs(3)
    items = [
        ("a", bytes(int(16 * rows)), "f32"),
        ("b", bytes(4 * doubled), "f32"),
        ("c", feed["c"].tobytes(), "i64"),
    ]
    with refused(lambda: sized.run(feed), error):
        sized.run_typed(items)


def test_bfloat16_arrays_go_in_and_out(session):
    g = ost.Graph("bf16")
    x, p = g.input("x", (4,), "bfloat16"), g.param("p", (4,), "bfloat16")
    g.set_outputs([x * p])
    values = np.array([1, 2, 3, 4], ml_dtypes.bfloat16)
    compiled = session.compile(g, {"p": values})
    (out,) = compiled.run({"x": values})
    assert out.dtype == ml_dtypes.bfloat16
    assert out.astype(np.float32).tolist() == [1, 4, 9, 16]
    ((data, dtype),) = compiled.run_typed([("x", values.tobytes(), "bf16")])
    assert data == out.tobytes()
    assert dtype.numpy == ml_dtypes.bfloat16
    compiled.set_param_typed("p", values.tobytes(), ml_dtypes.bfloat16)
    assert compiled.run({"x": values})[0].tobytes() == data


def test_constants_stay_what_they_are(compiled):
    assert (np.arange(12, dtype=np.float32).reshape(4, 3) / 7 - 0.5 == W).all()
    assert B.tolist() == [0.25, -1.0, 2.0]
