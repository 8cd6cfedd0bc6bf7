"""Recordings hold what the recording thread submits to their context, and nothing else."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

from .graphs import beside, buffer_of, entry, filled, ledger_graph, recorded, single, total

pytestmark = pytest.mark.needs("capture", "quick", "single_ops")


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def ledger(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(ledger_graph())


@pytest.fixture
def elsewhere(device: str) -> ost.Session:
    """Another session, and so another context."""
    return open_session(device, threads=1)


@pytest.fixture
def foreign(elsewhere: ost.Session) -> ost.CompiledGraph:
    """A ledger on that context, which has a recording of it under 1."""
    compiled = elsewhere.compile(ledger_graph())
    with recorded(elsewhere.context, 1):
        compiled.commit_no_wait(entry(1))
    return compiled


# -- threads ---------------------------------------------------------------------------------------


def test_runs_of_other_threads_are_made_while_one_records(session, ledger):
    """They return results, take effect at once, and are no part of the recording."""
    context, twin = session.context, session.compile(ledger_graph())
    results: list[float] = []
    buffer = ost.GraphExecutor(context).buffer(filled(0))

    def work() -> None:
        results.append(single(ledger.run(entry(1))[0]))
        ledger.commit_no_wait(entry(1))
        ledger.sync_pending()
        results.append(total(ledger))
        y = filled(0)
        ledger.bind(entry(1), [y, filled(0)])()
        results.append(single(y))
        ledger.set_param("w", filled(2))
        results.append(single(ledger.run_pipelined([entry(1)])[0][0]))
        with ost.GraphExecutor(context).begin() as s:
            s.add(buffer, 1.0, out=buffer)
        results.append(single(buffer.copyout()))

    context.begin_graph_capture()
    try:
        with beside(work):
            pass
        twin.commit_no_wait(entry(10))
    finally:
        context.end_graph_capture(1)
    assert results == [1, 2, 3, 5, 1]
    assert (total(ledger), total(twin)) == (5, 0)
    assert context.replay_graph(1)
    assert (total(ledger), total(twin), single(buffer.copyout())) == (5, 10, 1)


def test_one_thread_begins_and_ends_while_another_runs(session, ledger):
    context, twin = session.context, session.compile(ledger_graph())
    ended, runs = False, 0

    def work() -> None:
        nonlocal runs
        while not ended:
            assert single(ledger.run(entry(1))[0]) == (runs := runs + 1)

    with beside(work):
        try:
            for key in range(200):
                with recorded(context, key):
                    twin.commit_no_wait(entry(1))
                assert context.replay_graph(key)
        finally:
            ended = True
    assert (total(ledger), total(twin)) == (runs, 200)


def test_another_threads_replay_runs_while_one_records(session, ledger):
    context = session.context
    with recorded(context, 1):
        ledger.commit_no_wait(entry(1))
    done: list[bool] = []
    with recorded(context, 2), beside(lambda: done.append(context.replay_graph(1))):
        pass
    assert done == [True]
    assert total(ledger) == 1
    assert context.replay_graph(2)
    assert total(ledger) == 1, "the replay of another thread was recorded"


def test_two_threads_record_on_two_contexts(session, ledger, elsewhere, foreign):
    barrier = threading.Barrier(2)

    def record(context: object, compiled: ost.CompiledGraph, amount: int) -> None:
        barrier.wait(30)
        with recorded(context, 2):
            barrier.wait(30)
            compiled.commit_no_wait(entry(amount))
            barrier.wait(30)

    with beside(
        lambda: record(session.context, ledger, 3), lambda: record(elsewhere.context, foreign, 4)
    ):
        pass
    assert (total(ledger), total(foreign)) == (0, 0)
    assert session.context.replay_graph(2)
    assert elsewhere.context.replay_graph(2)
    assert (total(ledger), total(foreign)) == (3, 4)


def test_a_second_begin_of_the_recording_thread_is_refused(session, ledger):
    with recorded(session.context, 1):
        with pytest.raises(ost.CaptureError):
            session.context.begin_graph_capture()
        ledger.commit_no_wait(entry(2))
    assert session.context.replay_graph(1)
    assert total(ledger) == 2


# -- other contexts --------------------------------------------------------------------------------


def encoded(elsewhere: ost.Session, foreign: ost.CompiledGraph) -> ost.GraphSession:
    executor = ost.GraphExecutor(elsewhere.context)
    s = executor.begin()
    s.add(buffer_of(foreign, "total"), 1.0, out=executor.buffer(filled(0)))
    return s


Submission = Callable[[ost.Session, ost.CompiledGraph], Callable[[], object]]

SUBMISSIONS: dict[str, Submission] = {
    "run": lambda s, c: lambda: c.run(entry(1)),
    "run_raw": lambda s, c: lambda: c.run_raw(entry(1)),
    "run_pipelined": lambda s, c: lambda: c.run_pipelined([entry(1)]),
    "commit_no_wait": lambda s, c: lambda: c.commit_no_wait(entry(1)),
    "a bound call": lambda s, c: c.bind(entry(1), [filled(0), filled(0)]),
    "finish": lambda s, c: encoded(s, c).finish,
    "commit": lambda s, c: encoded(s, c).commit,
    "replay_graph": lambda s, c: lambda: s.context.replay_graph(1),
    "set_param": lambda s, c: lambda: c.set_param("w", filled(9)),
    "bind_handle": lambda s, c: lambda: c.bind_handle("total", filled(9)),
    "read_handle": lambda s, c: lambda: c.read_handle("total"),
}


@pytest.mark.parametrize("submission", SUBMISSIONS)
def test_what_an_exclusive_recordings_thread_submits_elsewhere_is_refused(
    session, ledger, elsewhere, foreign, submission
):
    calls = [SUBMISSIONS[submission](elsewhere, foreign) for _ in range(2)]
    with (
        pytest.raises(ost.CaptureError, match="context"),
        recorded(session.context, 1, exclusive=True),
    ):
        ledger.commit_no_wait(entry(1))
        for call in calls:
            with pytest.raises(ost.CaptureError, match="context"):
                call()
        ledger.commit_no_wait(entry(2))
    assert not session.context.replay_graph(1), "the recording has failed"
    assert (total(ledger), total(foreign)) == (0, 0)
    assert single(foreign.run(entry(1))[0]) == 1, "the weight is as it was"


@pytest.mark.parametrize("submission", SUBMISSIONS)
def test_what_a_recordings_thread_submits_elsewhere_runs(
    session, ledger, elsewhere, foreign, submission
):
    call = SUBMISSIONS[submission](elsewhere, foreign)
    with recorded(session.context, 1):
        ledger.commit_no_wait(entry(1))
        call()
        elsewhere.context.synchronize()
    expected = {"finish": 0, "commit": 0, "set_param": 0, "bind_handle": 9, "read_handle": 0}
    assert total(foreign) == expected.get(submission, 1)
    assert total(ledger) == 0
    assert session.context.replay_graph(1)
    assert total(ledger) == 1


def test_another_thread_submits_elsewhere_while_one_records(session, foreign):
    with recorded(session.context, 1), beside(lambda: foreign.run(entry(1))):
        pass
    assert total(foreign) == 1


# -- GraphRunner -----------------------------------------------------------------------------------


@pytest.fixture
def quiet() -> Iterator[None]:
    """Fallbacks to eager may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def test_a_runner_of_a_context_that_its_step_does_not_run_on(session, foreign, quiet):
    runner = ost.GraphRunner(session.context, warmup=1)
    step = foreign.bind(entry(1), [filled(0), filled(0)])
    for count in range(1, 7):
        runner.run(0, step)
        assert total(foreign) == count
    assert (runner.eager, runner.captured, runner.replayed) == (6, 0, 0)
    assert sum(runner.skipped.values()) == 1


