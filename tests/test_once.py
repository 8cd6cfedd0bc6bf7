"""Values that are made once, across threads and forks."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref

import pytest

from ostinato.once import Once, Promise, call_after_fork


def in_child(function) -> bool:
    """Whether ``function()`` is true in a forked process, within ten seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if function() else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_value_is_made_once():
    once: Once[str, int] = Once()
    assert [once.get("a", lambda: 1), once.get("a", lambda: 2), once.get("b", lambda: 3)] == [
        1,
        1,
        3,
    ]
    assert (once.hits, once.misses, once.evictions, len(once)) == (1, 2, 0, 2)


def test_the_least_recently_used_goes_first():
    once: Once[int, int] = Once(2)
    for key in (1, 2, 1, 3):
        once.get(key, lambda key=key: key)
    assert [key in once for key in (1, 2, 3)] == [True, False, True]
    assert once.evictions == 1


def test_an_error_is_not_kept():
    once: Once[str, int] = Once()
    with pytest.raises(ZeroDivisionError):
        once.get("a", lambda: 1 // 0)
    assert "a" not in once
    assert once.get("a", lambda: 7) == 7


def test_a_forked_process_waits_for_nobody():
    once: Once[str, int] = Once()
    once.get("finished", lambda: 1)
    begun, end = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        end.wait(30)
        return 2

    thread = threading.Thread(target=once.get, args=("slow", slow))
    thread.start()
    begun.wait()
    with once._lock:  # as if another thread had it
        assert in_child(lambda: once.get("slow", lambda: 3) == 3)
        assert in_child(lambda: once.get("finished", lambda: 4) == 1)
    end.set()
    thread.join()
    assert once.get("slow", lambda: 5) == 2


def test_being_told_of_forks_keeps_nothing_alive():
    class Listener:
        heard = False

        def hear(self) -> None:
            self.heard = True

    listeners = [Listener()]
    call_after_fork(listeners[0].hear)
    assert in_child(lambda: listeners[0].heard)
    assert not listeners[0].heard
    gone = weakref.ref(listeners.pop())
    gc.collect()
    assert gone() is None
    assert in_child(lambda: True)


def test_a_promise_is_kept_or_broken():
    kept: Promise[int] = Promise()
    assert not kept.settled
    waiting: list[int] = []
    thread = threading.Thread(target=lambda: waiting.append(kept.result()))
    thread.start()
    kept.keep(lambda: 7)
    thread.join()
    assert (waiting, kept.result(), kept.failed(), kept.settled) == ([7], 7, False, True)
    broken: Promise[int] = Promise()
    broken.keep(lambda: 1 // 0)
    assert broken.failed()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            broken.result()
