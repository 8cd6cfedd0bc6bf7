"""Chosen outputs, rows of the last run, and results that stay in the arena."""

from __future__ import annotations

import ctypes
import gc
import itertools
import tracemalloc
import weakref

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost

from .graphs import X, refused, sized_inputs, tiny


def many_graph() -> ost.Graph:
    """Outputs of several shapes and dtypes, one of them an input as it is, one a scalar."""
    g = ost.Graph("many")
    x = g.input("x", (3, 4))
    g.set_outputs(
        {
            "plus": x + 1,
            "total": g.sum(x),
            "half": g.cast(x, "bfloat16"),
            "same": x,
            "counts": g.cast(x, "int64"),
            "flags": x > 0,
            "rows": g.sum(x, axis=1),
        }
    )
    return g


def fed(step: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(12, dtype=np.float32).reshape(3, 4) * (step + 1) - 5}


@pytest.fixture(scope="module")
def many(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(many_graph())


def as_bytes(arrays) -> list[bytes]:
    return [array.tobytes() for array in arrays]


# ---- chosen outputs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "indices", [[], [0], [6, 0], [2, 3, 1], [5, 5], (4,), range(7), np.array([1, 2])]
)
@pytest.mark.parametrize("given", [lambda indices: indices, iter], ids=["sequence", "iterator"])
def test_only_those_outputs_in_that_order(many, indices, given):
    listed = [int(i) for i in indices]
    full = many.run(fed(0))
    got = many.run_read_outputs(fed(0), given(indices))
    assert [a.dtype for a in got] == [full[i].dtype for i in listed]
    assert as_bytes(got) == as_bytes(full[i] for i in listed)


def test_none_is_all_of_them(many):
    assert as_bytes(many.run_read_outputs(fed(1), None)) == as_bytes(many.run(fed(1)))


@pytest.mark.parametrize("indices", [[7], [-1], [0, 99], [1.0], ["plus"], [None], [True], 3, "0"])
def test_positions_that_do_not_exist(many, indices):
    with refused(lambda: many.run(fed(0)), ost.InputError, "0..6" if indices != 3 else "position"):
        many.run_read_outputs(fed(1), indices)
    assert many.read_output_row(0, 0).tolist() == [-4, -3, -2, -1], "the wrong call has run"


def test_an_output_listed_twice_gives_two_arrays(many):
    first, second = many.run_read_outputs(fed(0), [0, 0])
    first[:] = 0
    assert second.any()


def test_chosen_outputs_never_change_later(many):
    kept = many.run_read_outputs(fed(0), [0, 3])
    before = as_bytes(kept)
    many.run_raw(fed(1))
    many.run_read_outputs(fed(2), [1])
    many.run(fed(3))
    assert as_bytes(kept) == before


