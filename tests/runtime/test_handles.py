"""Handles and states: what stands in for an input, what they take after a run, and no copies."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ostinato as ost

from .graphs import refused

pytestmark = pytest.mark.needs("handles")

ONE = np.ones(3, np.float32)


def adder_graph() -> ost.Graph:
    """``acc + x`` first, then what is of another shape or dtype."""
    g = ost.Graph("adder")
    acc, x = g.input("acc", (3,)), g.input("x", (3,))
    total = acc + x
    g.set_outputs(
        {
            "total": total,
            "double": total * 2,
            "wide": g.broadcast_to(total, (2, 3)) * 1.0,
            "counts": g.cast(total, "int32"),
        }
    )
    return g


@pytest.fixture
def adder(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(adder_graph())


def cache_graph(rows: int = 6, width: int = 4) -> ost.Graph:
    """A cache as a state: a row is appended at ``at``; the output is the sum of all rows."""
    g = ost.Graph("cache")
    row, at = g.input("row", (1, width)), g.input("at", (), "int64")
    cache = g.state("cache", (rows, width), init=0)
    new = g.dynamic_update_slice(cache, row, (at, 0))
    g.assign(cache, new)
    g.set_outputs([g.sum(new, axis=0)])
    return g


def at(position: int) -> np.ndarray:
    return np.array(position, np.int64)


# ---- bind, read, unbind --------------------------------------------------------------------------


def test_a_bound_input_may_be_left_out(adder):
    assert adder.has_handle("acc") is False
    assert adder.read_handle("acc") is None
    assert adder.bind_handle("acc", 5 * ONE) is True
    assert adder.has_handle("acc") is True
    assert adder.run({"x": ONE})[0].tolist() == [6, 6, 6]
    assert adder.run({"x": ONE})[0].tolist() == [6, 6, 6], "without a feed it stays"
    assert adder.read_handle("acc").tolist() == [5, 5, 5]


def test_every_way_to_run_takes_handles(adder):
    adder.bind_handle("acc", 5 * ONE)
    (offset, count), *_ = adder.run_slots(None, ONE)
    assert np.frombuffer(adder.arena, np.float32, count, offset).tolist() == [6, 6, 6]
    out = [np.empty_like(a) for a in adder.run({"x": ONE})]
    adder.run({"x": ONE}, out=out)
    adder.commit_no_wait({"x": ONE})
    adder.sync_pending()
    results = [
        adder.read_output_row(2, 0),
        adder.run({"x": ONE})[0],
        adder.run_raw({"x": ONE})[0],
        adder.run_read_outputs({"x": ONE}, [0])[0],
        adder.run_pipelined([{"x": ONE}])[0][0],
        np.frombuffer(adder.run_typed([("x", ONE.tobytes(), "f32")])[0][0], np.float32),
        out[0],
    ]
    assert [list(r) for r in results] == [[6, 6, 6]] * len(results)


def test_given_explicitly_it_overrides_for_that_run_alone(adder):
    adder.bind_handle("acc", 5 * ONE)
    assert adder.run({"x": ONE, "acc": 7 * ONE})[0].tolist() == [8, 8, 8]
    assert adder.run({"x": ONE})[0].tolist() == [6, 6, 6]
    assert adder.read_handle("acc").tolist() == [5, 5, 5]


def test_all_inputs_may_be_bound(adder):
    adder.bind_handle("acc", ONE)
    adder.bind_handle("x", ONE)
    assert adder.run()[0].tolist() == [2, 2, 2]
    assert adder.run(None)[0].tolist() == [2, 2, 2]
    assert adder.run({})[0].tolist() == [2, 2, 2]


def test_unbinding_makes_the_input_needed_again(adder):
    adder.bind_handle("acc", ONE)
    adder.unbind_handle("acc")
    assert adder.has_handle("acc") is False
    assert adder.read_handle("acc") is None
    with pytest.raises(ost.InputError, match="missing inputs: acc"):
        adder.run({"x": ONE})
    adder.unbind_handle("acc")  # again, and nothing happens
    assert adder.run({"x": ONE, "acc": ONE})[0].tolist() == [2, 2, 2]


def test_a_handle_is_a_copy_both_ways(adder):
    mine = 5 * ONE
    adder.bind_handle("acc", mine)
    mine[:] = 100
    read = adder.read_handle("acc")
    assert read.tolist() == [5, 5, 5]
    read[:] = 100
    assert adder.run({"x": ONE})[0].tolist() == [6, 6, 6]


def test_a_handle_takes_the_place_of_the_former_one(adder):
    adder.bind_handle("acc", ONE)
    before = adder.read_handle("acc")
    adder.bind_handle("acc", 2 * ONE)
    assert adder.run({"x": ONE})[0].tolist() == [3, 3, 3]
    assert before.tolist() == [1, 1, 1]


def test_handles_take_arrays_of_all_kinds(adder):
    wide = np.stack([ONE * 5, ONE], axis=-1)
    for array in (memoryview(5 * ONE), wide[:, 0], (5 * ONE).astype(">f4").astype("f4")):
        adder.bind_handle("acc", array)
        assert adder.run({"x": ONE})[0].tolist() == [6, 6, 6]


def test_bound_calls_leave_handles_alone(adder):
    adder.bind_handle("acc", 5 * ONE)
    adder.set_handle_feed("acc", 0)
    out = [np.empty_like(a) for a in adder.run({"x": ONE})]
    with pytest.raises(ost.InputError, match="missing"):
        adder.bind({"x": ONE}, out)
    adder.bind({"x": ONE, "acc": ONE}, out)()
    assert out[0].tolist() == [2, 2, 2]
    assert adder.read_handle("acc").tolist() == [6, 6, 6]


# ---- feeds ---------------------------------------------------------------------------------------


def test_a_feed_carries_the_output_to_the_next_run(adder):
    adder.bind_handle("acc", 0 * ONE)
    adder.set_handle_feed("acc", 0)
    kept = []
    for i in range(1, 6):
        kept.append(adder.run({"x": ONE})[0])
        assert adder.read_handle("acc").tolist() == [i] * 3
    assert [k.tolist() for k in kept] == [[i] * 3 for i in range(1, 6)], "a result changed later"


def test_returned_results_and_the_handle_do_not_share_memory(adder):
    adder.bind_handle("acc", 0 * ONE)
    adder.set_handle_feed("acc", 0)
    for i in range(1, 5):
        (total, *_) = adder.run({"x": ONE})
        assert total.tolist() == [i] * 3
        total[:] = 1000
    returned = adder.run_feed_handle({"x": ONE}, "acc", 0)
    returned[:] = 1000
    assert adder.read_handle("acc").tolist() == [5, 5, 5]


def test_out_arrays_get_what_the_handle_takes(adder):
    adder.bind_handle("acc", 0 * ONE)
    adder.set_handle_feed("acc", 0)
    out = [np.empty_like(a) for a in adder.run({"x": ONE})]
    for i in range(2, 6):
        assert adder.run({"x": ONE}, out=out)[0] is out[0]
        assert out[0].tolist() == [i] * 3
    out[0][:] = 1000
    assert adder.read_handle("acc").tolist() == [5, 5, 5]


def test_out_arrays_that_overlap_are_refused(session):
    """Also those that the run itself does not write, because a handle takes what it writes."""
    g = ost.Graph("pair")
    acc, x = g.input("acc", (3,)), g.input("x", (3,))
    g.set_outputs([acc + x, acc - x])
    compiled = session.compile(g)
    compiled.bind_handle("acc", 5 * ONE)
    compiled.set_handle_feed("acc", 0)
    out, x_ = np.empty(3, np.float32), ONE.copy()
    for outs in ([out, out], [x_, out], [out, x_]):
        with pytest.raises(ost.InputError, match="overlaps"):
            compiled.run({"x": x_}, out=outs)
    assert compiled.read_handle("acc").tolist() == [5, 5, 5]
    assert x_.tolist() == [1, 1, 1]


def test_a_feed_without_a_handle_begins_with_the_first_run(adder):
    adder.set_handle_feed("acc", 0)
    with pytest.raises(ost.InputError, match="missing inputs: acc"):
        adder.run({"x": ONE})
    assert adder.has_handle("acc") is False
    adder.run({"x": ONE, "acc": ONE})
    assert adder.run({"x": ONE})[0].tolist() == [3, 3, 3]


def test_an_explicit_input_is_fed_from_all_the_same(adder):
    adder.bind_handle("acc", 50 * ONE)
    adder.set_handle_feed("acc", 0)
    adder.run({"x": ONE, "acc": ONE})
    assert adder.read_handle("acc").tolist() == [2, 2, 2]


def test_ending_a_feed(adder):
    adder.bind_handle("acc", 0 * ONE)
    adder.set_handle_feed("acc", 0)
    adder.run({"x": ONE})
    adder.set_handle_feed("acc", None)
    adder.run({"x": ONE})
    assert adder.read_handle("acc").tolist() == [1, 1, 1]
    adder.set_handle_feed("acc", 1)
    adder.run({"x": ONE})
    assert adder.read_handle("acc").tolist() == [4, 4, 4]
    adder.unbind_handle("acc")
    adder.run({"x": ONE, "acc": ONE})
    assert adder.has_handle("acc") is False, "unbinding ends the feed"


def test_one_run_with_a_feed(adder):
    adder.bind_handle("acc", 0 * ONE)
    assert adder.run_feed_handle({"x": ONE}, "acc", 1).tolist() == [2, 2, 2]
    assert adder.read_handle("acc").tolist() == [2, 2, 2]
    adder.run({"x": ONE})
    assert adder.read_handle("acc").tolist() == [2, 2, 2], "it was for one run"
    assert adder.read_output_row(0, 0) == 3


def test_one_run_with_a_feed_overrides_the_lasting_one(adder):
    adder.bind_handle("acc", 0 * ONE)
    adder.set_handle_feed("acc", 0)
    assert adder.run_feed_handle({"x": ONE}, "acc", 1).tolist() == [2, 2, 2]
    assert adder.read_handle("acc").tolist() == [2, 2, 2]
    adder.run({"x": ONE})
    assert adder.read_handle("acc").tolist() == [3, 3, 3]


def test_two_handles_swap_and_share(session):
    """Each takes the other's output; then both the same one; then one each again."""
    g = ost.Graph("cross")
    a, b = g.input("a", (2,)), g.input("b", (2,))
    g.set_outputs([a + 1, b + 10])
    compiled = session.compile(g)
    state = [np.float32(0), np.float32(100)]
    compiled.bind_handle("a", np.full(2, state[0]))
    compiled.bind_handle("b", np.full(2, state[1]))
    for first, second in [(1, 0)] * 3 + [(0, 0)] * 3 + [(1, 1)] * 2 + [(0, 1)] * 3:
        compiled.set_handle_feed("a", first)
        compiled.set_handle_feed("b", second)
        outputs = [state[0] + 1, state[1] + 10]
        got = compiled.run()
        assert [o[0] for o in got] == outputs
        state = [outputs[first], outputs[second]]
        assert [compiled.read_handle(n)[1] for n in "ab"] == state


