"""Clones: memory of their own, weights in common until one side writes, and true parallelism."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost
from tests.allocations import resident_bytes

from .graphs import FED, B, W, tiny, tiny_graph

N = 64


def weighty_graph() -> ost.Graph:
    """Products whose weights are packed, a param read as it is, and a constant."""
    g = ost.Graph("weighty")
    x = g.input("x", (8, N))
    hidden = g.relu(g.matmul(x, g.param("w1", (N, N))) + g.param("b1", (N,)))
    shift = g.constant(np.linspace(0, 1, N, dtype=np.float32))
    g.set_outputs([g.matmul(hidden, g.param("w2", (N, N))) + shift])
    return g


def weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("w1", (N, N)), ("b1", (N,)), ("w2", (N, N)))
    }


def counter_graph() -> ost.Graph:
    """A state that counts runs and adds up inputs."""
    g = ost.Graph("counter")
    x = g.input("x", (4,))
    total = g.state("total", (4,), init=10)
    new = total + x
    g.assign(total, new)
    g.set_outputs([new * 1.0])
    return g


FEED = {"x": np.random.default_rng(0).standard_normal((8, N)).astype(np.float32)}
ONES = {"x": np.ones(4, np.float32)}


def result(compiled: ost.CompiledGraph, feed: dict[str, np.ndarray] = FEED) -> bytes:
    return compiled.run(feed)[0].tobytes()


@pytest.fixture
def weighty(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(weighty_graph(), weights(0))


def fresh(session: ost.Session, params: dict[str, np.ndarray]) -> bytes:
    return result(session.compile(weighty_graph(), params))


# ---- weights -------------------------------------------------------------------------------------


def test_a_clone_computes_the_same(weighty):
    assert result(weighty.clone()) == result(weighty)
    assert result(weighty.clone().clone()) == result(weighty)


@pytest.mark.parametrize("writer", ["original", "clone"])
@pytest.mark.parametrize("name", ["w1", "b1", "w2"])
def test_what_one_side_writes_never_shows_on_the_other(session, weighty, writer, name):
    """Packed panels included: a param written on one side alone must not repack the other's."""
    other = weighty.clone()
    left, right = (weighty, other) if writer == "original" else (other, weighty)
    before = result(right)
    left.set_param(name, weights(1)[name])
    assert result(right) == before
    assert result(left) == fresh(session, {**weights(0), name: weights(1)[name]})
    right.set_params(weights(2))
    assert result(right) == fresh(session, weights(2))
    assert result(left) == fresh(session, {**weights(0), name: weights(1)[name]})


def test_many_clones_each_with_weights_of_its_own(session, weighty):
    family = [weighty, *(weighty.clone() for _ in range(4))]
    for seed, member in enumerate(family):
        member.set_params(weights(seed))
    expected = [fresh(session, weights(seed)) for seed in range(len(family))]
    assert [result(member) for member in family] == expected


def test_a_clone_of_a_writer_shares_what_was_written(session, weighty):
    first = weighty.clone()
    first.set_params(weights(1))
    second = first.clone()
    assert result(second) == fresh(session, weights(1))
    weighty.set_params(weights(2))
    assert result(second) == fresh(session, weights(1))
    first.set_params(weights(3))
    assert result(second) == fresh(session, weights(1))


@pytest.mark.parametrize("writer", ["original", "clone"])
def test_bound_calls_follow_their_own_side(session, weighty, writer):
    """A bound call was made before the weights moved to memory of their own."""
    outs = [np.empty((8, N), np.float32) for _ in range(2)]
    other = weighty.clone()
    calls = [side.bind(FEED, [out]) for side, out in zip((weighty, other), outs, strict=True)]
    for call in calls:
        call()
    shared = fresh(session, weights(0))
    assert [out.tobytes() for out in outs] == [shared, shared]
    (weighty if writer == "original" else other).set_params(weights(1))
    written = fresh(session, weights(1))
    for call in calls:
        call()
    expected = [written, shared] if writer == "original" else [shared, written]
    assert [out.tobytes() for out in outs] == expected


