"""Hundreds of wrong calls: each raises a named error, and the next good run is what it was before.

Every case takes a good call and makes one thing wrong with it. What is merely unusual (strides,
misalignment, other kinds of array) may be accepted; it must then be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

Array = np.ndarray[Any, Any]

DTYPES = (
    "float64", "float16", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool", "complex64",
)  # fmt: skip


def _released() -> memoryview:
    view = memoryview(bytearray(32))
    view.release()
    return view


#: Objects that are no array of numbers, or of no plausible dtype.
FOREIGN: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "text": lambda: "1.0",
    "words": lambda: ["a", "b"],
    "ragged": lambda: [[1.0, 2.0], [3.0]],
    "objects": lambda: np.array([object()] * 8, dtype=object).reshape(2, 4),
    "texts": lambda: np.full((2, 4), "1.0"),
    "times": lambda: np.zeros((2, 4), "datetime64[s]"),
    "records": lambda: np.zeros((2, 4), [("a", "f4")]),
    "function": lambda: len,
    "generator": lambda: (i for i in range(8)),
    "dictionary": lambda: {"x": 1.0},
    "released memoryview": _released,
    "float": lambda: 1.0,
    "nan": lambda: float("nan"),
    "huge int": lambda: 1 << 80,
    "exception": lambda: ValueError("x"),
    "type": lambda: np.ndarray,
    "bfloat16": lambda: np.ones((2, 4), ml_dtypes.bfloat16),
    "float8": lambda: np.ones((2, 4), ml_dtypes.float8_e4m3fn),
    "void": lambda: np.zeros((2, 4), "V4"),
}

SHAPES = (
    (), (0,), (1,), (4,), (8,), (2,), (2, 0), (0, 4), (2, 3), (2, 5), (1, 4), (3, 4), (4, 2),
    (2, 4, 1), (1, 2, 4), (2, 1, 4), (1, 1, 1, 8), (2, 4, 0), (16,), (2, 8), (4, 4),
)  # fmt: skip


def _enormous(shape: tuple[int, ...]) -> Array:
    """An array of astronomic size that takes no memory."""
    return np.broadcast_to(np.float32(1), shape)


HUGE = ((1 << 40, 4), (2, 1 << 40), (1 << 60,), (1 << 30, 1 << 30))


def wrong_arrays() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Wrong arrays in place of one that should be float32 ``[2, 4]``."""
    for dtype in DTYPES:
        yield f"dtype {dtype}", lambda d=dtype: np.ones((2, 4), d)
    yield "foreign byte order", lambda: np.ones((2, 4), ">f4")
    yield "foreign byte order of another dtype", lambda: np.ones((2, 4), ">f8")
    for shape in SHAPES:
        yield f"shape {shape}", lambda s=shape: np.ones(s, np.float32)
    for shape in HUGE:
        yield f"huge {shape}", lambda s=shape: _enormous(s)
    yield from FOREIGN.items()


def wrong_names() -> Iterator[tuple[str, Callable[[Array], Any]]]:
    """Wrong mappings in place of one that should hold ``x`` alone."""
    yield "empty", lambda x: {}
    yield "misspelt", lambda x: {"X": x}
    yield "extra", lambda x: {"x": x, "y": x}
    yield "param as input", lambda x: {"x": x, "w": x}
    yield "output as input", lambda x: {"x": x, "out": x}
    yield "number as name", lambda x: {0: x}
    yield "none as name", lambda x: {None: x}
    yield "bytes as name", lambda x: {b"x": x}
    yield "list", lambda x: [x]
    yield "array", lambda x: x
    yield "text", lambda x: "x"
    yield "pairs", lambda x: [("x", x)]
    yield "number", lambda x: 3


@pytest.fixture(scope="module")
def compiled(device: str) -> ost.CompiledGraph:
    g = ost.Graph("good")
    x = g.input("x", (2, 4))
    w, b = g.param("w", (4, 3)), g.param("b", (3,))
    g.set_outputs({"out": g.gelu(g.matmul(x, w) + b)})
    return open_session(device).compile(g, params=PARAMS)


RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4)).astype(np.float32)
PARAMS = {
    "w": RNG.standard_normal((4, 3)).astype(np.float32),
    "b": RNG.standard_normal(3).astype(np.float32),
}


def _out() -> Array:
    return np.zeros((2, 3), np.float32)


CALLS: dict[str, Callable[[ost.CompiledGraph, Any], Any]] = {
    "run": lambda c, x: c.run({"x": x}),
    "run into": lambda c, x: c.run({"x": x}, out=[_out()]),
    "run_raw": lambda c, x: c.run_raw({"x": x}),
    "bind": lambda c, x: c.bind({"x": x}, [_out()]),
}


def _refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ost.InputError) as caught:
        call()
    assert str(caught.value), "an error says what is wrong"