def test_a_refused_run_leaves_handles_alone(adder):
    adder.bind_handle("acc", 5 * ONE)
    adder.set_handle_feed("acc", 0)
    wrong: list[Any] = [
        lambda: adder.run({}),
        lambda: adder.run({"x": np.ones(4, np.float32)}),
        lambda: adder.run({"x": ONE}, out=[ONE]),
        lambda: adder.run_raw({"x": ONE.astype(np.float64)}),
        lambda: adder.run_read_outputs({"x": ONE}, [9]),
        lambda: adder.run_feed_handle({"x": ONE}, "acc", 2),
        lambda: adder.run_feed_handle({"y": ONE}, "acc", 0),
        lambda: adder.bind_handle("acc", np.ones(4, np.float32)),
        lambda: adder.set_handle_feed("acc", 3),
    ]
    for i, call in enumerate(wrong):
        with pytest.raises(ost.InputError):
            call()
        assert adder.read_handle("acc").tolist() == [5 + i] * 3
        assert adder.run({"x": ONE})[0].tolist() == [6 + i] * 3


def test_raw_views_of_a_fed_output_hold_until_the_next_run(adder):
    adder.bind_handle("acc", 0 * ONE)
    adder.set_handle_feed("acc", 0)
    for i in range(1, 5):
        raw = adder.run_raw({"x": ONE})
        assert raw[0].tolist() == [i] * 3
        assert raw[1].tolist() == [2 * i] * 3
        assert not raw[0].flags.writeable