@pytest.mark.parametrize("first", ["here", "elsewhere"])
def test_a_step_on_two_contexts_is_made_whole(session, ledger, foreign, quiet, first):
    runner = ost.GraphRunner(session.context, warmup=1)
    calls = [graph.bind(entry(1), [filled(0), filled(0)]) for graph in (ledger, foreign)]

    def step() -> None:
        for call in calls if first == "here" else reversed(calls):
            call()

    for count in range(1, 7):
        runner.run(0, step)
        assert (total(ledger), total(foreign)) == (count, count)
    assert (runner.eager, runner.captured, runner.replayed) == (6, 0, 0)
    assert sum(runner.skipped.values()) == 1


def test_a_runner_does_not_replay_nothing(session, quiet):
    """A step that submits nothing has effects that no replay would have."""
    runner, calls = ost.GraphRunner(session.context, warmup=1), []

    def step() -> int:
        calls.append(1)
        return len(calls)

    runner.run(0, step)
    runner.run(0, step)
    before = len(calls)
    for count in range(1, 4):
        assert runner.run(0, step) == before + count
    assert runner.replayed == 0
    assert runner.skipped["empty"] == 1


def test_a_runner_records_while_other_threads_run(session, ledger):
    """A runner that records leaves out the submissions of other threads."""
    other, ended, runs = session.compile(ledger_graph()), False, 0
    call = ledger.bind(entry(1), [filled(0), filled(0)])

    def work() -> None:
        nonlocal runs
        while not ended:
            other.run(entry(1))
            runs += 1

    runner = ost.GraphRunner(session.context, warmup=1, max_graphs=1)
    with beside(work):
        try:
            for key in range(100):
                for _ in range(3):
                    runner.run(key, call)
        finally:
            ended = True
    assert (total(ledger), total(other)) == (300, runs)
    assert (runner.eager, runner.captured, runner.replayed) == (100, 100, 200)


def test_an_empty_recording_is_a_recording(session):
    """The context keeps and replays it: only the runner's policy refuses it."""
    with recorded(session.context, 1):
        pass
    assert session.context.replay_graph(1) is True


def test_after_a_refusal_the_other_context_works(session, ledger, elsewhere, foreign):
    session.context.begin_graph_capture(exclusive=True)
    with pytest.raises(ost.CaptureError):
        foreign.commit_no_wait(entry(1))
    session.context.cancel_graph_capture()
    foreign.sync_pending()
    foreign.commit_no_wait(entry(5))
    with recorded(elsewhere.context, 2):
        foreign.commit_no_wait(entry(6))
    assert elsewhere.context.replay_graph(2)
    assert total(foreign) == 11
    assert np.array_equal(ledger.run(entry(2))[0], filled(2))
