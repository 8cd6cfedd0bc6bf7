"""Replays in the order of a context: behind what was submitted, and dropped as memory changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

from .graphs import (
    Array,
    beside,
    buffer_of,
    entry,
    filled,
    ledger_graph,
    recorded,
    single,
    total,
)

pytestmark = pytest.mark.needs("capture", "quick", "single_ops")

FLOAT = np.float32


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def ledger(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(ledger_graph())


@pytest.fixture
def other(device: str) -> ost.GraphExecutor:
    """Sessions on a context of their own."""
    return ost.GraphExecutor(open_session(device, threads=1).context)


# -- behind what is queued -------------------------------------------------------------------------


@pytest.mark.parametrize("heavy", [1, 4])
def test_a_queued_run_that_exchanges_a_handle_drops_before_the_replay(session, ledger, heavy):
    ledger.bind_handle("h", filled(100))
    ledger.set_handle_feed("h", 1)
    with recorded(session.context, 1):
        ledger.commit_no_wait(entry(5, None))
    for _ in range(heavy):
        ledger.commit_no_wait(entry(1, None, heavy=True))
    assert session.context.replay_graph(1) is False
    assert single(ledger.read_handle("h")) == 100 + heavy
    assert total(ledger) == heavy
    ledger.sync_pending()


def test_a_queued_run_of_another_graph_comes_before_the_replay(session, ledger):
    twin = session.compile(ledger_graph())
    with recorded(session.context, 1), ost.GraphExecutor(session.context).begin() as s:
        s.add(buffer_of(ledger, "total"), 0.0, out=buffer_of(twin, "x"))
    for _ in range(8):
        ledger.commit_no_wait(entry(1, heavy=True))
    assert session.context.replay_graph(1)
    assert single(buffer_of(twin, "x").copyout()) == 8


def test_a_replay_reads_what_is_queued_on_the_context_of_its_memory(ledger, other):
    seen = other.empty((4,))
    state = buffer_of(ledger, "total")
    with recorded(other.context, 1), other.begin() as s:
        s.add(state, 0.0, out=seen)
    for _ in range(8):
        ledger.commit_no_wait(entry(1, heavy=True))
    assert other.context.replay_graph(1)
    assert single(seen.copyout()) == 8


def test_a_bound_call_comes_after_what_is_queued(ledger):
    y, following = filled(0), filled(0)
    call = ledger.bind(entry(100), [y, following])
    for _ in range(8):
        ledger.commit_no_wait(entry(1, heavy=True))
    call()
    assert single(y) == 108
    assert total(ledger) == 108


# -- what drops a recording ------------------------------------------------------------------------


def reading(executor: ost.GraphExecutor, source: ost.Buffer, key: int = 1) -> ost.Buffer:
    """A session that reads ``source``, recorded under ``key``; where its result goes."""
    seen = executor.buffer(np.full(source.shape, -77, FLOAT))
    with recorded(executor.context, key), executor.begin() as s:
        s.add(source, 0.0, out=seen)
    return seen


def dropped(executor: ost.GraphExecutor, seen: ost.Buffer, key: int = 1) -> None:
    assert executor.context.replay_graph(key) is False
    assert (seen.copyout() == -77).all()


def test_a_weight_that_moves_drops_recordings_of_other_contexts(ledger, other):
    seen = reading(other, buffer_of(ledger, "w"))
    twin = ledger.clone()
    ledger.set_param("w", filled(3))
    dropped(other, seen)
    assert single(twin.run(entry(1))[0]) == 1


def test_a_weight_written_through_its_buffer_moves_as_well(ledger, other):
    seen = reading(other, buffer_of(ledger, "w"))
    twin = ledger.clone()
    buffer_of(ledger, "w").copyin(filled(3))
    dropped(other, seen)
    assert single(twin.run(entry(1))[0]) == 1


def test_a_weight_written_in_place_drops_nothing(ledger, other):
    seen = reading(other, buffer_of(ledger, "w"))
    ledger.set_param("w", filled(3))
    assert other.context.replay_graph(1)
    assert single(seen.copyout()) == 3


@pytest.mark.parametrize("name", ["total", "w", "x"])
@pytest.mark.parametrize("same", [False, True])
def test_a_released_plan_drops_recordings_that_read_it(session, ledger, other, name, same):
    executor = ost.GraphExecutor(session.context) if same else other
    buffer_of(ledger, "x").copyin(filled(1))
    seen = reading(executor, buffer_of(ledger, name))
    kept = reading(executor, executor.buffer(filled(5)), key=2)
    ledger.plan.release_all_buffers()
    dropped(executor, seen)
    assert executor.context.replay_graph(2)
    assert single(kept.copyout()) == 5


@pytest.mark.parametrize("same", [False, True])
def test_a_released_buffer_drops_recordings_of_every_context(session, other, same):
    home = ost.GraphExecutor(session.context)
    executor = home if same else other
    first, second = home.buffer(filled(1)), home.buffer(filled(2))
    seen = reading(executor, first)
    kept = reading(executor, second, key=2)
    first.release()
    dropped(executor, seen)
    assert executor.context.replay_graph(2)
    assert single(kept.copyout()) == 2


def test_a_released_result_drops_recordings_of_the_context_that_wrote_it(session, other):
    home = ost.GraphExecutor(session.context)
    target = home.empty((4,))
    with recorded(other.context, 1), other.begin() as s:
        s.add(filled(1), 1.0, out=target)
    target.release()
    assert other.context.replay_graph(1) is False


def test_a_write_of_one_clone_leaves_recordings_of_the_others(session, ledger):
    twin = ledger.clone()
    y, following = filled(-77), filled(-77)
    with recorded(session.context, 1):
        twin.bind(entry(1), [y, following])()
    executor = ost.GraphExecutor(session.context)
    seen = reading(executor, buffer_of(twin, "w"), key=2)
    ledger.set_param("w", filled(3))
    assert session.context.replay_graph(1)
    assert single(y) == 1
    assert session.context.replay_graph(2)
    assert single(seen.copyout()) == 1


# -- keys ------------------------------------------------------------------------------------------


def foreign_keys() -> dict[str, Any]:
    return {"1.0": 1.0, "True": True, "text": "1", "None": None, "np.float64": np.float64(1)}


@pytest.mark.parametrize("key", foreign_keys().values(), ids=foreign_keys())
def test_only_ints_are_keys(session, ledger, key):
    context = session.context
    with recorded(context, 1):
        ledger.commit_no_wait(entry(1))
    for call in (context.replay_graph, context.reset_graph):
        with pytest.raises(ost.CaptureError):
            call(key)
    context.begin_graph_capture()
    with pytest.raises(ost.CaptureError):
        context.end_graph_capture(key)
    assert context.capturing
    context.cancel_graph_capture()
    assert total(ledger) == 0
    assert context.replay_graph(np.int64(1))
    assert total(ledger) == 1


# -- copies into handles ---------------------------------------------------------------------------

SIZE = 1 << 19


def wide_graph() -> ost.Graph:
    """``h + 1``, two rows of many elements."""
    g = ost.Graph("wide")
    h = g.input("h", (2, SIZE))
    g.set_outputs([h + 1])
    return g


READERS: dict[str, Callable[[ost.CompiledGraph], Array | None]] = {
    "read_handle": lambda c: c.read_handle("h"),
    "run": lambda c: c.run()[0],
    "read_output_row": lambda c: c.read_output_row(0, 1),
    "run_pipelined": lambda c: c.run_pipelined([{}])[0][0],
    "clone": lambda c: c.clone().read_handle("h"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_replay_and_what_reads_its_handle_never_overlap(session, reader):
    compiled, context = session.compile(wide_graph()), session.context
    compiled.bind_handle("h", np.zeros((2, SIZE), FLOAT))
    compiled.set_handle_feed("h", 0)
    with recorded(context, 1):
        compiled.commit_no_wait()
    compiled.set_handle_feed("h", None)  # the recording goes on feeding, runs do not exchange
    assert context.replay_graph(1)
    ended = False

    def replay() -> None:
        nonlocal ended
        try:
            for _ in range(150):
                assert context.replay_graph(1)
        finally:
            ended = True

    with beside(replay):
        while not ended:
            single(READERS[reader](compiled))
    assert single(compiled.read_handle("h")) == 151