def test_feeds_of_a_live_size(session):
    """The handle grows with what it takes, until the Variable's bound stops it."""
    g = ost.Graph("growing")
    n = ost.Variable("n", 1, 5)
    past, row = g.input("past", (n, 2)), g.input("row", (1, 2))
    g.set_outputs([g.concat([past, row], axis=0)])
    compiled = session.compile(g)
    compiled.bind_handle("past", np.zeros((1, 2), np.float32))
    compiled.set_handle_feed("past", 0)
    for i in range(1, 6):
        (out,) = compiled.run({"row": np.full((1, 2), i, np.float32)})
        assert out[:, 0].tolist() == list(range(i + 1))
    with pytest.raises(ost.VariableError):
        compiled.run({"row": np.zeros((1, 2), np.float32)})
    assert compiled.read_handle("past").shape == (6, 2)
    with pytest.raises(ost.VariableError):
        compiled.bind_handle("past", np.zeros((6, 2), np.float32))


# ---- by swap, not copy ---------------------------------------------------------------------------


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.needs("host_memory")  # the results that are returned are copies of what is on a GPU
def test_the_handle_takes_the_very_buffer_that_was_written(adder):
    """Two buffers take turns: a copy would leave the output in one place."""
    adder.bind_handle("acc", 0 * ONE)
    adder.set_handle_feed("acc", 0)
    places = [address(adder.run_raw({"x": ONE})[0]) for _ in range(8)]
    assert len(set(places)) == 2
    assert all(left != right for left, right in pairwise(places))


