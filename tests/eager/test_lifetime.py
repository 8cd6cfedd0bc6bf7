"""Sessions that are given up: nothing runs, nothing stays, the next one works."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.eager.allocation import Allocation
from ostinato.eager.compute_node import ComputeNode
from ostinato.plan.buffer import Storage
from tests.allocations import resident_bytes
from tests.devices.registered import open_session

pytestmark = pytest.mark.needs("single_ops")

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def ex(device: str) -> ost.GraphExecutor:
    return ost.GraphExecutor(open_session(device, threads=2).context)


class Stop(Exception):
    """Leaves a session."""


def living(*classes: type) -> int:
    gc.collect()
    return sum(isinstance(thing, classes) for thing in gc.get_objects())


def give_up(ex: ost.GraphExecutor, out: ost.Buffer, number: int) -> None:
    """A session with results of a megabyte that ends in one of four ways, none of them running."""
    x = ex.buffer(np.zeros((512, 512), np.float32))
    s = ex.begin_recorded() if number % 2 else ex.begin()
    h = x
    for _ in range(5):
        h = s.add(h, 1.0)
    s.neg(h, out=out)
    if number % 4 < 2:
        with pytest.raises(Stop), s:
            raise Stop
    if number % 4 == 3:
        assert len(s.graph.fuse()) == 1  # a graph of it, given up as well


def test_two_hundred_sessions_given_up(ex: ost.GraphExecutor) -> None:
    out = ex.buffer(np.full((512, 512), -77, np.float32))
    classes = (ComputeNode, Allocation, Storage, ost.Buffer, ost.GraphSession, ost.ComputeGraph)
    for number in range(8):
        give_up(ex, out, number)
    before, bytes_before = living(*classes), resident_bytes()
    for number in range(200):
        give_up(ex, out, number)
    assert living(*classes) <= before
    assert resident_bytes() - bytes_before < 64 << 20
    assert (out.copyout() == -77).all()
    with ex.begin() as s:
        s.exp(np.zeros((512, 512)).astype(np.float32), out=out)
    assert (out.copyout() == 1).all()


def test_sessions_that_ran_leave_nothing_but_their_results(ex: ost.GraphExecutor) -> None:
    def step() -> ost.Buffer:
        with ex.begin() as s:
            h = ex.buffer(np.zeros((512, 512), np.float32))
            for _ in range(5):
                h = s.add(h, 1.0)
        return h

    classes = (ComputeNode, Allocation, Storage, ost.Buffer, ost.GraphSession)
    for _ in range(8):
        step()
    before, bytes_before = living(*classes), resident_bytes()
    for _ in range(200):
        assert step().copyout()[0, 0] == 5
    assert living(*classes) <= before
    assert resident_bytes() - bytes_before < 64 << 20


def test_a_session_dies_with_its_last_reference(ex: ost.GraphExecutor) -> None:
    gc.disable()
    try:
        for begin in (ex.begin, ex.begin_recorded):
            s = begin()
            h = s.exp(np.ones(3, np.float32))
            session, memory = weakref.ref(s), weakref.ref(h.storage)
            del s
            assert session() is None
            with pytest.raises(ost.SessionStateError):
                h.copyout()
            del h
            assert memory() is None
    finally:
        gc.enable()


def test_results_outlive_their_session_and_executor(device: str) -> None:
    ex = ost.GraphExecutor(open_session(device, threads=1).context)
    with ex.begin() as s:
        h = s.exp(np.zeros(3, np.float32))
    del s, ex
    gc.collect()
    assert (h.copyout() == 1).all()


def test_what_nobody_holds_shares_memory(ex: ost.GraphExecutor) -> None:
    """A chain of 64 results of a megabyte takes three at a time at most."""
    x = ex.buffer(np.zeros((512, 512), np.float32))
    with ex.begin_recorded() as s:  # loads the device's compiler, whose memory does not count
        s.add(s.add(x, 1.0), 1.0)
    s = ex.begin_recorded()
    h = x
    for _ in range(64):
        h = s.add(h, 1.0)
    before = resident_bytes()
    s.finish()
    assert resident_bytes() - before < 16 << 20
    assert h.copyout()[0, 0] == 64


def test_a_session_that_could_not_be_committed_can_be_given_up(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(np.ones(3, np.float32))
    s = ex.begin()
    y = s.neg(x)
    x.release()
    with pytest.raises(ost.PlanError, match="released"):
        s.finish()
    with pytest.raises(ost.SessionStateError, match="not been finished"):
        y.copyout()
    del s, y
    with ex.begin() as s:
        y = s.neg(np.ones(3, np.float32))
    assert (y.copyout() == -1).all()


def test_replays_follow_weights_that_moved(ex: ost.GraphExecutor, device: str) -> None:
    """A write after a clone gives the graph memory of its own for them."""
    session = open_session(device, threads=1)
    graph = ost.Graph()
    w = graph.param("w", (4,))
    graph.set_outputs([graph.input("x", (4,)) * w])
    compiled = session.compile(graph, {"w": np.ones(4, np.float32)})
    weight = compiled.plan.buffer(w)
    assert weight is not None
    shared = ost.GraphExecutor(session.context)
    out = shared.empty((4,))
    with shared.begin_recorded() as s:
        s.neg(weight, out=out)
    twin = compiled.clone()
    shared_weight = twin.plan.buffer(w)
    assert shared_weight is not None
    with shared.begin_recorded() as other:
        other.neg(shared_weight, out=out)
    for value in (2, 3):
        compiled.set_param("w", np.full(4, value, np.float32))
        s.graph.replay()
        assert (out.copyout() == -value).all()
    other.graph.replay()
    assert (out.copyout() == -1).all()
    assert (twin.run({"x": np.ones(4, np.float32)})[0] == 1).all()