@pytest.fixture
def unharmed(compiled: ost.CompiledGraph) -> Iterator[None]:
    before = compiled.run({"x": X})[0].tobytes()
    yield
    assert compiled.run({"x": X})[0].tobytes() == before


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize(
    ("what", "make"), list(wrong_arrays()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_wrong_input(
    compiled: ost.CompiledGraph, how: str, what: str, make: Callable[[], Any]
) -> None:
    _refused(lambda: CALLS[how](compiled, make()))


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    ("what", "wrong"), list(wrong_names()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_wrong_names(compiled: ost.CompiledGraph, what: str, wrong: Callable[[Array], Any]) -> None:
    _refused(lambda: compiled.run(wrong(X)))
    _refused(lambda: compiled.run_raw(wrong(X)))
    _refused(lambda: compiled.bind(wrong(X), [_out()]))


def wrong_params() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    for what, make in wrong_arrays():
        yield "w", what, make
        if what not in ("float", "nan"):
            yield "b", what, make
    yield "x", "an input", lambda: X
    yield "out", "an output", lambda: X
    yield "nothing", "no such param", lambda: X


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    ("name", "what", "make"), list(wrong_params()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_wrong_param(
    compiled: ost.CompiledGraph, name: str, what: str, make: Callable[[], Any]
) -> None:
    _refused(lambda: compiled.set_param(name, make()))
    # All are checked before the first is written.
    _refused(lambda: compiled.set_params({"b": np.zeros(3, np.float32), name: make()}))


def wrong_outputs() -> Iterator[tuple[str, Callable[[], Any]]]:
    good = (2, 3)
    yield "none given", list
    yield "two given", lambda: [_out(), _out()]
    yield "misnamed", lambda: {"y": _out()}
    yield "number", lambda: 3
    for dtype in DTYPES:
        yield f"dtype {dtype}", lambda d=dtype: [np.zeros(good, d)]
    for shape in SHAPES:
        if shape != good:
            yield f"shape {shape}", lambda s=shape: [np.zeros(s, np.float32)]
    yield "swapped bytes", lambda: [np.zeros(good, ">f4")]
    yield "transposed", lambda: [np.zeros((3, 2), np.float32).T]
    yield "every other", lambda: [np.zeros((2, 6), np.float32)[:, ::2]]
    yield "backwards", lambda: [np.zeros(good, np.float32)[::-1]]
    yield "read only", lambda: [_read_only(_out())]
    yield "broadcast", lambda: [np.broadcast_to(np.float32(0), good)]
    yield "list of numbers", lambda: [[[0.0] * 3] * 2]
    yield "bytes", lambda: [bytes(24)]
    for name, make in FOREIGN.items():
        yield name, lambda m=make: [m()]


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    ("what", "make"), list(wrong_outputs()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_wrong_output(compiled: ost.CompiledGraph, what: str, make: Callable[[], Any]) -> None:
    _refused(lambda: compiled.run({"x": X}, out=make()))
    _refused(lambda: compiled.bind({"x": X}, make()))


@pytest.mark.usefixtures("unharmed")
def test_output_over_input_is_refused(device: str) -> None:
    g = ost.Graph("same")
    x = g.input("x", (8,))
    g.set_outputs([g.flip(x), g.exp(x)])
    compiled = open_session(device).compile(g)
    memory = np.arange(16, dtype=np.float32)
    for first, second in (
        (memory[:8], memory[8:]),
        (memory[4:12], np.empty(8, np.float32)),
        (np.empty(8, np.float32), memory[1:9]),
    ):
        kept = memory.copy()
        _refused(lambda a=first, b=second: compiled.run({"x": memory[:8]}, out=[a, b]))
        _refused(lambda a=first, b=second: compiled.bind({"x": memory[:8]}, [a, b]))
        np.testing.assert_array_equal(memory, kept)
    shared = np.empty(8, np.float32)
    _refused(lambda: compiled.run({"x": memory[:8]}, out=[shared, shared]))


def unusual() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Unusual, and right: the values are those of ``X``."""
    yield "transposed", lambda: np.asfortranarray(X)
    yield "every other", lambda: np.repeat(X, 2, axis=1)[:, ::2]
    yield "backwards twice", lambda: X[::-1, ::-1].copy()[::-1, ::-1]
    yield "read only", lambda: _read_only(X.copy())
    yield "misaligned", lambda: _misaligned(X)
    yield "memoryview", lambda: memoryview(X.copy())
    yield "subclass", lambda: np.ma.masked_array(X)
    yield "broadcast", lambda: np.broadcast_to(X, (2, 4))


def _misaligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    shifted = raw[1:].view(np.float32).reshape(array.shape)
    shifted[...] = array
    return shifted


@pytest.mark.parametrize(
    ("what", "make"), list(unusual()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_unusual_but_right(compiled: ost.CompiledGraph, what: str, make: Callable[[], Any]) -> None:
    expected = compiled.run({"x": X})[0].tobytes()
    assert compiled.run({"x": make()})[0].tobytes() == expected
    assert compiled.run_raw({"x": make()})[0].tobytes() == expected


WRONG_SIZES = ((0, 4), (9, 4), (1 << 33, 4), (3, 5), (3,), (3, 4, 1))


@pytest.mark.parametrize("shape", WRONG_SIZES, ids=str)
def test_wrong_sizes_of_a_variable(shape: tuple[int, ...], device: str) -> None:
    g = ost.Graph("symbolic")
    n = ost.Variable("n", 1, 8)
    x, y = g.input("x", (n, 4)), g.input("y", (n,))
    g.set_outputs([g.sum(x, axis=1) + y])
    compiled = open_session(device).compile(g)
    good = {"x": np.ones((3, 4), np.float32), "y": np.ones(3, np.float32)}
    before = compiled.run(good)[0].tobytes()
    size = shape[0]
    bad = {"x": _enormous(shape), "y": _enormous((size,))}
    with pytest.raises((ost.InputError, ost.VariableError)):
        compiled.run(bad)
    with pytest.raises((ost.InputError, ost.VariableError)):
        compiled.run({"x": good["x"], "y": np.ones(4, np.float32)})
    assert compiled.run(good)[0].tobytes() == before