@pytest.mark.needs("host_memory")
def test_a_feed_costs_no_memory_and_no_time_for_copies(session):
    """A handle of 64 MB whose run does next to nothing: copies would take all the time."""
    g = ost.Graph("large")
    big, x = g.input("big", (1 << 24,)), g.input("x", (4,))
    other = g.input("other", (1 << 24,))
    rows = g.slice(big, (0,), (4,)) + x
    g.set_outputs([rows, other + 1])
    compiled = session.compile(g)
    compiled.bind_handle("big", np.zeros(1 << 24, np.float32))
    compiled.bind_handle("other", np.zeros(1 << 24, np.float32))
    feed = {"x": np.ones(4, np.float32)}
    compiled.set_handle_feed("other", 1)
    for _ in range(2):
        compiled.run_read_outputs(feed, [0])
    tracemalloc.start()
    for _ in range(4):
        compiled.run_read_outputs(feed, [0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert compiled.read_handle("other")[-1] == 6


# ---- states --------------------------------------------------------------------------------------


def test_states_are_read_and_written_by_the_same_calls(session):
    compiled = session.compile(cache_graph())
    assert compiled.has_handle("cache") is True
    assert not compiled.read_handle("cache").any()
    for i in range(3):
        compiled.run({"row": np.full((1, 4), i + 1, np.float32), "at": at(i)})
    assert compiled.read_handle("cache")[:, 0].tolist() == [1, 2, 3, 0, 0, 0]
    assert compiled.bind_handle("cache", np.full((6, 4), 7, np.float32)) is True
    (total,) = compiled.run({"row": np.zeros((1, 4), np.float32), "at": at(5)})
    assert total.tolist() == [35] * 4
    compiled.unbind_handle("cache")
    assert not compiled.read_handle("cache").any(), "back to what it was at first"


def test_a_state_that_was_read_never_changes_later(session):
    compiled = session.compile(cache_graph())
    kept = compiled.read_handle("cache")
    mine = np.ones((6, 4), np.float32)
    compiled.bind_handle("cache", mine)
    mine[:] = 9
    assert not kept.any()
    assert compiled.read_handle("cache").tolist() == np.ones((6, 4)).tolist()


def test_states_of_all_dtypes(session):
    for dtype in ("float16", "bfloat16", "float64", "int8", "uint64", "bool"):
        g = ost.Graph("state")
        x = g.input("x", (3,), dtype)
        s = g.state("s", (3,), dtype, init=1)
        g.assign(s, x)
        g.set_outputs([g.reshape(s, (1, 3))])
        compiled = session.compile(g)
        kind = compiled.inputs["x"].dtype.numpy
        (out,) = compiled.run({"x": np.array([0, 1, 0], kind)})
        assert out.astype(np.float64).tolist() == [[1, 1, 1]]
        assert compiled.read_handle("s").dtype == kind
        assert compiled.read_handle("s").astype(np.float64).tolist() == [0, 1, 0]
        compiled.unbind_handle("s")
        assert compiled.read_handle("s").astype(np.float64).tolist() == [1, 1, 1]


def test_states_that_are_never_assigned(session):
    g = ost.Graph("fixed")
    s = g.state("s", (2,), init=[3, 4])
    g.set_outputs([s + g.input("x", (2,))])
    compiled = session.compile(g)
    feed = {"x": np.zeros(2, np.float32)}
    assert compiled.run(feed)[0].tolist() == [3, 4]
    compiled.bind_handle("s", np.float32([5, 6]))
    assert compiled.run(feed)[0].tolist() == [5, 6]


def test_a_refused_run_leaves_states_alone(session):
    compiled = session.compile(cache_graph())
    compiled.run({"row": np.ones((1, 4), np.float32), "at": at(0)})
    before = compiled.read_handle("cache").tobytes()
    for feed in (
        {"row": np.ones((1, 4), np.float32)},
        {"row": np.ones((2, 4), np.float32), "at": at(1)},
        {"row": np.ones((1, 4), np.float32), "at": np.array(1, np.int32)},
    ):
        with pytest.raises(ost.InputError):
            compiled.run(feed)
        assert compiled.read_handle("cache").tobytes() == before


def row_graph(op: str, rows: int, width: int) -> ost.Graph:
    """A row written to a cache by each op that can, and a few elements read back."""
    g = ost.Graph(op)
    row, position = g.input("row", (1, width)), g.input("at", (), "int64")
    cache = g.state("cache", (rows, width))
    if op == "dynamic_update_slice":
        new = g.dynamic_update_slice(cache, row, (position, 0))
    elif op == "scatter":
        where = g.broadcast_to(g.reshape(position, (1, 1)), (1, width))
        new = g.scatter(cache, where, row, axis=0)
    else:
        new = g.scatter_nd(cache, g.reshape(position, (1, 1)), row)
    g.assign(cache, new)
    g.set_outputs([g.dynamic_slice(new, (position, 0), (1, width)) + 0.0])
    return g


@pytest.mark.needs("in_place_states")
@pytest.mark.parametrize("op", ["dynamic_update_slice", "scatter", "scatter_nd"])
def test_an_append_does_not_copy_the_cache(session, op):
    """No kernel moves as many bytes as the cache has, and the arena is small.

    ``bench/ratios.py`` has the times.
    """
    rows, width = 1 << 16, 256
    compiled = session.compile(row_graph(op, rows, width))
    nbytes = 4 * rows * width
    assert compiled.plan.memory.state_bytes == nbytes
    assert compiled.plan.memory.arena_bytes < nbytes // 100
    feed = {"row": np.ones((1, width), np.float32), "at": at(0)}
    compiled.run(feed)
    for i in range(10):
        feed["at"] = at(i)
        (out,) = compiled.run(feed)
        assert out.all()
    cache = compiled.read_handle("cache")
    assert cache[:10].all()
    assert not cache[10:].any()
    assert all(kernel.bytes < nbytes // 100 for kernel in compiled.plan.execute_profiled())


def test_two_caches_and_an_attention_over_them(session):
    """A decode loop appends to both caches and attends to all; against NumPy, step by step."""
    heads, length, dim = 2, 8, 4
    g = ost.Graph("decode")
    q, k, v = (g.input(n, (1, heads, 1, dim)) for n in "qkv")
    position, mask = g.input("at", (), "int64"), g.input("mask", (1, 1, 1, length))
    attended = []
    for name, value in (("keys", k), ("values", v)):
        cache = g.state(name, (1, heads, length, dim))
        new = g.dynamic_update_slice(cache, value, (0, 0, position, 0))
        g.assign(cache, new)
        attended.append(new)
    g.set_outputs([g.attention(q, *attended, mask=mask)])
    compiled = session.compile(g)
    rng = np.random.default_rng(0)
    keys, values = np.zeros((2, 1, heads, length, dim), np.float32)
    for step in range(length):
        feed = {n: rng.standard_normal((1, heads, 1, dim)).astype(np.float32) for n in "qkv"}
        keys[:, :, step], values[:, :, step] = feed["k"][:, :, 0], feed["v"][:, :, 0]
        open_ = np.where(np.arange(length) <= step, 0, -np.inf).astype(np.float32)
        (out,) = compiled.run({**feed, "at": at(step), "mask": open_.reshape(1, 1, 1, length)})
        scores = feed["q"] @ keys[:, :, : step + 1].swapaxes(-1, -2) / np.sqrt(dim)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True) @ values[:, :, : step + 1]
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(compiled.read_handle("keys"), keys)


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["nope", "", "total", None, 0, ["acc"], b"acc"], ids=lambda name: repr(name)
)
def test_names_that_are_no_input(adder, name):
    feed = {"x": ONE, "acc": ONE}
    calls: list[Any] = [
        lambda: adder.bind_handle(name, ONE),
        lambda: adder.has_handle(name),
        lambda: adder.read_handle(name),
        lambda: adder.unbind_handle(name),
        lambda: adder.set_handle_feed(name, 0),
        lambda: adder.set_handle_feed(name, None),
        lambda: adder.run_feed_handle(feed, name, 0),
    ]
    for call in calls:
        with refused(lambda: adder.run(feed), ost.InputError):
            call()


@pytest.mark.parametrize(
    "array",
    [
        np.ones(4, np.float32),
        np.ones((1, 3), np.float32),
        np.ones(3),
        np.ones(3, np.int32),
        np.float32(1),
        None,
        "ones",
        [1.0, 2.0],
        object(),
    ],
    ids=lambda array: repr(array)[:20],
)
def test_arrays_that_do_not_fit(session, adder, array):
    adder.bind_handle("acc", 5 * ONE)
    with refused(lambda: adder.run({"x": ONE}), ost.InputError, "acc"):
        adder.bind_handle("acc", array)
    cache = session.compile(cache_graph())
    with pytest.raises(ost.InputError, match="cache"):
        cache.bind_handle("cache", array)
    assert not cache.read_handle("cache").any()


@pytest.mark.parametrize("index", [4, -1, 99, 1.0, "0", True, [0], 2, 3])
def test_outputs_that_a_handle_can_not_take(adder, index):
    """Out of range, no number, of another shape, of another dtype."""
    adder.bind_handle("acc", 5 * ONE)
    for call in (
        lambda: adder.set_handle_feed("acc", index),
        lambda: adder.run_feed_handle({"x": ONE}, "acc", index),
    ):
        with refused(lambda: adder.run({"x": ONE}), ost.InputError):
            call()
    assert adder.read_handle("acc").tolist() == [5, 5, 5]


def test_states_are_not_fed(session):
    compiled = session.compile(cache_graph())
    with pytest.raises(ost.InputError, match="cache"):
        compiled.set_handle_feed("cache", 0)


def test_a_missing_input_without_handle_is_named(adder):
    adder.bind_handle("x", ONE)
    with pytest.raises(ost.InputError, match="missing inputs: acc"):
        adder.run({})


# ---- threads and lifetime ------------------------------------------------------------------------


def test_fed_runs_on_many_threads_lose_nothing(adder):
    """Between reading the handle and swapping it, no other run may come."""
    adder.bind_handle("acc", 0 * ONE)
    adder.set_handle_feed("acc", 0)
    seen: list[float] = []
    errors: list[BaseException] = []

    def work(call: Any) -> None:
        try:
            for _ in range(100):
                row = call()
                assert (row == row[0]).all()
                seen.append(float(row[0]))
        except BaseException as error:
            errors.append(error)

    feed = {"x": ONE}
    calls = [
        lambda: adder.run(feed)[0],
        lambda: adder.run_read_outputs(feed, [0])[0],
        lambda: adder.run_feed_handle(feed, "acc", 0),
        lambda: np.frombuffer(adder.run_typed([("x", ONE.tobytes(), "f32")])[0][0], np.float32),
    ]
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert sorted(seen) == [float(i) for i in range(1, 401)]


def test_handles_are_given_back(session):
    """Binding, feeding and unbinding over and over keeps nothing."""
    g = ost.Graph("big")
    big = g.input("big", (1 << 20,))
    g.set_outputs([big + 1])
    compiled = session.compile(g)
    array = np.zeros(1 << 20, np.float32)
    tracemalloc.start()
    for i in range(6):
        compiled.bind_handle("big", array)
        compiled.set_handle_feed("big", 0)
        compiled.run_raw()
        compiled.run_raw()
        compiled.unbind_handle("big")
        gc.collect()
        if i == 1:
            before, _ = tracemalloc.get_traced_memory()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 1 << 20
