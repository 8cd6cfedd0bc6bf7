"""Destinations of results: fresh arrays, the caller's, or memory that the next run overwrites."""

from __future__ import annotations

import array
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import ostinato as ost

from .graphs import FED, X, refused, sized_inputs, strided, tiny

Y = tiny()


def blank(count: int = 1) -> list[np.ndarray]:
    return [np.full((2, 3), 7, np.float32) for _ in range(count)]


def good(compiled: ost.CompiledGraph) -> Any:
    return lambda: compiled.run(FED)


# ---- fresh arrays ------------------------------------------------------------------------------


def test_results_never_change_later(compiled):
    kept = [compiled.run({"x": X * i})[0] for i in range(20)]
    copies = [y.copy() for y in kept]
    for i in range(100):
        compiled.run({"x": X + i})
        compiled.run_raw({"x": X - i})
    assert all((a == b).all() for a, b in zip(kept, copies, strict=True))
    assert not any(np.shares_memory(a, b) for a in kept for b in kept if a is not b)
    assert all(y.flags.writeable and y.flags.c_contiguous for y in kept)


def test_an_input_handed_through_is_copied(session):
    g = ost.Graph()
    x, w = g.input("x", (4,)), g.param("w", (4,), value=np.ones(4, np.float32))
    g.set_outputs({"x": x, "again": x, "w": w, "rows": g.reshape(x, (2, 2))})
    compiled = session.compile(g)
    values = np.arange(4, dtype=np.float32)
    results = compiled.run({"x": values})
    assert [r.ravel().tolist() for r in results] == [[0, 1, 2, 3]] * 2 + [[1] * 4, [0, 1, 2, 3]]
    for i, result in enumerate(results):
        assert not np.shares_memory(result, values)
        assert not any(np.shares_memory(result, other) for other in results[:i])
    results[2][:] = 5  # the param is not reached through a result
    assert compiled.run({"x": values})[2].tolist() == [1] * 4


# ---- out= --------------------------------------------------------------------------------------


def test_out_as_list_tuple_and_mapping(compiled):
    for wrap in (list, tuple, lambda out: {"y": out[0]}):
        out = blank()
        results = compiled.run(FED, out=wrap(out))
        assert results[0] is out[0]
        np.testing.assert_allclose(out[0], Y, rtol=1e-5, atol=1e-6)


def test_out_for_several_outputs_and_sizes(sized):
    for n in (4, 9, 4):
        feed = sized_inputs(n)
        rows, total = np.empty((n, 4), np.float32), np.empty((), np.float32)
        fresh = sized.run(feed)
        for out in ([rows, total], {"total": total, "rows": rows}):
            rows.fill(7)
            total.fill(7)
            sized.run(feed, out=out)
            assert rows.tobytes() == fresh[0].tobytes()
            assert total.tobytes() == fresh[1].tobytes()


def test_out_takes_writable_buffers_of_all_kinds(session, compiled, tmp_path):
    fresh = compiled.run(FED)[0].tobytes()
    memory = bytearray(24)
    for out in (
        memoryview(memory).cast("f", (2, 3)),
        np.memmap(tmp_path / "y", np.float32, "w+", shape=(2, 3)),
        np.ctypeslib.as_ctypes(blank()[0]),
    ):
        compiled.run(FED, out=[out])
        assert bytes(memoryview(out).cast("B")) == fresh
    g = ost.Graph()
    g.set_outputs([g.input("x", (3,)) * 2])
    doubled = array.array("f", [0, 0, 0])
    session.compile(g).run({"x": np.arange(3, dtype=np.float32)}, out=[doubled])
    assert doubled.tolist() == [0, 2, 4]


def read_only() -> np.ndarray:
    values = blank()[0]
    values.flags.writeable = False
    return values