def test_a_bound_call_keeps_its_weights_when_its_graph_is_gone(session, weighty):
    """The call alone still reads shared memory, so that a write elsewhere has to make a copy."""
    out = np.empty((8, N), np.float32)
    other = weighty.clone()
    call = weighty.bind(FEED, [out])
    del weighty
    gc.collect()
    other.set_params(weights(1))
    call()
    assert out.tobytes() == fresh(session, weights(0))
    assert result(other) == fresh(session, weights(1))


def test_weights_written_through_the_plan_stay_on_their_side(session):
    graph = weighty_graph()
    compiled = session.compile(graph, weights(0))
    twin = compiled.clone()
    before = result(twin)
    buffer = compiled.plan.buffer(graph.params["w1"])
    kept = buffer.copyout()
    buffer.copyin(kept * 2)
    assert result(twin) == before
    assert result(compiled) != before
    assert (buffer.copyout() == kept * 2).all(), "the buffer is where the weights have moved to"
    buffer.copyin(kept)
    assert result(compiled) == before


def large(session: ost.Session) -> tuple[ost.CompiledGraph, dict[str, np.ndarray]]:
    size = 2048
    g = ost.Graph("large")
    x = g.input("x", (1, size))
    g.set_outputs([g.matmul(x, g.param("w", (size, size)))])
    w = np.ones((size, size), np.float32)
    return session.compile(g, {"w": w}), {"x": np.ones((1, size), np.float32)}


@pytest.mark.needs("host_memory")
def test_weights_take_memory_once_until_they_are_written(session):
    compiled, feed = large(session)
    compiled.run(feed)
    nbytes = 2048 * 2048 * 4
    gc.collect()
    before = resident_bytes()
    clones = [compiled.clone() for _ in range(8)]
    for clone in clones:
        clone.run(feed)
    assert resident_bytes() - before < nbytes, "clones copied the weights"
    clones[0].set_param("w", np.zeros((2048, 2048), np.float32))
    assert resident_bytes() - before > nbytes / 2
    assert not clones[0].run(feed)[0].any()
    assert clones[1].run(feed)[0].all()


@pytest.mark.needs("host_memory")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="asan delays every free")
def test_the_last_one_left_writes_in_place(session):
    """Without other clones, nothing is shared and nothing needs to be copied."""
    compiled, feed = large(session)
    clone = compiled.clone()
    compiled.set_param("w", np.full((2048, 2048), 2, np.float32))  # moves out
    del clone
    gc.collect()
    before = resident_bytes()
    for _ in range(3):
        compiled.set_param("w", np.full((2048, 2048), 3, np.float32))
    assert resident_bytes() - before < 8 << 20
    assert compiled.run(feed)[0][0, 0] == 3 * 2048


