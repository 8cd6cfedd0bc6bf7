"""States in memory that each run is given: ``Graph.inout``."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference
from ostinato.ir.text import graph_constants

pytestmark = pytest.mark.needs("inouts")


def cache_step(session, rows=6, width=4, *, optimize=True):
    """A graph that writes a row of a cache at a position, and sums the rows."""
    g = ost.Graph("step")
    x = g.input("x", (1, width))
    at = g.input("at", (), "int64")
    cache = g.inout("cache", (rows, width))
    new = g.dynamic_update_slice(cache, x, (at, 0))
    g.assign(cache, new)
    g.set_outputs({"sum": g.sum(new, axis=0)})
    return g, session.compile(g, options=ost.CompileOptions(optimize=optimize))


@pytest.mark.parametrize("optimize", [True, False])
def test_a_run_writes_to_the_array_that_it_is_given(optimize, session):
    g, compiled = cache_step(session, optimize=optimize)
    caches = [np.zeros((6, 4), np.float32), np.ones((6, 4), np.float32)]
    wanted = [cache.copy() for cache in caches]
    for step in range(6):
        for cache, expected in zip(caches, wanted, strict=True):
            x = np.full((1, 4), step + 2, np.float32)
            (found,) = compiled.run({"x": x, "at": np.array(step), "cache": cache})
            result = reference.run(g, {"x": x, "at": np.array(step), "cache": expected})
            expected[...] = result.states["cache"]
            np.testing.assert_array_equal(cache, expected)
            np.testing.assert_allclose(found, result.outputs["sum"])


@pytest.mark.needs("in_place_states")
def test_no_copy_of_the_array_is_made(session):
    _, compiled = cache_step(session, rows=1 << 16)
    assert compiled.plan.memory.arena_bytes < 1 << 16
    written = [kernel.name for kernel in compiled.plan.kernels]
    assert len(written) <= 2  # a device may run both as one


def test_bound_calls_and_raw_runs_write_too(session):
    _, compiled = cache_step(session)
    cache, x = np.zeros((6, 4), np.float32), np.ones((1, 4), np.float32)
    out = np.empty(4, np.float32)
    call = compiled.bind({"x": x, "at": np.array(2), "cache": cache}, [out])
    call()
    assert cache.sum() == 4 and out.sum() == 4
    compiled.run_raw({"x": x, "at": np.array(3), "cache": cache})
    assert cache.sum() == 8
    compiled.run_slots(x, np.array(4), cache)
    assert cache.sum() == 12


def test_queued_runs_write_to_the_array_itself(session):
    """In the order of submissions, with runs of another graph that read it in between."""
    _, compiled = cache_step(session)
    g = ost.Graph("reader")
    g.set_outputs([g.sum(g.input("x", (6, 4)))])
    reader = session.compile(g)
    cache, x = np.zeros((6, 4), np.float32), np.ones((1, 4), np.float32)
    for step in range(6):
        compiled.commit_no_wait({"x": x * (step + 1), "at": np.array(step), "cache": cache})
        x_before = x.copy()
        x[:] = 7  # the queued run has a copy
        if step % 2:
            assert reader.run({"x": cache})[0] == 4 * sum(range(1, step + 2))
        x[:] = x_before
    compiled.sync_pending()
    assert cache[:, 0].tolist() == [1, 2, 3, 4, 5, 6]


def test_arrays_are_made_in_the_memory_that_runs_use(session):
    _, compiled = cache_step(session)
    cache, x = compiled.zeros((6, 4), "float32"), np.ones((1, 4), np.float32)
    for step in range(3):
        compiled.run({"x": x, "at": np.array(step), "cache": cache})
    assert np.asarray(cache)[:, 0].tolist() == [1, 1, 1, 0, 0, 0]
    assert [cache[row].sum() for row in (2, 3)] == [4, 0]
    assert compiled.zeros((0, 3), "int8").shape == (0, 3)
    for shape, dtype, message in (
        ((-1, 2), "float32", "negative"),
        ((2.5,), "float32", "dim"),
        (3, "float32", "sequence"),
        ((ost.Variable("n", 1, 4),), "float32", "int"),
        ((2,), "float31", "float31"),
    ):
        with pytest.raises(ost.InputError, match=message):
            compiled.zeros(shape, dtype)


def test_sizes_may_be_variables(session):
    n = ost.Variable("n", 1, 64)
    g = ost.Graph()
    x, cache = g.input("x", (4,)), g.inout("cache", (n, 4))
    new = g.dynamic_update_slice(cache, g.reshape(x, (1, 4)), (1, 0))
    g.assign(cache, new)
    g.set_outputs([g.sum(new)])
    compiled = session.compile(g)
    for rows in (2, 64, 7):
        cache_array = np.zeros((rows, 4), np.float32)
        (found,) = compiled.run({"x": np.ones(4, np.float32), "cache": cache_array})
        assert found == 4 and cache_array[1].sum() == 4 and cache_array.sum() == 4
    with pytest.raises(ost.VariableError):
        compiled.run({"x": np.ones(4, np.float32), "cache": np.zeros((65, 4), np.float32)})


def test_other_updates_are_copied_back(session):
    g = ost.Graph()
    a, b = g.inout("a", (3, 3)), g.inout("b", (3, 3))
    g.assign(a, g.permute_dims(b, (1, 0)))
    g.assign(b, g.add(a, 1))
    g.set_outputs([g.sum(a)])
    compiled = session.compile(g)
    x, y = np.random.default_rng(0).random((2, 3, 3), np.float32)
    wanted = y.T.copy(), x + 1
    compiled.run({"a": x, "b": y})
    np.testing.assert_array_equal(x, wanted[0])
    np.testing.assert_array_equal(y, wanted[1])


def test_arrays_that_cannot_be_written_in_place_are_refused(session):
    _, compiled = cache_step(session)
    x, at = np.ones((1, 4), np.float32), np.array(0)
    wide = np.zeros((4, 6), np.float32)
    fixed = np.zeros((6, 4), np.float32)
    fixed.flags.writeable = False
    for cache, message in (
        (wide.T, "C-contiguous"),
        (fixed, "read-only"),
        (np.zeros((6, 4), np.float64), "float32"),
        ([[0.0] * 4] * 6, "no memory"),
    ):
        with pytest.raises(ost.InputError, match=message):
            compiled.run({"x": x, "at": at, "cache": cache})
    shared = np.zeros((6, 4), np.float32)
    with pytest.raises(ost.InputError):
        compiled.run({"x": shared[:1], "at": at, "cache": shared})
    with pytest.raises(ost.InputError, match="cache"):
        compiled.run({"x": x, "at": at})
    assert not wide.any() and not shared.any()


def test_the_text_of_a_graph_round_trips(session):
    g, _ = cache_step(session)
    assert "inout=True" in str(g)
    assert str(ost.parse_graph(str(g), graph_constants(g))) == str(g)


def test_a_handle_may_stand_in(session):
    _, compiled = cache_step(session)
    assert compiled.bind_handle("cache", np.zeros((6, 4), np.float32))
    for step in range(3):
        compiled.run({"x": np.ones((1, 4), np.float32), "at": np.array(step)})
    assert compiled.read_handle("cache").sum() == 12


def test_a_handle_and_an_array_by_turns(session):
    """A device may exchange the memory of a handle, and not that of the caller's array."""
    _, compiled = cache_step(session)
    mine, x = np.zeros((6, 4), np.float32), np.ones((1, 4), np.float32)
    compiled.bind_handle("cache", mine)
    for step in range(3):
        (total,) = compiled.run({"x": x, "at": np.array(step)})
        np.testing.assert_array_equal(total, np.full(4, step + 1, np.float32))
        compiled.run({"x": x, "at": np.array(step), "cache": mine})
        assert mine.sum() == compiled.read_handle("cache").sum() == 4 * (step + 1)
    twin = compiled.clone()
    twin.run({"x": x, "at": np.array(5)})
    assert compiled.read_handle("cache").sum() == 12
    assert twin.read_handle("cache").sum() == 16


def test_one_value_for_an_array_a_state_and_an_output(session):
    g = ost.Graph()
    a, s = g.inout("a", (2, 3)), g.state("s", (2, 3))
    total = a + s + 1
    g.assign(a, total)
    g.assign(s, total)
    g.set_outputs([total])
    compiled = session.compile(g)
    held = np.zeros((2, 3), np.float32)
    for want in (1, 3, 7):
        (found,) = compiled.run({"a": held})
        assert (found == want).all() and (held == want).all()
        assert (compiled.read_handle("s") == want).all()
