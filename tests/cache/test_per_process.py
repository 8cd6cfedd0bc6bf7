"""Values that a forked child does not share with its parent."""

from __future__ import annotations

import os
import signal
import threading

from ostinato.cache.per_process import PerProcess


def in_child(function) -> bool:
    """Whether ``function()`` is true in a forked process, within ten seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if function() else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_process_keeps_its_value():
    lock = PerProcess(threading.Lock(), lambda _: threading.Lock())
    assert lock.get() is lock.get()


def test_a_child_does_not_inherit_a_lock_in_use():
    lock = PerProcess(threading.Lock(), lambda _: threading.Lock())
    with lock.get():
        assert in_child(lambda: lock.get().acquire(timeout=5))
        assert lock.get().locked()


def test_values_are_inherited_from_the_parent_process():
    generation = PerProcess(0, lambda value: value + 1)
    assert in_child(lambda: generation.get() == 1 and in_child(lambda: generation.get() == 2))
    assert in_child(lambda: in_child(lambda: generation.get() == 1))
    assert generation.get() == 0


def test_threads_of_a_child_agree():
    value = PerProcess(object(), lambda _: object())

    def agree() -> bool:
        start, found = threading.Barrier(8), []

        def look() -> None:
            start.wait()
            found.append(value.get())

        threads = [threading.Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(set(map(id, found))) == 1

    assert all(in_child(agree) for _ in range(10))
