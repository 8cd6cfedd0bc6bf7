"""The list of submissions: what waits for what, and what does not."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ostinato.plan import _order
from ostinato.plan.order import (
    NOTHING,
    ORDER,
    Accesses,
    MemoryOrder,
    Submission,
    arrays_touched,
)


def span(start: int, end: int, *, written: bool) -> Accesses:
    return Accesses([(1 << 40 | start, end - start, written)])


class Worker:
    """A thread that submits, waits to begin, and ends on request."""

    def __init__(self, *accesses: Accesses) -> None:
        self.submission = Submission(*accesses)
        self.begun, self.go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        with self.submission:
            self.begun.set()
            assert self.go.wait(30)

    def end(self) -> None:
        self.go.set()
        self.thread.join()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = ORDER.in_flight
    yield
    assert ORDER.in_flight == before


CONFLICTS = [
    ((0, 8, True), (0, 8, True), True),
    ((0, 8, True), (4, 5, False), True),
    ((0, 8, False), (7, 20, True), True),
    ((0, 8, False), (0, 8, False), False),
    ((0, 8, True), (8, 16, True), False),
    ((8, 16, True), (0, 8, True), False),
    ((4, 4, True), (0, 8, True), False),
]


@pytest.mark.parametrize(("first", "second", "waits"), CONFLICTS)
def test_what_conflicts_waits(first, second, waits):
    one = Worker(span(first[0], first[1], written=first[2]))
    assert one.begun.wait(30)
    two = Worker(span(second[0], second[1], written=second[2]))
    assert two.begun.wait(0.02 if waits else 30) is not waits
    one.end()
    assert two.begun.wait(30)
    two.end()


def test_places_are_taken_when_submissions_are_made():
    """The one that was made first begins first, whichever asks first."""
    memory = span(0, 8, written=True)
    first = Submission(memory)
    second = Worker(memory)
    assert not second.begun.wait(0.02)
    with first:
        assert not second.begun.is_set()
    assert second.begun.wait(30)
    second.end()


def test_readers_wait_for_a_writer_that_came_before_them():
    read, write = span(0, 8, written=False), span(0, 8, written=True)
    reader, writer = Worker(read), Worker(write)
    late = Worker(read)
    assert reader.begun.wait(30)
    assert not writer.begun.wait(0.02)
    assert not late.begun.is_set()
    reader.end()
    assert writer.begun.wait(30)
    assert not late.begun.is_set()
    writer.end()
    assert late.begun.wait(30)
    late.end()


def test_several_accesses_count_together():
    a, b, both = (span(s, e, written=True) for s, e in ((0, 8), (16, 24), (0, 24)))
    worker = Worker(a, b)
    assert worker.begun.wait(30)
    waiting = Worker(NOTHING, b)
    apart = Worker(span(8, 16, written=True))
    assert apart.begun.wait(30)
    assert not waiting.begun.wait(0.02)
    for ended in (apart, worker, waiting):
        ended.end()
    assert [*both] == [(1 << 40, 24, True)]


def test_what_is_submitted_within_is_a_part():
    memory = span(0, 8, written=True)
    with Submission(memory):
        other = Worker(memory)
        with Submission(memory), Submission(memory):
            assert not other.begun.is_set()
        assert not other.begun.wait(0.02)
    assert other.begun.wait(30)
    other.end()


def test_submissions_that_are_given_up_leave():
    memory = span(0, 8, written=True)
    given_up = Submission(memory)
    worker = Worker(memory)
    assert not worker.begun.wait(0.02)
    del given_up
    assert worker.begun.wait(30)
    worker.end()


def test_submissions_begin_once_and_end_on_their_thread():
    submission = Submission(NOTHING)
    with pytest.raises(RuntimeError):
        submission.end()
    submission.begin()
    with pytest.raises(RuntimeError):
        submission.begin()
    errors = []

    def end() -> None:
        try:
            submission.end()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert len(errors) == 1
    submission.end()
    with pytest.raises(RuntimeError):
        submission.begin()


@pytest.mark.parametrize(
    "wrong", [1, [(1,)], [(1, -1, True)], [(2**64 - 1, 2, True)], [("a", 1, 1)]]
)
def test_bad_ranges(wrong):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        Accesses(wrong)


def test_submissions_are_made_of_accesses():
    with pytest.raises(TypeError, match="Accesses"):
        Submission([(0, 8, True)])


def test_an_interrupt_withdraws_what_waits():
    memory = span(0, 8, written=True)
    worker = Worker(memory)
    assert worker.begun.wait(30)

    def interrupt(*_: object) -> None:
        raise InterruptedError

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(InterruptedError), Submission(memory):
            pytest.fail("it has not begun")
    finally:
        signal.signal(signal.SIGALRM, former)
    worker.end()
    with Submission(memory):
        pass


def test_a_handler_may_submit_while_its_thread_waits():
    memory = span(0, 8, written=True)
    worker = Worker(memory)
    assert worker.begun.wait(30)
    apart = span(8, 16, written=True)

    def handle(*_: object) -> None:
        with Submission(apart):
            worker.go.set()

    former = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with Submission(memory):
            assert worker.go.is_set()
    finally:
        signal.signal(signal.SIGALRM, former)
    worker.end()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_finds_nothing_in_flight():
    memory = span(0, 8, written=True)
    worker = Worker(memory)
    assert worker.begun.wait(30)
    queued = Submission(memory)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with Submission(memory):
                status = 0 if ORDER.in_flight == 1 else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    ended, status = 0, -1
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert (ended, status) == (child, 0)
    worker.end()
    with queued:
        pass


def test_the_hook_sees_every_point():
    seen: list[str] = []
    ORDER.on_yield = seen.append
    try:
        assert ORDER.on_yield is not None
        with Submission(NOTHING):
            pass
    finally:
        ORDER.on_yield = None
    assert seen == ["enter", "begin", "leave"]
    assert ORDER.on_yield is None


def test_many_threads_count_without_losing_any():
    memory, apart = span(0, 8, written=True), span(8, 16, written=False)
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(200):
            with Submission(memory, apart):
                before = count
                time.sleep(0)
                count = before + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 800


# -- arrays ----------------------------------------------------------------------------------------


def test_arrays_touch_the_bytes_from_their_first_to_their_last_element():
    a = np.zeros((4, 6), np.int16)
    start = a.__array_interface__["data"][0]
    assert [*arrays_touched([a], [a])] == [(start, 48, False), (start, 48, True)]
    assert [*arrays_touched([a[1:3, 2:4]])] == [(start + 16, 16, False)]
    assert [*arrays_touched([a[::-1, ::-1]])] == [(start, 48, False)]
    assert [*arrays_touched([a.T])] == [(start, 48, False)]
    ((_, nbytes, _),) = arrays_touched([np.broadcast_to(a[0, 1], (9, 9))])
    assert nbytes == 2
    assert arrays_touched([a[:0], 3, None, [1]]) is NOTHING


# -- recordings ------------------------------------------------------------------------------------


def test_recordings_belong_to_threads():
    number = _order.begin_recording("here", False)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(_order.is_recording(number)))
    thread.start()
    thread.join()
    assert _order.is_recording(number)
    assert seen == [False]
    assert _order.end_recording(number) is None
    assert not _order.is_recording(number)
    assert _order.end_recording(number) is None


def test_exclusive_recordings_fail_by_what_goes_elsewhere():
    number = _order.begin_recording("here", True)
    _order.refuse_elsewhere(number, "here", ValueError)
    with pytest.raises(ValueError, match=r"submitted to there while .* for here"):
        _order.refuse_elsewhere(0, "there", ValueError)
    _order.fail_recording(number, "later")
    failure = _order.end_recording(number)
    assert failure is not None
    assert "there" in failure
    _order.refuse_elsewhere(0, "there", ValueError)


# -- changes of memory -----------------------------------------------------------------------------


class User:
    """A context that counts the changes it hears of."""

    def __init__(self) -> None:
        self.changes = 0

    def memory_changed(self, memory: object, *, replaced: bool) -> None:
        self.changes += 1


def test_contexts_may_join_while_memory_changes():
    order, first, ended = MemoryOrder(), User(), threading.Event()
    order.join(first)

    def join() -> None:
        while not ended.is_set():
            users = [User() for _ in range(50)]
            for user in users:
                order.join(user)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=join)
    thread.start()
    try:
        for _ in range(500):
            order.memory_changes(object())
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert first.changes == 500


def test_contexts_that_are_gone_hear_of_nothing():
    order, user = MemoryOrder(), User()
    order.join(user)
    del user
    gc.collect()
    order.memory_changes(object())