WRONG_OUT: dict[str, tuple[Any, tuple[str, ...]]] = {
    "too few": ([], ("expected 1 output", "y: f32[2,3]", "got 0")),
    "too many": (blank(2), ("expected 1 output", "got 2")),
    "an array": (blank()[0], ("list", "ndarray")),
    "a number": (3, ("list", "int")),
    "text": ("y", ("'y'", "str")),
    "an empty mapping": ({}, ("missing", "y: f32[2,3]")),
    "another name": ({"z": blank()[0]}, ("unknown output 'z'",)),
    "one name too many": ({"y": blank()[0], "z": blank()[0]}, ("unknown output 'z'",)),
    "None": ([None], ("'y'", "NoneType")),
    "a list of lists": ([[[0.0] * 3] * 2], ("'y'", "list")),
    "a scalar": ([np.float32(0)], ("'y'",)),
    "float64": ([np.zeros((2, 3))], ("'y'", "float32", "float64")),
    "int32": ([np.zeros((2, 3), np.int32)], ("'y'", "float32", "int32")),
    "foreign byte order": ([np.zeros((2, 3), ">f4")], ("'y'", "byte order")),
    "transposed": ([np.zeros((3, 2), np.float32)], ("'y'", "(2, 3)", "(3, 2)")),
    "larger": ([np.zeros((3, 3), np.float32)], ("'y'", "(2, 3)", "(3, 3)")),
    "flat": ([np.zeros(6, np.float32)], ("'y'", "(2, 3)", "(6,)")),
    "columns first": ([np.asfortranarray(blank()[0])], ("'y'", "C-contiguous")),
    "far apart": ([strided(blank()[0])], ("'y'", "C-contiguous")),
    "backwards": ([blank()[0][::-1]], ("'y'", "C-contiguous", "strides")),
    "broadcast": ([np.broadcast_to(np.float32(0), (2, 3))], ("'y'", "C-contiguous")),
    "read-only": ([read_only()], ("'y'", "read-only")),
    "bytes": ([bytes(24)], ("'y'", "float32", "uint8")),
    "a read-only view": ([memoryview(bytes(24)).cast("f", (2, 3))], ("'y'", "read-only")),
}


@pytest.mark.parametrize("name", WRONG_OUT)
@pytest.mark.parametrize("call", ["run", "bind"])
def test_a_wrong_output_is_named_and_nothing_is_written(compiled, name, call):
    out, parts = WRONG_OUT[name]
    before = repr(out)
    with refused(good(compiled), ost.InputError, *parts):
        compiled.run(FED, out=out) if call == "run" else compiled.bind(FED, out)
    assert repr(out) == before


def test_outputs_of_another_size_than_the_run(sized):
    out = [np.empty((4, 4), np.float32), np.empty((), np.float32)]
    sized.run(sized_inputs(4), out=out)
    for n in (3, 5, 16):
        with refused(lambda: sized.run(sized_inputs(4)), ost.InputError, "'rows'", f"({n}, 4)"):
            sized.run(sized_inputs(n), out=out)


# ---- memory in common --------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["run", "bind"])
def test_an_output_may_not_overlap_an_input(session, call):
    g = ost.Graph()
    g.set_outputs({"y": g.flip(g.input("x", (8,)), 0)})
    compiled = session.compile(g)
    values = np.arange(24, dtype=np.float32)

    def ran() -> list[np.ndarray]:
        return compiled.run({"x": np.arange(8, dtype=np.float32)})

    for start in (8, 1, 15):
        feed, out = {"x": values[start : start + 8]}, [values[8:16]]
        with refused(ran, ost.InputError, "output 'y'", "input 'x'", "overlap"):
            compiled.run(feed, out=out) if call == "run" else compiled.bind(feed, out)
        assert (values == np.arange(24)).all()
    neighbours = {"x": values[:8]}, [values[8:16]]
    if call == "run":
        compiled.run(neighbours[0], out=neighbours[1])
    else:
        compiled.bind(*neighbours)()
    assert values[8:16].tolist() == list(range(7, -1, -1))


@pytest.mark.parametrize("call", ["run", "bind"])
def test_an_output_may_not_overlap_another(sized, call):
    feed = sized_inputs(4)
    rows = np.full((4, 4), 7, np.float32)
    for total in (rows[3:, 3:].reshape(()), rows[0, :1].reshape(())):
        with refused(lambda: sized.run(feed), ost.InputError, "output", "'rows'", "'total'"):
            if call == "run":
                sized.run(feed, out=[rows, total])
            else:
                sized.bind(feed, [rows, total])
        assert (rows == 7).all()


def test_inputs_may_overlap_each_other(session):
    g = ost.Graph()
    g.set_outputs([g.input("a", (4,)) + g.input("b", (4,))])
    compiled = session.compile(g)
    values = np.arange(5, dtype=np.float32)
    assert compiled.run({"a": values[:4], "b": values[1:]})[0].tolist() == [1, 3, 5, 7]
    assert compiled.run({"a": values[:4], "b": values[:4]})[0].tolist() == [0, 2, 4, 6]


def test_an_input_that_is_copied_anyway_overlaps_nothing(session):
    """Far-apart inputs are brought together before the run, and outputs come after."""
    g = ost.Graph()
    g.set_outputs([g.flip(g.input("x", (4,)), 0)])
    compiled = session.compile(g)
    values = np.arange(8, dtype=np.float32)
    compiled.run({"x": values[::2]}, out=[values[:4]])
    assert values.tolist() == [6, 4, 2, 0, 4, 5, 6, 7]