@pytest.mark.needs("host_memory")
def test_outputs_not_read_take_no_memory(session):
    """64 MB that are not read are not allocated; they go to the arena, again and again."""
    g = ost.Graph("wide")
    x = g.input("x", (4, 1))
    big = g.broadcast_to(x, (4, 1 << 22)) + 1
    g.set_outputs([big, x * 2])
    compiled = session.compile(g)
    feed = {"x": np.ones((4, 1), np.float32)}
    compiled.run_read_outputs(feed, [1])
    tracemalloc.start()
    for _ in range(3):
        (small,) = compiled.run_read_outputs(feed, [1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert small.tolist() == [[2]] * 4
    assert peak < 1 << 20


# ---- rows of the last run ------------------------------------------------------------------------


def test_rows_of_every_kind_of_run(many):
    sources = {
        "run": lambda i: many.run(fed(i)),
        "out": lambda i: many.run(fed(i), out=[np.empty_like(a) for a in many.run(fed(9))]),
        "read": lambda i: many.run_read_outputs(fed(i), [1]),
        "raw": lambda i: many.run_raw(fed(i)),
        "slots": lambda i: many.run_slots(fed(i)["x"]),
        "typed": lambda i: many.run_typed([("x", fed(i)["x"].tobytes(), "f32")]),
        "commit": lambda i: many.commit_no_wait(fed(i)),
        "pipelined": lambda i: many.run_pipelined([fed(8), fed(i)]),
    }
    for i, (name, call) in enumerate(sources.items()):
        call(i)
        rows = [many.read_output_row(out, 2) for out in (0, 2, 4, 6)]
        expected = many.run(fed(i))
        for row, out in zip(rows, (0, 2, 4, 6), strict=True):
            assert row.dtype == expected[out].dtype, name
            np.testing.assert_array_equal(row, expected[out][2], err_msg=name)
    many.sync_pending()


def test_rows_that_are_not_there(many, session):
    assert session.compile(many_graph()).read_output_row(0, 0) is None, "nothing has run"
    many.run(fed(0))
    for out, row in [(0, 3), (0, -1), (7, 0), (-1, 0), (1, 0), (0, 1 << 70), (1 << 70, 0)]:
        assert many.read_output_row(out, row) is None
    assert many.read_output_row(np.int64(0), np.uint8(1)).tolist() == [0, 1, 2, 3]
    for out, row in [("0", 0), (0, None), (0.0, 0)]:
        with pytest.raises(ost.InputError):
            many.read_output_row(out, row)


def test_a_row_of_a_vector_is_a_scalar(many):
    many.run(fed(0))
    row = many.read_output_row(6, 0)
    assert row.shape == ()
    assert row == -20 + 6


def test_rows_are_copies(many):
    many.run_raw(fed(0))
    row = many.read_output_row(0, 1)
    before = row.copy()
    row += 1
    assert (many.read_output_row(0, 1) == before).all()
    kept = many.read_output_row(0, 1)
    many.run_raw(fed(5))
    assert (kept == before).all()


def test_a_refused_run_leaves_the_rows(many):
    many.run(fed(0))
    before = many.read_output_row(0, 0)
    for call in (many.run, many.run_raw, lambda f: many.run_read_outputs(f, [0])):
        with pytest.raises(ost.InputError):
            call({"x": np.zeros((3, 5), np.float32)})
    assert (many.read_output_row(0, 0) == before).all()


def test_changing_the_returned_list_does_not_change_what_rows_are_read_from(many):
    outputs = many.run(fed(0))
    expected = outputs[0][1].copy()
    outputs.clear()
    assert (many.read_output_row(0, 1) == expected).all()


def test_rows_of_live_sizes(sized):
    sized.run_raw(sized_inputs(5))
    assert sized.read_output_row(0, 4) is not None
    assert sized.read_output_row(0, 5) is None


def test_results_are_kept_for_one_run_only(many):
    """The rows must not hold on to more than the last results."""
    first = weakref.ref(many.run(fed(0))[0])
    many.run(fed(1))
    gc.collect()
    assert first() is None


# ---- the arena -----------------------------------------------------------------------------------


def test_raw_results_are_the_same_bits_and_lie_in_the_arena(many):
    expected = many.run(fed(2))
    raw = many.run_raw(fed(2))
    assert as_bytes(raw) == as_bytes(expected)
    start, end = many.arena_ptr(), many.arena_ptr() + len(many.arena)
    for array in raw:
        address = array.__array_interface__["data"][0]
        assert start <= address
        assert address + array.nbytes <= end


def test_raw_results_can_not_be_written(many):
    for array in many.run_raw(fed(0)):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_raw_results_are_overwritten_by_the_next_run_raw(many):
    first = many.run_raw(fed(0))[0]
    second = many.run_raw(fed(3))[0]
    assert first.__array_interface__["data"] == second.__array_interface__["data"]
    np.testing.assert_array_equal(first, fed(3)["x"] + 1)


def test_results_already_returned_never_change(many):
    kept = many.run(fed(0))
    before = as_bytes(kept)
    for i in range(5):
        many.run_raw(fed(i))
        many.run_slots(fed(i)["x"])
        many.run(fed(i))
    assert as_bytes(kept) == before


def test_raw_views_outlive_the_graph(session):
    compiled = session.compile(many_graph())
    view = compiled.run_raw(fed(0))[0]
    arena = compiled.arena
    del compiled
    gc.collect()
    np.testing.assert_array_equal(view, fed(0)["x"] + 1)
    assert len(bytes(arena)) == len(arena)


def test_slots_say_where_results_lie(many):
    expected = many.run(fed(4))
    slots = many.run_slots(fed(4)["x"])
    assert [count for _, count in slots] == [array.size for array in expected]
    pointer = many.arena_ptr()
    for (offset, count), array in zip(slots, expected, strict=True):
        assert isinstance(offset, int)
        assert isinstance(count, int)
        nbytes = count * array.dtype.itemsize
        assert bytes(many.arena[offset : offset + nbytes]) == array.tobytes()
        assert ctypes.string_at(pointer + offset, nbytes) == array.tobytes()
    ends = sorted((o, o + c * a.dtype.itemsize) for (o, c), a in zip(slots, expected, strict=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_the_arena_stays_where_it_is(many):
    many.run_slots(fed(0)["x"])
    pointer, slots = many.arena_ptr(), many.run_slots(fed(1)["x"])
    many.run(fed(2))
    assert many.run_slots(fed(3)["x"]) == slots
    assert many.arena_ptr() == pointer


def test_the_arena_is_read_only(many):
    assert many.arena.readonly
    with pytest.raises(TypeError):
        many.arena[0] = 1


def test_intermediate_values_do_not_run_over_results(session):
    """Results stay whole although later kernels of the same run use the arena too."""
    g = ost.Graph("deep")
    x = g.input("x", (16, 16))
    outputs, value = [], x
    for _ in range(6):
        value = g.softmax(g.matmul(value, g.transpose(value)))
        outputs.append(value * 1.0)
    g.set_outputs(outputs)
    compiled = session.compile(g)
    feed = {"x": np.random.default_rng(0).random((16, 16), np.float32)}
    expected = compiled.run(feed)
    assert as_bytes(compiled.run_raw(feed)) == as_bytes(expected)
    slots = compiled.run_slots(feed["x"])
    for (offset, count), array in zip(slots, expected, strict=True):
        assert bytes(compiled.arena[offset : offset + 4 * count]) == array.tobytes()


def test_positional_inputs_come_in_declaration_order(session):
    g = ost.Graph("order")
    b, a = g.input("b", (2,)), g.input("a", (2,))
    g.set_outputs([b - a])
    compiled = session.compile(g)
    ((offset, count),) = compiled.run_slots(np.float32([5, 6]), np.float32([1, 2]))
    assert np.frombuffer(compiled.arena, np.float32, count, offset).tolist() == [4, 4]


@pytest.mark.parametrize(
    "arrays",
    [(), (X, X), (None,), (X.astype(np.float64),), (X[:1],), ("x",), ({"x": X},)],
)
def test_wrong_positional_inputs(compiled, arrays):
    with refused(lambda: compiled.run({"x": X}), ost.InputError):
        compiled.run_slots(*arrays)


def test_slots_have_the_live_size(sized):
    for n in (16, 1, 7):
        feed = sized_inputs(n)
        (offset, count), (_, one) = sized.run_slots(*feed.values())
        assert (count, one) == (4 * n, 1)
        rows = np.frombuffer(sized.arena, np.float32, count, offset).reshape(n, 4)
        np.testing.assert_array_equal(rows, sized.run(feed)[0])


def test_a_raw_result_as_the_next_input(session):
    """Read while it is written would be wrong silently; it is refused, or right."""
    g = ost.Graph("grow")
    x = g.input("x", (64,))
    g.set_outputs([g.flip(x, axis=0) + 1])
    compiled = session.compile(g)
    raw = compiled.run_raw({"x": np.arange(64, dtype=np.float32)})[0]
    expected = raw[::-1] + 1
    np.testing.assert_array_equal(compiled.run({"x": raw})[0], expected)
    with pytest.raises(ost.InputError, match="overlaps"):
        compiled.run_raw({"x": raw})


def test_raw_results_of_bfloat16(session):
    g = ost.Graph("bf16")
    x = g.input("x", (3,), "bfloat16")
    g.set_outputs([x + x])
    (raw,) = session.compile(g).run_raw({"x": np.array([1, 2, 3], ml_dtypes.bfloat16)})
    assert raw.dtype == ml_dtypes.bfloat16
    assert raw.astype(np.float32).tolist() == [2, 4, 6]


def test_empty_and_scalar_results(session):
    g = ost.Graph("odd")
    x = g.input("x", (0, 3))
    g.set_outputs([x + 1, g.sum(x)])
    compiled = session.compile(g)
    raw = compiled.run_raw({"x": np.empty((0, 3), np.float32)})
    assert [a.shape for a in raw] == [(0, 3), ()]
    assert [count for _, count in compiled.run_slots(np.empty((0, 3), np.float32))] == [0, 1]
    assert compiled.read_output_row(0, 0) is None


# ---- the protocols of arrays ---------------------------------------------------------------------


def test_results_export_both_protocols(compiled):
    (out,) = compiled.run({"x": X})
    np.testing.assert_allclose(out, tiny(), rtol=1e-5)
    assert memoryview(out).shape == (2, 3)
    assert np.shares_memory(np.from_dlpack(out), out)
    (raw,) = compiled.run_raw({"x": X})
    assert memoryview(raw).readonly
    np.testing.assert_array_equal(np.asarray(memoryview(raw)), out)


def test_results_are_ordinary_arrays(compiled):
    (out,) = compiled.run({"x": X})
    assert type(out) is np.ndarray
    assert out.flags.writeable
    assert out.flags.c_contiguous
    assert out.flags.owndata
