"""Recordings: what is recorded does not run, and replays run exactly that."""

from __future__ import annotations

import multiprocessing
import os
import threading

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

from .capture import ONES, SENTINEL, chain_graph, recorded, scaled_graph, sentinels, total

pytestmark = pytest.mark.needs("capture")


@pytest.fixture
def session(device: str) -> ost.Session:
    """One for each test: recordings belong to a session's context."""
    return open_session(device, threads=2)


@pytest.fixture
def compiled(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(scaled_graph())


# -- recording and replaying -----------------------------------------------------------------------


def test_recording_is_not_running(session, compiled):
    context, y = session.context, sentinels()
    bound = compiled.bind({"x": ONES}, [y])
    assert not context.capturing
    context.begin_graph_capture()
    assert context.capturing
    bound()
    compiled.commit_no_wait({"x": ONES})
    assert (y == SENTINEL).all()
    context.end_graph_capture(1)
    assert not context.capturing
    assert (y == SENTINEL).all()
    assert total(compiled) == 0
    assert context.replay_graph(1) is True
    assert (y == 2).all()
    assert total(compiled) == 2


def test_replays_are_bit_for_bit_runs(session):
    rng = np.random.default_rng(0)
    g = ost.Graph("layers")
    x = g.input("x", (16, 32))
    w = g.param("w", (32, 32), value=rng.standard_normal((32, 32)).astype(np.float32))
    g.set_outputs([g.softmax(g.gelu(g.matmul(x, w)))])
    compiled = session.compile(g)
    x, y = rng.standard_normal((16, 32)).astype(np.float32), sentinels(16, 32)
    with recorded(session.context, 0):
        compiled.bind({"x": x}, [y])()
    for seed in range(3):
        x[:] = np.random.default_rng(seed).standard_normal((16, 32))
        assert session.context.replay_graph(0)
        np.testing.assert_array_equal(y, compiled.run({"x": x})[0])


def test_several_calls_and_graphs_in_one_recording(session, compiled):
    """x -> 2x -> 2x + 1 -> 2(2x + 1), through arrays that calls hand on."""
    other = session.compile(chain_graph())
    a, b, c = sentinels(), sentinels(), sentinels()
    x = ONES.copy()
    with recorded(session.context, 5):
        compiled.bind({"x": x}, [a])()
        other.bind({"x": a}, [b])()
        compiled.bind({"x": b}, [c])()
    assert (np.stack([a, b, c]) == SENTINEL).all()
    for value in (1, 10):
        x[:] = value
        assert session.context.replay_graph(5)
        assert (a[0], b[0], c[0]) == (2 * value, 2 * value + 1, 4 * value + 2)


def test_what_was_queued_before_is_not_recorded(session, compiled):
    for _ in range(20):
        compiled.commit_no_wait({"x": ONES})
    with recorded(session.context, 1):
        compiled.commit_no_wait({"x": ONES})
    assert total(compiled) == 20
    compiled.commit_no_wait({"x": ONES})
    session.context.replay_graph(1)  # behind what was queued
    assert total(compiled) == 22


def test_states_advance_per_replay(session, compiled):
    with recorded(session.context, 1):
        compiled.commit_no_wait({"x": ONES})
    for count in range(1, 5):
        session.context.replay_graph(1)
        assert total(compiled) == count
    compiled.bind_handle("total", 10 * ONES)  # writes where the recording reads
    session.context.replay_graph(1)
    assert total(compiled) == 11
    compiled.unbind_handle("total")
    session.context.replay_graph(1)
    assert total(compiled) == 1


def test_params_set_later_are_seen(session, compiled):
    y = sentinels()
    with recorded(session.context, 1):
        compiled.bind({"x": ONES}, [y])()
    compiled.set_param("w", 5 * ONES)
    session.context.replay_graph(1)
    assert (y == 5).all()
    twin = compiled.clone()
    compiled.set_param("w", 7 * ONES)  # moves out of the memory that the twin reads
    session.context.replay_graph(1)
    assert (y == 7).all()
    assert (twin.run({"x": ONES})[0] == 5).all()


def test_active_extents_hold_for_replays(session):
    g = ost.Graph("rows")
    x = g.input("x", (8, 4))
    g.set_outputs([x + 1])
    compiled = session.compile(g)
    x, y = np.zeros((8, 4), np.float32), sentinels(8, 4)
    with recorded(session.context, 1):
        compiled.bind({"x": x}, [y])()
    with compiled.active_extent(3, 8):
        session.context.replay_graph(1)
    assert (y[:3] == 1).all()
    session.context.replay_graph(1)
    assert (y == 1).all()


# -- results in the arena --------------------------------------------------------------------------


def test_rows_are_read_after_a_replay(session, compiled):
    x = ONES.copy()
    with recorded(session.context, 1):
        compiled.commit_no_wait({"x": x})
    assert compiled.read_output_row(0, 0) is None, "nothing has run"
    for value in (1, 4):
        x[:] = value
        session.context.replay_graph(1)
        assert compiled.read_output_row(0, 3) == 2 * value
    compiled.run({"x": 100 * ONES})
    assert compiled.read_output_row(0, 3) == 200
    session.context.replay_graph(1)
    assert compiled.read_output_row(0, 3) == 8
    assert compiled.read_output_row(0, 4) is None


def test_recorded_commits_use_arrays_in_place(session, compiled):
    wide = np.ones((4, 2), np.float32)
    session.context.begin_graph_capture()
    for wrong in (wide[:, 0], [1.0] * 4, np.ones(4), np.ones(5, np.float32)):
        with pytest.raises(ost.InputError):
            compiled.commit_no_wait({"x": wrong})
    with pytest.raises(ost.InputError, match="missing"):
        compiled.commit_no_wait({})
    compiled.commit_no_wait({"x": ONES})
    session.context.end_graph_capture(1)
    session.context.replay_graph(1)
    assert total(compiled) == 1
    assert compiled.sync_pending() is None


# -- handles ---------------------------------------------------------------------------------------


def test_fed_handles_go_on_from_replay_to_replay(session):
    chain = session.compile(chain_graph())
    chain.bind_handle("x", np.zeros(4, np.float32))
    chain.set_handle_feed("x", 0)
    with recorded(session.context, 1):
        chain.commit_no_wait()
        chain.commit_no_wait()
    assert chain.read_handle("x")[0] == 0
    for count in range(1, 4):
        session.context.replay_graph(1)
        assert chain.read_handle("x")[0] == 2 * count
        assert chain.read_output_row(0, 0) == 2 * count


def test_handles_that_nothing_replaces_stay(session):
    chain = session.compile(chain_graph())
    chain.bind_handle("x", np.zeros(4, np.float32))
    with recorded(session.context, 1):
        chain.commit_no_wait()
    chain.run()
    chain.run({"x": ONES})
    session.context.replay_graph(1)
    assert chain.read_output_row(0, 0) == 1


def test_a_feed_needs_a_buffer_to_be_recorded(session):
    chain = session.compile(chain_graph())
    chain.set_handle_feed("x", 0)
    context = session.context
    context.begin_graph_capture()
    with pytest.raises(ost.CaptureError, match=r"'x' takes output 0.*bind_handle"):
        chain.commit_no_wait({"x": ONES})
    context.end_graph_capture(1)
    assert context.replay_graph(1)
    assert not chain.has_handle("x")


def test_a_feed_of_another_size_is_not_recorded(session):
    n = ost.Variable("n", 1, 8)
    g = ost.Graph("sized")
    x = g.input("x", (n,))
    g.set_outputs([x + 1])
    compiled = session.compile(g)
    compiled.bind_handle("x", np.zeros(3, np.float32))
    compiled.set_handle_feed("x", 0)
    session.context.begin_graph_capture()
    with pytest.raises(ost.CaptureError, match=r"\(3,\) to \(5,\)"):
        compiled.commit_no_wait({"x": np.zeros(5, np.float32)})
    compiled.commit_no_wait()
    session.context.end_graph_capture(1)
    session.context.replay_graph(1)
    assert (compiled.read_handle("x") == 1).all()


# -- keys ------------------------------------------------------------------------------------------


def test_unknown_keys_have_no_effect(session, compiled):
    context, y = session.context, sentinels()
    with recorded(context, 1):
        compiled.bind({"x": ONES}, [y])()
    for unknown in (0, 2, -1, 1 << 70):
        assert context.replay_graph(unknown) is False
    assert (y == SENTINEL).all()
    context.reset_graph(99)
    assert context.replay_graph(1)


def test_a_key_is_any_int(session, compiled):
    keys = (0, -5, 1 << 80, np.int64(7))
    arrays = [sentinels() for _ in keys]
    for key, y in zip(keys, arrays, strict=True):
        with recorded(session.context, key):
            compiled.bind({"x": ONES}, [y])()
    for i, key in enumerate(keys):
        assert session.context.replay_graph(key)
        assert [y[0] != SENTINEL for y in arrays] == [j <= i for j in range(len(keys))]
    assert session.context.replay_graph(7)


def test_a_key_is_given_to_another_recording(session, compiled):
    first, second = sentinels(), sentinels()
    for y in (first, second):
        with recorded(session.context, 1):
            compiled.bind({"x": ONES}, [y])()
    session.context.replay_graph(1)
    assert (first == SENTINEL).all()
    assert (second == 2).all()


def test_reset_of_one_key_leaves_the_others(session, compiled):
    context = session.context
    for key in (1, 2, 3):
        with recorded(context, key):
            compiled.commit_no_wait({"x": ONES})
    context.reset_graph(2)
    context.reset_graph(2)
    assert [context.replay_graph(key) for key in (1, 2, 3)] == [True, False, True]
    context.reset_all_graphs()
    context.reset_all_graphs()
    assert [context.replay_graph(key) for key in (1, 2, 3)] == [False] * 3
    assert total(compiled) == 2


def test_two_models_and_shuffled_keys_never_cross(device):
    """Two sessions with the same keys, each for several graphs, replayed in a random order."""
    rng = np.random.default_rng(3)
    sessions = [open_session(device, threads=1) for _ in range(2)]
    results, expected = {}, {}
    for number, session in enumerate(sessions):
        for key in rng.permutation(6).tolist():
            expected[number, key] = scale = 10.0 * number + key + 1
            results[number, key] = y = sentinels()
            bound = session.compile(scaled_graph(scale)).bind({"x": ONES}, [y])
            with recorded(session.context, key):
                bound()
    places = [*results] * 2
    for index in rng.permutation(len(places)):
        number, key = places[index]
        for y in results.values():
            y[:] = SENTINEL
        assert sessions[number].context.replay_graph(key)
        for place, y in results.items():
            assert (y == (expected[place] if place == (number, key) else SENTINEL)).all()


# -- threads and processes -------------------------------------------------------------------------


def test_replays_from_many_threads_take_turns(session, compiled):
    """Two steps through one array: were replays mixed, a count would be lost."""
    chain = session.compile(chain_graph())
    a, b = np.zeros(4, np.float32), np.zeros(4, np.float32)
    with recorded(session.context, 1):
        chain.bind({"x": a}, [b])()
        chain.bind({"x": b}, [a])()

    def work():
        for _ in range(100):
            assert session.context.replay_graph(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (a == 800).all()


def test_calls_of_other_threads_run_meanwhile(session, compiled):
    bound = compiled.bind({"x": ONES}, [sentinels()])

    def work():
        bound()
        results.append(compiled.run({"x": ONES}))
        compiled.commit_no_wait({"x": ONES})
        compiled.sync_pending()

    results = []
    with recorded(session.context, 1):
        bound()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(results) == 1
    assert total(compiled) == 3
    session.context.replay_graph(1)
    assert total(compiled) == 4


def test_other_sessions_run_meanwhile(session, compiled, device):
    other = open_session(device, threads=1).compile(scaled_graph())
    with recorded(session.context, 1):
        assert (other.run({"x": ONES})[0] == 2).all()
    assert total(other) == 1


def test_recordings_of_many_threads_are_all_kept(session, compiled):
    """A thread that may not begin because another one records tries again."""
    context, counts = session.context, []

    def work(key):
        while True:
            try:
                context.begin_graph_capture()
            except ost.CaptureError:
                continue
            compiled.commit_no_wait({"x": ONES})
            context.end_graph_capture(key)
            counts.append(key)
            return

    threads = [threading.Thread(target=work, args=(key,)) for key in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(counts) == list(range(8))
    assert all(context.replay_graph(key) for key in range(8))
    assert total(compiled) == 8


@pytest.mark.needs("fork")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking beside threads
def test_a_child_has_the_recordings_of_its_parent(session, compiled):
    for _ in range(3):
        compiled.commit_no_wait({"x": ONES})
    with recorded(session.context, 1):
        compiled.commit_no_wait({"x": ONES})

    def child():
        assert session.context.replay_graph(1)
        assert total(compiled) == 4
        with recorded(session.context, 2):
            compiled.commit_no_wait({"x": ONES})
        compiled.commit_no_wait({"x": ONES})
        assert session.context.replay_graph(2)
        assert total(compiled) == 6

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert session.context.replay_graph(1)
    assert not session.context.replay_graph(2)
    assert total(compiled) == 4
