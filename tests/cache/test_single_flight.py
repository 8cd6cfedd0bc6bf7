"""Values that are made once, across threads and forks."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref

import pytest

from ostinato.cache.single_flight import Promise, SingleFlight


def in_child(function) -> bool:
    """Whether ``function()`` is true in a forked process, within ten seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if function() else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_value_is_made_once():
    once: SingleFlight[str, int] = SingleFlight()
    assert [once.get("a", lambda: 1), once.get("a", lambda: 2), once.get("b", lambda: 3)] == [
        1,
        1,
        3,
    ]
    assert (once.hits, once.misses, once.evictions, len(once)) == (1, 2, 0, 2)


def test_the_least_recently_used_goes_first():
    once: SingleFlight[int, int] = SingleFlight(2)
    for key in (1, 2, 1, 3):
        once.get(key, lambda key=key: key)
    assert [key in once for key in (1, 2, 3)] == [True, False, True]
    assert once.evictions == 1


def test_an_error_is_not_kept():
    once: SingleFlight[str, int] = SingleFlight()
    with pytest.raises(ZeroDivisionError):
        once.get("a", lambda: 1 // 0)
    assert "a" not in once
    assert once.get("a", lambda: 7) == 7


def test_a_forked_process_waits_for_nobody():
    once: SingleFlight[str, int] = SingleFlight()
    once.get("finished", lambda: 1)
    begun, end = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        end.wait(30)
        return 2

    thread = threading.Thread(target=once.get, args=("slow", slow))
    thread.start()
    begun.wait()
    with once._tables.get().lock:  # as if another thread had it
        assert in_child(lambda: once.get("slow", lambda: 3) == 3)
        assert in_child(lambda: once.get("finished", lambda: 4) == 1)
    end.set()
    thread.join()
    assert once.get("slow", lambda: 5) == 2


def test_tables_register_nothing_with_the_interpreter(monkeypatch):
    """A fork handler is never unregistered, and would keep its table alive."""
    registered: list[object] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: registered.append(hooks))
    once: SingleFlight[str, int] = SingleFlight()
    once.get("a", lambda: 1)
    assert registered == []
    gone = weakref.ref(once)
    del once
    gc.collect()
    assert gone() is None


def test_a_child_of_a_child_has_what_was_finished():
    once: SingleFlight[str, int] = SingleFlight()
    once.get("a", lambda: 1)

    def child() -> bool:
        once.get("b", lambda: 2)
        return in_child(lambda: (once.get("a", int), once.get("b", int)) == (1, 2))

    assert in_child(child)
    assert "b" not in once


def test_values_have_sizes():
    once: SingleFlight[str, bytes] = SingleFlight(10, len)
    for key, size in (("a", 4), ("b", 4), ("c", 2)):
        once.get(key, lambda size=size: bytes(size))
    assert [key in once for key in "abc"] == [True, True, True]
    once.get("d", lambda: bytes(5))
    assert [key in once for key in "abcd"] == [False, False, True, True]
    assert len(once.get("too large", lambda: bytes(11))) == 11
    assert (len(once), once.evictions) == (0, 5)
    once.get("a", lambda: b"")
    assert "a" in once


def test_what_is_being_made_is_not_dropped():
    """However small the table: a thread that asks meanwhile waits, and makes nothing itself."""
    once: SingleFlight[str, int] = SingleFlight(1)
    begun, end = threading.Event(), threading.Event()
    made: list[str] = []

    def slow() -> int:
        made.append("slow")
        begun.set()
        end.wait(30)
        return 1

    threads = [threading.Thread(target=once.get, args=("slow", slow))]
    threads[0].start()
    begun.wait()
    for key in "abc":
        once.get(key, lambda: 2)
    threads.append(threading.Thread(target=once.get, args=("slow", slow)))
    threads[1].start()
    while once.hits < 1 and threads[1].is_alive():
        pass
    end.set()
    for thread in threads:
        thread.join()
    assert made == ["slow"]


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