# ---- run_raw -----------------------------------------------------------------------------------


def test_raw_results_are_views_that_the_next_run_overwrites(compiled):
    (first,) = compiled.run_raw(FED)
    np.testing.assert_allclose(first, Y, rtol=1e-5, atol=1e-6)
    assert not first.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1
    (second,) = compiled.run_raw({"x": X + 1})
    assert np.shares_memory(first, second)
    assert first.tobytes() == second.tobytes() == compiled.run({"x": X + 1})[0].tobytes()


def test_raw_results_of_several_sizes_share_one_block(sized):
    for n in (16, 3, 16, 1):
        raw, fresh = sized.run_raw(sized_inputs(n)), sized.run(sized_inputs(n))
        assert [r.tobytes() for r in raw] == [f.tobytes() for f in fresh]
        assert [r.shape for r in raw] == [(n, 4), ()]
    small, large = sized.run_raw(sized_inputs(2))[0], sized.run_raw(sized_inputs(16))[0]
    assert np.shares_memory(small, large)


def test_a_raw_result_can_not_be_fed_back_over_itself(session):
    g = ost.Graph()
    g.set_outputs({"y": g.flip(g.input("x", (4,)), 0)})
    compiled = session.compile(g)
    values = np.arange(4, dtype=np.float32)
    (raw,) = compiled.run_raw({"x": values})
    with refused(lambda: compiled.run({"x": values}), ost.InputError, "'y'", "'x'", "overlap"):
        compiled.run_raw({"x": raw})
    assert compiled.run({"x": raw})[0].tolist() == [0, 1, 2, 3]


# ---- bind --------------------------------------------------------------------------------------


def test_a_bound_call_follows_the_contents_of_its_arrays(compiled):
    x, y = X.copy(), blank()[0]
    call = compiled.bind({"x": x}, [y])
    assert (y == 7).all(), "binding runs nothing"
    for shift in (0, 1, -2):
        x[:] = X + shift
        assert call() is None
        assert y.tobytes() == compiled.run({"x": x})[0].tobytes()


def test_bound_calls_of_several_sizes_side_by_side(sized):
    calls = []
    for n in (2, 16, 5):
        out = [np.empty((n, 4), np.float32), np.empty((), np.float32)]
        calls.append((sized_inputs(n), out, sized.bind(sized_inputs(n), out)))
    for feed, out, call in calls * 2:
        call()
        assert [a.tobytes() for a in out] == [a.tobytes() for a in sized.run(feed)]


@pytest.mark.parametrize(
    ("x", "parts"),
    [
        (strided(X), ("'x'", "C-contiguous", "in place")),
        (np.asfortranarray(X), ("'x'", "C-contiguous")),
        (X[::-1], ("'x'", "C-contiguous", "strides")),
        (memoryview(strided(X)), ("'x'", "C-contiguous")),
        (X.tolist(), ("'x'", "list")),
        (X.astype(">f4"), ("'x'", "byte order")),
        (X.astype(np.float64), ("'x'", "float32", "float64")),
    ],
)
def test_bind_makes_no_copies(compiled, x, parts):
    with refused(good(compiled), ost.InputError, *parts):
        compiled.bind({"x": x}, blank())


def test_bind_shares_buffers_of_all_kinds(compiled):
    values = bytearray(X.tobytes())
    y = blank()[0]
    call = compiled.bind({"x": memoryview(values).cast("f", (2, 4))}, [y])
    values[:] = (X + 3).tobytes()
    call()
    assert y.tobytes() == compiled.run({"x": X + 3})[0].tobytes()


def test_a_bound_call_keeps_all_it_needs(session):
    g = ost.Graph()
    g.set_outputs([g.input("x", (3,)) * g.param("w", (3,))])
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    call = session.compile(g, {"w": np.full(3, 2, np.float32)}).bind({"x": x}, [y])
    gc.collect()
    call()
    assert y.tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match=r"referenced|resize"):
        x.resize((100,), refcheck=True)


def test_nothing_is_kept_of_a_run(compiled):
    class Watched(np.ndarray):
        pass

    x, y = X.copy().view(Watched), blank()[0].view(Watched)
    ends = [weakref.ref(x), weakref.ref(y)]
    compiled.run({"x": x}, out=[y])
    compiled.run_raw({"x": x})
    del x, y
    gc.collect()
    assert [end() for end in ends] == [None, None]