def test_params_that_were_never_set(session):
    compiled = session.compile(tiny_graph(), {"w": W})
    clone = compiled.clone()
    compiled.set_param("b", B)
    compiled.run(FED)
    compiled.run(FED)
    with pytest.raises(ost.InputError, match="never set"):
        clone.run(FED)
    with pytest.raises(ost.InputError, match="never set"):
        clone.run_raw(FED)
    clone.set_param("b", B * 2)
    np.testing.assert_allclose(clone.run(FED)[0], tiny(b=B * 2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compiled.run(FED)[0], tiny(), rtol=1e-5, atol=1e-6)


# ---- everything else is its own ------------------------------------------------------------------


def test_states_part_ways(session):
    compiled = session.compile(counter_graph())
    compiled.run(ONES)
    clone = compiled.clone()
    assert clone.run(ONES)[0][0] == 12, "a clone goes on where the original stands"
    for _ in range(3):
        clone.run(ONES)
    assert compiled.run(ONES)[0][0] == 12
    clone.bind_handle("total", np.zeros(4, np.float32))
    assert compiled.read_handle("total")[0] == 12
    assert clone.run(ONES)[0][0] == 1


def test_handles_part_ways(session):
    g = ost.Graph("handled")
    x, y = g.input("x", (2,)), g.input("y", (2,))
    g.set_outputs([x + y])
    compiled = session.compile(g)
    one = np.ones(2, np.float32)
    compiled.bind_handle("x", one)
    compiled.set_handle_feed("x", 0)
    clone = compiled.clone()
    assert clone.has_handle("x")
    for i in range(1, 5):
        assert compiled.run({"y": one})[0][0] == 1 + i
    assert clone.read_handle("x")[0] == 1
    for i in range(1, 4):
        assert clone.run({"y": 10 * one})[0][0] == 1 + 10 * i
    assert compiled.read_handle("x")[0] == 5
    clone.unbind_handle("x")
    assert compiled.has_handle("x")
    assert compiled.run({"y": one})[0][0] == 6


def test_arenas_are_their_own(weighty):
    clone = weighty.clone()
    assert clone.arena_ptr() != weighty.arena_ptr()
    raw = weighty.run_raw(FEED)[0]
    before = raw.tobytes()
    clone.run_raw({"x": FEED["x"] * 2})
    assert raw.tobytes() == before


def test_nothing_has_run_on_a_clone(weighty):
    weighty.run(FEED)
    assert weighty.clone().read_output_row(0, 0) is None


def test_the_active_extent_is_not_inherited(weighty):
    expected = result(weighty)
    with weighty.active_extent(3, 8):
        assert result(weighty.clone()) == expected


def test_a_clone_outlives_the_original(session, weighty):
    clone = weighty.clone()
    expected = result(weighty)
    del weighty
    gc.collect()
    assert result(clone) == expected
    clone.set_params(weights(1))
    assert result(clone) == fresh(session, weights(1))


# ---- threads -------------------------------------------------------------------------------------


def in_threads(*calls: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "stuck"
    if errors:
        raise errors[0]


def test_clones_write_and_run_at_the_same_time(session, weighty):
    """Each member only ever sees whole sets of its own weights."""
    expected = [fresh(session, weights(seed)) for seed in range(4)]
    family = [weighty, *(weighty.clone() for _ in range(3))]

    def work(me: int) -> None:
        for _ in range(15):
            family[me].set_params(weights(me))
            assert result(family[me]) == expected[me]
            twin = family[me].clone()
            assert result(twin) == expected[me]

    in_threads(*(lambda me=me: work(me) for me in range(4)))


def test_cloning_while_weights_are_written(session, weighty):
    """A clone has one set of weights or the other, never a mixture."""
    expected = {fresh(session, weights(seed)) for seed in (0, 1)}
    done = threading.Event()

    def write() -> None:
        for i in range(60):
            weighty.set_params(weights(i % 2))
        done.set()

    def take_clones() -> None:
        while not done.is_set():
            assert result(weighty.clone()) in expected

    in_threads(write, take_clones, take_clones)


def busy(session: ost.Session) -> ost.CompiledGraph:
    """Takes long for many rows, and next to no time for one."""
    g = ost.Graph("busy")
    value = g.input("x", (ost.Variable("n", 1, 1024), 256))
    w = g.constant(np.eye(256, dtype=np.float32))
    for _ in range(40):
        value = g.matmul(value, w)
    g.set_outputs([value])
    return session.compile(g)


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((n, 256), np.float32)}


@pytest.mark.needs("host_threads")  # the long run takes a GPU less than a sleep
def test_a_clone_does_not_wait_for_the_original(session):
    """A short run on a clone ends while a long one on the original goes on."""
    compiled = busy(session)
    clone = compiled.clone()

    def ends_early(other: ost.CompiledGraph) -> bool:
        running, times = threading.Event(), []

        def run_long() -> None:
            running.set()
            times.append(time.perf_counter())
            compiled.run(rows(1024))
            times.append(time.perf_counter())

        thread = threading.Thread(target=run_long)
        thread.start()
        running.wait()
        time.sleep(0.005)
        other.run(rows(1))
        ended = time.perf_counter()
        thread.join()
        return ended < (times[0] + times[1]) / 2

    for member in (compiled, clone):
        member.run(rows(1024))
        member.run(rows(1))
    assert any(ends_early(clone) for _ in range(20))
