"""Hints of the active extent: of one thread, for one block, restored on every way out."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

from .graphs import Array, beside

pytestmark = pytest.mark.needs("capture", "quick", "single_ops")

UPPER, COLUMNS = 4096, 64
X = np.arange(UPPER, dtype=np.float32)[:, None] * np.ones(COLUMNS, np.float32)
STALE = -77


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def compiled(session: ost.Session) -> ost.CompiledGraph:
    g = ost.Graph("elementwise")
    g.set_outputs([g.input("x", (UPPER, COLUMNS)) + 1])
    return session.compile(g)


def rows_done(compiled: ost.CompiledGraph) -> int:
    """The leading rows that a run computes; the others keep what they held."""
    out = np.full((UPPER, COLUMNS), STALE, np.float32)
    compiled.run({"x": X}, out=[out])
    return leading(out)


def leading(out: Array) -> int:
    right = (out == X + 1).all(axis=1)
    return UPPER if right.all() else int(right.argmin())


# -- every way out ---------------------------------------------------------------------------------


class Mine(Exception):
    """An exception of the user's own."""


@pytest.mark.needs("row_limits")
def test_the_hint_saves_work(compiled):
    with compiled.active_extent(5, UPPER):
        assert 5 <= rows_done(compiled) < UPPER
    assert rows_done(compiled) == UPPER


@pytest.mark.parametrize("error", [Mine, KeyboardInterrupt, None])
def test_a_block_that_ends_inside_a_recording(session, compiled, error):
    context = session.context

    def work() -> None:
        with compiled.active_extent(5, UPPER):
            context.begin_graph_capture()
            if error is not None:
                raise error("mine")

    if error is None:
        work()
    else:
        with pytest.raises(error, match="mine"):
            work()
    assert context.capturing
    context.end_graph_capture(1)
    assert rows_done(compiled) == UPPER


def test_a_block_that_ends_in_a_recording_of_another_thread(session, compiled):
    context, entered, recording, left = session.context, *(threading.Event() for _ in range(3))

    def work() -> None:
        with pytest.raises(Mine), compiled.active_extent(5, UPPER):
            entered.set()
            assert recording.wait(5)
            raise Mine
        left.set()

    with beside(work):
        assert entered.wait(5)
        context.begin_graph_capture()
        recording.set()
        assert left.wait(5)
        context.cancel_graph_capture()
    assert rows_done(compiled) == UPPER


@pytest.mark.needs("row_limits")
def test_a_hint_set_inside_a_block_ends_with_it(compiled):
    """A block restores the hint that it found."""
    compiled.set_active_extent((9, UPPER))
    with compiled.active_extent(5, UPPER):
        pass
    out = np.full((UPPER, COLUMNS), STALE, np.float32)
    compiled.run({"x": X}, out=[out])
    assert 9 <= leading(out) < UPPER
    compiled.set_active_extent(None)
    assert rows_done(compiled) == UPPER


# -- threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("extents", [(5, 3000), (3000, 5)])
@pytest.mark.parametrize("leaves_first", [0, 1])
def test_overlapping_blocks_of_two_threads(compiled, extents, leaves_first):
    """Thread 0 enters first."""
    entered, inside, first_left = threading.Event(), threading.Barrier(2), threading.Event()
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        if number == 1:
            assert entered.wait(5)
        with compiled.active_extent(extents[number], UPPER):
            entered.set()
            inside.wait(5)
            found[number] = [rows_done(compiled) for _ in range(20)]
            inside.wait(5)
            if number != leaves_first:
                assert first_left.wait(5)
                found[number] += [rows_done(compiled)]
        if number == leaves_first:
            first_left.set()

    with beside(lambda: work(0), lambda: work(1)):
        pass
    for number, extent in enumerate(extents):
        assert min(found[number]) >= extent, "another thread's hint cut these rows"
    assert rows_done(compiled) == UPPER, "a hint was left behind"


def test_other_threads_do_not_see_a_block(compiled):
    done: list[int] = []
    with compiled.active_extent(5, UPPER), beside(lambda: done.append(rows_done(compiled))):
        pass
    assert done == [UPPER]


@pytest.mark.needs("row_limits")
@pytest.mark.parametrize("way", ["bound call", "replay"])
def test_bound_calls_and_replays_go_by_their_own_threads_hint(session, compiled, way):
    x, out = X.copy(), np.empty((UPPER, COLUMNS), np.float32)
    call = compiled.bind({"x": x}, [out])
    if way == "replay":
        session.context.begin_graph_capture()
        call()
        session.context.end_graph_capture(1)
        call = lambda: session.context.replay_graph(1)  # noqa: E731
    done: list[int] = []

    def count() -> None:
        out[:] = STALE
        call()
        done.append(leading(out))

    with compiled.active_extent(5, UPPER):
        count()
        with beside(count):
            pass
    count()
    assert 5 <= done[0] < UPPER
    assert done[1:] == [UPPER, UPPER]


# -- queued runs -----------------------------------------------------------------------------------


def queued(compiled: ost.CompiledGraph, x: Array) -> None:
    """Keep the queue busy for some milliseconds, with runs on ``x`` that copy nothing."""
    compiled.bind_handle("x", x)
    for _ in range(300):
        compiled.commit_no_wait({})


def last_row(compiled: ost.CompiledGraph) -> float:
    row = compiled.read_output_row(0, UPPER - 1)
    assert row is not None
    return float(row[0])


def test_a_run_queued_before_a_block_is_made_in_full(compiled):
    queued(compiled, np.zeros_like(X))
    compiled.commit_no_wait({"x": X})
    with compiled.active_extent(5, UPPER):
        assert last_row(compiled) == UPPER
    compiled.sync_pending()


def test_a_run_queued_before_a_sticky_hint_is_made_in_full(compiled):
    queued(compiled, np.zeros_like(X))
    compiled.commit_no_wait({"x": X})
    compiled.set_active_extent((5, UPPER))
    assert last_row(compiled) == UPPER
    compiled.sync_pending()


@pytest.mark.needs("row_limits")
def test_a_run_queued_inside_a_block_has_its_hint(compiled):
    """It leaves the last row as it was, although the block has ended before it is made."""
    queued(compiled, X)
    with compiled.active_extent(5, UPPER):
        compiled.commit_no_wait({"x": np.zeros_like(X)})
    assert last_row(compiled) == UPPER
    compiled.sync_pending()
