"""Arrays that a run takes, and the messages with which it refuses others."""

from __future__ import annotations

import array
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato as ost

from .graphs import FED, B, W, X, refused, sized_inputs, strided, tiny, tiny_graph

# ---- what is accepted ------------------------------------------------------------------------


class Foreign:
    """An array of another library, that offers one protocol or the other."""

    def __init__(self, values: np.ndarray, protocol: str) -> None:
        self._values = values
        if protocol == "dlpack":
            self.__class__ = type(
                "Dlpack",
                (Foreign,),
                {
                    "__dlpack__": lambda self, **kwargs: values.__dlpack__(**kwargs),
                    "__dlpack_device__": lambda self: values.__dlpack_device__(),
                },
            )
        else:
            self.__class__ = type(
                "Array",
                (Foreign,),
                {
                    "__array__": lambda self, dtype=None, copy=None: values,
                },
            )


class Subclass(np.ndarray):
    """An array that is not exactly NumPy's."""


def read_only(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flags.writeable = False
    return values


ACCEPTED = {
    "an array": X.copy(),
    "a read-only array": read_only(X),
    "columns first": np.asfortranarray(X),
    "far apart": strided(X),
    "backwards": X[::-1, ::-1].copy()[::-1, ::-1],
    "a transpose": X.T.copy().T,
    "unaligned": np.frombuffer(b"." + X.tobytes(), np.float32, 8, 1).reshape(2, 4),
    "a subclass": X.copy().view(Subclass),
    "a memoryview": memoryview(X),
    "a strided memoryview": memoryview(strided(X)),
    "a ctypes array": np.ctypeslib.as_ctypes(X.copy()),
    "DLPack": Foreign(X, "dlpack"),
    "__array__": Foreign(X, "array"),
    "a list of float32": [list(map(np.float32, row)) for row in X],
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_arrays_of_all_kinds_give_the_same_bits(compiled, name):
    (y,) = compiled.run({"x": X})
    (again,) = compiled.run({"x": ACCEPTED[name]})
    assert again.tobytes() == y.tobytes()
    np.testing.assert_allclose(y, tiny(), rtol=1e-5, atol=1e-6)


def test_one_dimensional_buffers(session):
    g = ost.Graph()
    g.set_outputs([g.input("f", (3,)) + 1, g.input("i", (3,), "uint8") + 1])
    compiled = session.compile(g)
    for bytes_ in (
        b"\1\2\3",
        bytearray(b"\1\2\3"),
        memoryview(b"\1\2\3"),
        array.array("B", [1, 2, 3]),
    ):
        f, i = compiled.run({"f": array.array("f", [1, 2, 3]), "i": bytes_})
        assert f.tolist() == i.tolist() == [2, 3, 4]


def test_an_equal_dtype_need_not_be_the_same_object(compiled):
    spelled = np.dtype({"names": ["f"], "formats": ["<f4"]})["f"]
    same = X.astype(np.dtype(np.float32, metadata={"unit": "m"}))
    assert same.dtype is not X.dtype
    for values in (same, X.view(spelled)):
        assert compiled.run({"x": values})[0].tobytes() == compiled.run(FED)[0].tobytes()


def test_mappings_of_all_kinds(compiled):
    (y,) = compiled.run(FED)
    for feed in (OrderedDict(FED), MappingProxyType(FED)):
        assert compiled.run(feed)[0].tobytes() == y.tobytes()


def test_a_graph_without_inputs(session):
    g = ost.Graph()
    w = g.param("w", (3,), value=np.ones(3, np.float32))
    g.set_outputs([w * 2, g.iota((4,), 0, "int32")])
    compiled = session.compile(g)
    for args in ((), ({},), (None,), (MappingProxyType({}),)):
        doubled, counted = compiled.run(*args)
        assert (doubled.tolist(), counted.tolist()) == ([2, 2, 2], [0, 1, 2, 3])
    with refused(compiled.run, ost.InputError, "unknown input 'x'", "none"):
        compiled.run({"x": X})


def test_scalars_and_empty_arrays(session):
    g = ost.Graph()
    s, e = g.input("s", ()), g.input("e", (0, 3))
    g.set_outputs([s + 1, g.exp(e), g.sum(e, axis=0), g.concat([e, g.broadcast_to(s, (2, 3))], 0)])
    compiled = session.compile(g)
    empty = np.empty((0, 3), np.float32)
    for scalar in (np.float32(2), np.array(2, np.float32), np.array([2, 3], np.float32)[0]):
        plus, nothing, zero, twos = compiled.run({"s": scalar, "e": empty})
        assert plus.shape == ()
        assert plus == 3
        assert nothing.shape == (0, 3)
        assert zero.tolist() == [0, 0, 0]
        assert twos.tolist() == [[2, 2, 2]] * 2
    for shape in ((3, 0), (0,), (0, 4), (1, 3)):
        with refused(lambda: compiled.run({"s": np.float32(2), "e": empty}), ost.InputError, "'e'"):
            compiled.run({"s": np.float32(2), "e": np.empty(shape, np.float32)})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint64", "bool"])
def test_every_width_of_element(session, dtype):
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    g = ost.Graph()
    g.set_outputs([g.input("x", (3,), dtype)])
    values = np.array([0, 1, 1], numpy_dtype)
    (y,) = session.compile(g).run({"x": values})
    assert y.dtype == numpy_dtype
    assert y.tobytes() == values.tobytes()
    assert not np.shares_memory(y, values)


def test_a_bool_of_any_byte_is_true(session):
    g = ost.Graph()
    x = g.input("x", (4,), "bool")
    g.set_outputs([g.where(x, g.constant(1.0), g.constant(2.0)), g.logical_not(x)])
    odd = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    chosen, inverse = session.compile(g).run({"x": odd})
    assert chosen.tolist() == [2, 1, 1, 1]
    assert inverse.tolist() == [True, False, False, False]


# ---- what is refused -------------------------------------------------------------------------


class Hostile:
    """Raises whatever it likes from the protocol that it claims to have."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise LookupError("no array today")


HUGE = np.broadcast_to(np.float32(1), (2, 1 << 40))

WRONG_X: dict[str, tuple[Any, tuple[str, ...]]] = {
    "float64": (X.astype(np.float64), ("float32", "float64", "cast_inputs")),
    "float16": (X.astype(np.float16), ("float32", "float16")),
    "bfloat16": (X.astype(ml_dtypes.bfloat16), ("float32", "bfloat16")),
    "int": (X.astype(np.int32), ("float32", "int32")),
    "complex": (X.astype(np.complex64), ("complex64",)),
    "text": (X.astype(str), ("float32",)),
    "dates": (np.zeros((2, 4), "datetime64[s]"), ("datetime64",)),
    "records": (np.zeros((2, 4), "f4,f4"), ("float32",)),
    "objects": (X.astype(object), ("numbers",)),
    "foreign byte order": (X.astype(">f4"), ("float32", "byte order")),
    "rank 0": (np.float32(1), ("(2, 4)", "()")),
    "rank 1": (X.ravel(), ("(2, 4)", "(8,)")),
    "rank 3": (X[None], ("(2, 4)", "(1, 2, 4)")),
    "transposed": (X.T, ("(2, 4)", "(4, 2)")),
    "more rows": (np.vstack([X, X]), ("(2, 4)", "(4, 4)")),
    "empty": (X[:0], ("(2, 4)", "(0, 4)")),
    "huge": (HUGE, ("(2, 4)", str(HUGE.shape))),
    "a float": (1.0, ("float64",)),
    "nothing": (None, ("NoneType",)),
    "a string": ("x", ("float32",)),
    "bytes": (b"\0" * 32, ("float32", "uint8")),
    "a dict": ({}, ("dict",)),
    "a set": ({1.0}, ("set",)),
    "a ragged list": ([[1.0], [1.0, 2.0]], ("list",)),
    "an object": (object(), ("object",)),
    "a type": (np.ndarray, ("type",)),
    "a hostile object": (Hostile(), ("Hostile", "no array today")),
    "an integer too large": ([[1 << 80]], ("list",)),
    "a generator": ((row for row in X), ("generator",)),
    "a file": (open, ("builtin",)),
}


@pytest.mark.parametrize("name", WRONG_X)
@pytest.mark.parametrize("call", ["run", "run_raw", "bind", "out"])
def test_a_wrong_array_is_named_and_nothing_runs(compiled, name, call):
    bad, parts = WRONG_X[name]
    out = np.full((2, 3), 7, np.float32)
    calls = {
        "run": lambda: compiled.run({"x": bad}),
        "run_raw": lambda: compiled.run_raw({"x": bad}),
        "bind": lambda: compiled.bind({"x": bad}, [out]),
        "out": lambda: compiled.run({"x": bad}, out=[out]),
    }
    if call == "bind":
        parts = ()
    with refused(lambda: compiled.run(FED), ost.InputError, "input 'x'", *parts):
        calls[call]()
    assert (out == 7).all()


WRONG_FEEDS: list[tuple[Any, tuple[str, ...]]] = [
    ({}, ("missing", "x: f32[2,4]")),
    (None, ("missing", "x: f32[2,4]")),
    ({"y": X}, ("unknown input 'y'", "'x'")),
    ({"x": X, "z": X}, ("unknown input 'z'",)),
    ({"X": X}, ("unknown input 'X'",)),
    ({"w": W}, ("unknown input 'w'",)),
    ({3: X}, ("unknown input 3",)),
    ({None: X}, ("unknown input None",)),
    ([X], ("mapping", "list")),
    ((X,), ("mapping", "tuple")),
    (X, ("mapping", "ndarray")),
    ("x", ("mapping", "str")),
    ([("x", X)], ("mapping", "list")),
    (7, ("mapping", "int")),
]


@pytest.mark.parametrize(("feed", "parts"), WRONG_FEEDS)
def test_wrong_names(compiled, feed, parts):
    out = [np.empty((2, 3), np.float32)]
    for call in (
        compiled.run,
        compiled.run_raw,
        lambda feed: compiled.bind(feed, out),
        lambda feed: compiled.run(feed, out=out),
    ):
        with refused(lambda: compiled.run(FED), ost.InputError, *parts):
            call(feed)


# ---- sizes that vary ---------------------------------------------------------------------------


def test_sizes_in_turn(sized):
    for n in (3, 16, 1, 3, 7, 16, 2):
        feed = sized_inputs(n)
        rows, total = sized.run(feed)
        assert rows.shape == (n, 4)
        np.testing.assert_allclose(rows, np.exp(feed["a"]) + np.arange(4), rtol=1e-5)
        np.testing.assert_allclose(total, feed["b"].sum(), rtol=1e-5)


def test_more_sizes_than_are_remembered(session):
    g = ost.Graph()
    n, m = ost.Variable("n", 1, 40), ost.Variable("m", 1, 40)
    g.set_outputs([g.sum(g.input("x", (n, m)), axis=1)])
    compiled = session.compile(g)
    for turn in range(2):
        for rows in range(1, 41, 1 + turn):
            for columns in range(1, 41, 3):
                x = np.ones((rows, columns), np.float32)
                assert compiled.run({"x": x})[0].tolist() == [columns] * rows


@pytest.mark.parametrize(
    ("n", "changes", "error", "parts"),
    [
        (17, {}, ost.VariableError, ("'n'", "1..16", "17", "'a'", "(17, 4)")),
        (0, {}, ost.VariableError, ("'n'", "1..16", "0", "'b'", "(0,)")),
        (3, {"b": np.ones(7, np.float32)}, ost.OstinatoError, ("'b'", "7")),
        (3, {"b": np.ones(8, np.float32)}, ost.VariableError, ("'b'", "8", "n = 3")),
        (3, {"b": np.ones((3, 2), np.float32)}, ost.InputError, ("'b'", "(2*n,)", "(3, 2)")),
        (3, {"a": np.ones((3, 5), np.float32)}, ost.InputError, ("'a'", "(n, 4)", "(3, 5)")),
        (3, {"c": np.ones(3, np.int64)}, ost.InputError, ("'c'", "(4,)", "(3,)")),
        (3, {"c": np.ones(4, np.int32)}, ost.InputError, ("'c'", "int64", "int32")),
        (3, {"a": np.broadcast_to(np.float32(0), (1 << 50, 4))}, ost.OstinatoError, ("'a'",)),
    ],
)
def test_sizes_out_of_bounds_and_at_odds(sized, n, changes, error, parts):
    feed = {**sized_inputs(n), **changes}
    out = [np.empty((3, 4), np.float32), np.empty((), np.float32)]
    for call in (
        lambda: sized.run(feed),
        lambda: sized.run_raw(feed),
        lambda: sized.bind(feed, out),
        lambda: sized.run(feed, out=out),
    ):
        with refused(lambda: sized.run(sized_inputs(5)), error, *parts):
            call()


# ---- the short path and the long one -----------------------------------------------------------


class Slow(dict):
    """A mapping that only the thorough check takes."""


CHANGES = {
    "wider": lambda a: a.astype(np.float64),
    "foreign byte order": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "one axis more": lambda a: a[None],
    "far apart": strided,
    "shorter": lambda a: a[:-1],
    "columns first": np.asfortranarray,
    "a subclass": lambda a: a.view(Subclass),
    "a list": lambda a: a.tolist(),
    "a buffer": lambda a: memoryview(np.ascontiguousarray(a)),
    "backwards": lambda a: a[::-1],
    "read-only": read_only,
    "nothing": lambda a: None,
    "the same": lambda a: a,
}


@st.composite
def feeds(draw: st.DrawFn) -> dict[str, Any]:
    """Inputs for the sized graph, mostly right."""
    feed: dict[str, Any] = sized_inputs(draw(st.integers(0, 18)))
    for name in draw(st.sets(st.sampled_from(["a", "b", "c"]), max_size=2)):
        feed[name] = CHANGES[draw(st.sampled_from(list(CHANGES)))](feed[name])
    if draw(st.integers(0, 9)) == 0:
        del feed[draw(st.sampled_from(["a", "b", "c"]))]
    if draw(st.integers(0, 9)) == 0:
        feed["d"] = X
    return feed


def outcome(compiled: ost.CompiledGraph, feed: Any) -> Any:
    try:
        return [(a.shape, a.dtype, a.tobytes()) for a in compiled.run(feed)]
    except ost.OstinatoError as error:
        return type(error), str(error)


@settings(deadline=None, max_examples=400)
@given(feed=feeds())
def test_the_short_path_agrees_with_the_long_one(sized, feed):
    """Both paths agree in either order, whether or not the shapes were seen before."""
    thorough = outcome(sized, Slow(feed))
    assert outcome(sized, feed) == thorough
    assert outcome(sized, Slow(feed)) == thorough
    recognised = sized._execution.signature.recognise(feed)
    assert recognised is None or isinstance(thorough, list)


def test_the_short_path_is_taken(sized):
    feed = sized_inputs(4)
    sized.run(feed)
    arrays, _ = sized._execution.signature.recognise(feed)
    assert all(taken is feed[name] for taken, name in zip(arrays, "abc", strict=True))


def test_the_short_path_leaves_arrays_with_gaps_to_the_long_one(sized):
    feed = sized_inputs(4)
    expected = sized.run(feed)
    apart = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in feed.items()}
    execution = sized._execution
    assert execution.signature.recognise_sizes(apart) is not None
    assert execution.signature.recognise(apart) is None
    assert execution.run_quick(apart, None) is None
    for mine, truth in zip(sized.run(apart), expected, strict=True):
        np.testing.assert_array_equal(mine, truth)


# ---- conversion on demand ----------------------------------------------------------------------


def test_inputs_and_params_are_converted_when_asked_for(session):
    casting = session.compile(
        tiny_graph(),
        {"w": W.astype(np.float64), "b": [0.25, -1.0, 2.0]},
        options=ost.CompileOptions(cast_inputs=True),
    )
    expected = tiny()
    for values in (X, X.astype(np.float64), X.astype(">f4"), X.tolist(), strided(X.astype("f8"))):
        np.testing.assert_allclose(casting.run({"x": values})[0], expected, rtol=1e-5, atol=1e-6)
    casting.set_param("b", B.astype(np.float16))
    np.testing.assert_allclose(casting.run(FED)[0], expected, rtol=1e-5, atol=1e-6)
    for bad in (X.astype(str), X.astype(np.complex64), np.zeros((2, 4), "datetime64[s]"), X[:1]):
        with refused(lambda: casting.run(FED), ost.InputError, "'x'"):
            casting.run({"x": bad})
    with refused(lambda: casting.run(FED), ost.InputError, "'x'", "float32", "float64"):
        casting.bind({"x": X.astype(np.float64)}, [np.empty((2, 3), np.float32)])


NUMBERS = [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.9, -2.9, -0.5, 300.0, 65504.0]
CONVERTED = ["float16", "bfloat16", "float32", "float64", "int64", "int8", "uint8", "bool"]


@pytest.mark.parametrize("target", ["int8", "uint8", "int32", "int64", "uint64", "bool", "float16"])
@pytest.mark.parametrize("source", CONVERTED)
def test_arrays_are_converted_as_the_op_cast_would(session, source, target):
    """Inputs, params and handles alike: NaN gives 0, what is out of range saturates."""
    source_dtype = ost.DType.parse(source).numpy
    with np.errstate(all="ignore"):
        finite = np.nan_to_num(NUMBERS, nan=3, posinf=1e9, neginf=-1e9)
        values = (NUMBERS if source_dtype.kind in "fV" else finite.astype(np.int64)) * np.ones(1)
        given = values.astype(np.float32).astype(source_dtype)
    graph = ost.Graph("as_they_are")
    outputs = [graph.cast(graph.input("x", (10,), target), target)]
    outputs.append(graph.cast(graph.param("p", (10,), target), target))
    graph.set_outputs(outputs)
    inside = ost.Graph("cast")
    inside.set_outputs([inside.cast(inside.input("x", (10,), source), target)])
    (expected,) = session.compile(inside).run({"x": given})
    casting = session.compile(graph, {"p": given}, options=ost.CompileOptions(cast_inputs=True))
    for converted in casting.run({"x": given}):
        np.testing.assert_array_equal(converted, expected)
    casting.set_param("p", given[::-1])
    casting.bind_handle("x", given[::-1])
    for converted in casting.run():
        np.testing.assert_array_equal(converted, expected[::-1])
